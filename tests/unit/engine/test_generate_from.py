"""Requests pulled one by one give what the same requests give in a list."""

from collections import deque

import pytest

from outrider.core.request import SamplingParams
from outrider.engine.llm import LLM
from outrider.engine.output import RequestOutput
from outrider.engine.prompt import Prompt
from outrider.errors import RequestRejected
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.unchecked import unchecked


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    directory = tmp_path_factory.mktemp("from") / "model"
    write_tiny_checkpoint(directory, tiny_spec(vocab_size=258), seed=3)
    with unchecked():
        return LLM(str(directory), dtype="float64", max_num_seqs=3, max_num_batched_tokens=64)


def params(length: int) -> SamplingParams:
    return SamplingParams(max_tokens=length, temperature=0.9, seed=length, ignore_eos=True)


@unchecked()
def test_outputs_come_as_they_end_and_are_those_of_generate(llm: LLM) -> None:
    """Catches outputs under a wrong number, and requests that wait for the slowest."""
    lengths = [20, 3, 4, 5, 6, 7, 8, 9]
    waiting = deque((f"prompt {n}", params(n)) for n in lengths)
    got: dict[int, RequestOutput] = {}
    order = []
    for number, output in llm.generate_from(lambda: waiting.popleft() if waiting else None):
        got[number] = output
        order.append(number)
    expected = llm.generate([f"prompt {n}" for n in lengths], [params(n) for n in lengths])
    for number, output in enumerate(expected):
        assert got[number].outputs[0].token_ids == output.outputs[0].token_ids
        assert got[number].prompt == f"prompt {lengths[number]}"
    assert order[0] == 1
    assert not llm.engine.has_work


@unchecked()
def test_an_output_may_lead_to_the_next_prompt(llm: LLM) -> None:
    """Catches a source that is not asked again once it had nothing."""
    waiting: deque[tuple[Prompt, SamplingParams]] = deque([("start", params(4))])
    texts = []
    for _, output in llm.generate_from(lambda: waiting.popleft() if waiting else None):
        texts.append(output.outputs[0].text)
        if len(texts) < 3:
            ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
            waiting.append((ids, params(4)))
    assert len(texts) == 3


@unchecked()
def test_closing_early_and_refusals_leave_nothing_running(llm: LLM) -> None:
    """Catches requests that go on without a reader."""
    endless = llm.generate_from(lambda: ("again", params(5)))
    next(endless)
    endless.close()
    assert not llm.engine.has_work
    bad = deque([("fine", params(5)), ("", params(5))])
    with pytest.raises(RequestRejected, match="empty"):
        list(llm.generate_from(lambda: bad.popleft() if bad else None))
    assert not llm.engine.has_work
