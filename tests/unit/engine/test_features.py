"""Features that come with completions are those of one full forward, however they were computed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.core.ids import BlockId
from outrider.core.request import SamplingParams
from outrider.engine.llm import LLM
from outrider.errors import ConfigError
from outrider.tensor.span import Span
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.native.machines import require_native
from tests.unchecked import unchecked

TAPS = (0, -1, 1)
PROMPTS = [list(range(2, 40)), [5, 6, 7], [9] * 20, list(range(30, 95))]
PARAMS = [
    SamplingParams(max_tokens=length, temperature=temperature, seed=length, ignore_eos=True)
    for length, temperature in ((24, 0.0), (9, 1.0), (17, 0.8), (30, 0.0))
]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LLM]:
    directory = tmp_path_factory.mktemp("features") / "model"
    write_tiny_checkpoint(directory, tiny_spec(vocab_size=258), seed=3)

    def load(**options: Any) -> LLM:
        return LLM(str(directory), **{"feature_taps": TAPS, "prefix_caching": False, **options})

    return load


def one_forward(llm: LLM, tokens: list[int]) -> Tensor:
    """Features of every token, computed at once by a target of its own."""
    blocks = [BlockId(i) for i in range(-(-len(tokens) // llm.config.block_size))]
    target = llm.new_target(len(tokens))
    scores = target.score_spans([Span(tokens, 0, blocks, num_judged=1)], TAPS)
    assert scores.features is not None
    return scores.features.to(torch.bfloat16)


@pytest.mark.parametrize(
    ("options", "preempts"),
    [
        ({}, False),
        ({"max_num_batched_tokens": 7, "max_num_seqs": 3}, False),
        ({"kv_cache_tokens": 96}, True),
        ({"speculative_config": {"method": "ngram"}}, False),
    ],
    ids=["whole", "chunked", "preempted", "speculative"],
)
def test_features_are_bitwise_those_of_one_forward(
    make: Callable[..., LLM], options: dict[str, Any], *, preempts: bool
) -> None:
    """Catches lost chunks, rejected drafts that stay, and preempted rows that are kept twice."""
    require_native()
    llm = make(backend="native", **options)
    outputs = llm.generate(PROMPTS, PARAMS)
    assert (llm.engine.num_preemptions > 0) == preempts
    for output, params in zip(outputs, PARAMS, strict=True):
        one = output.outputs[0]
        tokens = [*output.prompt_token_ids, *one.token_ids]
        assert one.features is not None
        assert len(one.token_ids) <= params.max_tokens
        assert len(one.features) >= len(tokens) - 1
        expected = one_forward(llm, tokens)
        assert torch.equal(one.features, expected[: len(one.features)])


def test_torch_gives_the_same_features_up_to_rounding(make: Callable[..., LLM]) -> None:
    """Catches a channel order or a layer that differs between the backends' callers."""
    with unchecked():
        llm = make(dtype="float64")
        output = llm.generate([PROMPTS[0]], PARAMS[0])[0]
    features = output.outputs[0].features
    assert features is not None
    with unchecked():
        expected = one_forward(llm, [*output.prompt_token_ids, *output.outputs[0].token_ids])
    torch.testing.assert_close(features, expected[: len(features)])


def test_nothing_is_kept_of_ended_requests(make: Callable[..., LLM]) -> None:
    """Catches features that outlive their request when it is aborted."""
    with unchecked():
        llm = make(dtype="float64")
        stream = llm.stream(PROMPTS, PARAMS[3])
        next(stream)
        stream.close()
        llm.generate(PROMPTS[1], PARAMS[1])
    recorder = llm.engine._recorder
    assert recorder is not None
    assert recorder._parts == {}


def test_impossible_taps_are_refused(make: Callable[..., LLM]) -> None:
    """Catches a layer number that is only noticed deep in the forward."""
    with pytest.raises(ConfigError, match="tap 2 is no layer of"):
        make(feature_taps=(0, 2))
    with pytest.raises(ConfigError, match="add prefix_caching=False"):
        make(prefix_caching=True)
