"""Streams that step one engine for each other."""

from outrider.core.request import SamplingParams
from tests.unit.analysis.conftest import MakeLLM


def test_a_stream_stepped_by_another_keeps_its_end(make_llm: MakeLLM) -> None:
    """Catches a stream that ends while chunks another call made for it are still waiting."""
    llm = make_llm()
    params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
    expected = [out.outputs[0].token_ids for out in llm.generate(["aa", "bb"], params)]
    first = llm.stream(["aa", "bb"], params)
    chunks = [next(first), next(first)]
    list(llm.stream("cc", params))
    chunks += list(first)
    for group in (0, 1):
        own = [chunk for where, chunk in chunks if where == group]
        assert [token for chunk in own for token in chunk.token_ids] == expected[group]
        assert own[-1].finish_reason == "length"
