"""Features of given documents, and which layers are tapped."""

from random import Random

import pytest
import torch

from outrider.core.ids import BlockId
from outrider.core.request import SamplingParams
from outrider.errors import ConfigError
from outrider.tensor.span import Span
from outrider.training.capture import capture, training_taps
from tests.unit.training.conftest import LoadLLM

TAPS = (0, -1, 1)
LENGTHS = [1, 16, 17, 40, 90, 3, 33]


def documents() -> list[list[int]]:
    random = Random(1)
    return [[random.randrange(2, 258) for _ in range(length)] for length in LENGTHS]


@pytest.mark.parametrize("batch_tokens", [1, 16, 64, 4096])
def test_batches_and_pieces_give_the_bits_of_one_forward(
    native: LoadLLM, batch_tokens: int
) -> None:
    """Catches documents that see each other, and pieces that forget what came before."""
    llm = native()
    got = list(capture(llm, documents(), TAPS, batch_tokens=batch_tokens))
    assert [len(one) for one in got] == LENGTHS
    for tokens, features in zip(documents(), got, strict=True):
        blocks = [BlockId(i) for i in range(-(-len(tokens) // llm.config.block_size))]
        span = Span(tokens, 0, blocks, num_judged=1)
        expected = llm.new_target(len(tokens)).score_spans([span], TAPS).features
        assert expected is not None
        assert torch.equal(features, expected.to(torch.bfloat16))


def test_capturing_afterwards_gives_the_bits_of_capturing_while_generating(native: LoadLLM) -> None:
    """Catches a difference between the two ways to get features."""
    llm = native(feature_taps=TAPS, prefix_caching=False)
    params = SamplingParams(max_tokens=20, temperature=0.9, seed=1, ignore_eos=True)
    outputs = llm.generate(documents(), params)
    texts = [[*o.prompt_token_ids, *o.outputs[0].token_ids] for o in outputs]
    for output, features in zip(outputs, capture(llm, texts, TAPS), strict=True):
        generated = output.outputs[0].features
        assert generated is not None
        assert torch.equal(generated, features[: len(generated)])


def test_no_documents_and_empty_ones(native: LoadLLM) -> None:
    """Catches an empty batch that reaches the target."""
    assert list(capture(native(), [], TAPS)) == []
    with pytest.raises(ValueError, match="a document is empty"):
        list(capture(native(), [[1], []], TAPS))


def test_default_taps_are_spaced_evenly_and_end_with_the_last_layer() -> None:
    """Catches an off-by-one towards either end, and a small target without enough layers."""
    assert training_taps(30) == (1, 10, 19, 28, 29)
    assert training_taps(28) == (1, 9, 18, 26, 27)
    assert training_taps(4) == (1, 2, 3)
    assert training_taps(2) == (0, 1)
    assert training_taps(30, [5, 2]) == (5, 2, 29)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([30], "layer 30 cannot be tapped: .* go from 0 to 29"),
        ([29], "layer 29 is always kept"),
        ([-2], "layer -2 cannot"),
        ([3, 3], "name each layer once"),
        ([], "at least one"),
    ],
)
def test_taps_out_of_range_are_refused(layers: list[int], said: str) -> None:
    """Catches features of a layer that is not there, or the last one twice."""
    with pytest.raises(ConfigError, match=said):
        training_taps(30, layers)
