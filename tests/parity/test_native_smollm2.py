"""The built-in model on the native runner: close to torch, and the same bits in every way."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import torch

from outrider.models.attention import FullCausal
from outrider.models.checkpoint import Checkpoint, open_checkpoint
from tests.native.machines import machine, require_native, span_of
from tests.unchecked import unchecked

if TYPE_CHECKING:
    from outrider.target.native_target import NativeTarget

WEEK: Final = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday,"
TEXT: Final = (
    "def merge(left, right):\n    merged = []\n    while left and right:\n        source = left if "
    "left[0] <= right[0] else right\n        merged.append(source.pop(0))\n    return merged + "
    "left + right\n\n# The tide comes in twice a day because the moon pulls the water towards it, "
    "and the earth turns underneath. A train leaves at 9:40 and arrives at 11:05, so it takes "
    "85 minutes.\n"
)

BLOCKS: Final = 132

pytestmark = pytest.mark.model


@pytest.fixture(scope="module", autouse=True)
def native() -> None:
    require_native()


@pytest.fixture(scope="module")
def checkpoint(default_model: Path) -> Checkpoint:
    return open_checkpoint(default_model)


def target(checkpoint: Checkpoint, threads: int) -> "NativeTarget":
    from outrider.target.native_target import NativeTarget
    from outrider.target.native_weights import load_native

    model = load_native(checkpoint, machine(threads))
    return NativeTarget(model, num_blocks=BLOCKS, block_size=16)


def logits_of_torch(checkpoint: Checkpoint, tokens: list[int]) -> torch.Tensor:
    decoder = checkpoint.load_decoder(torch.float32)
    with torch.inference_mode():
        hidden, _ = decoder(
            torch.tensor(tokens), torch.arange(len(tokens)), FullCausal([len(tokens)])
        )
        return decoder.logits(hidden).log_softmax(-1)


def test_logits_are_close(checkpoint: Checkpoint) -> None:
    """Catches rounding that costs more than the int8 activations should."""
    tokens = checkpoint.tokenizer.encode(TEXT)
    expected = logits_of_torch(checkpoint, tokens)
    span = span_of(tokens, 0, range(BLOCKS), len(tokens))
    found = target(checkpoint, 2).score_spans([span]).logits.log_softmax(-1)
    divergence = (expected.exp() * (expected - found)).sum(-1).mean()
    chosen = expected.gather(1, found.argmax(-1, keepdim=True))[:, 0]
    assert float(divergence) < 0.01
    assert float((expected.max(-1).values - chosen).max()) < 0.5, "not almost as good"


def test_the_likeliest_tokens_are_those_of_torch(checkpoint: Checkpoint) -> None:
    """On the model's own text, where accuracy is promised; other text has more near ties."""
    native = target(checkpoint, 2)
    tokens = checkpoint.tokenizer.encode_chat([{"role": "user", "content": TEXT}])
    prompt_len, cached = len(tokens), 0
    while len(tokens) < prompt_len + 160:
        span = span_of(tokens[cached:], cached, range(BLOCKS), 1)
        cached = len(tokens)
        tokens.append(int(native.score_spans([span]).logits[0].argmax()))
    expected = logits_of_torch(checkpoint, tokens)[prompt_len - 1 : -1]
    own = torch.tensor(tokens[prompt_len:])
    assert float((expected.argmax(-1) == own).double().mean()) > 0.95


def test_it_goes_on(checkpoint: Checkpoint) -> None:
    """Catches a mistake that both sides of the other test share."""
    runner = target(checkpoint, 1).runner
    new, cached = checkpoint.tokenizer.encode(WEEK), 0
    said: list[int] = []
    for _ in range(5):
        ids, _ = runner.greedy([span_of(new, cached, range(BLOCKS), 1)])
        cached += len(new)
        new = ids
        said += ids
    assert checkpoint.tokenizer.decode(said) == " Wednesday, Thursday, Friday"


@unchecked()
def test_every_window_gives_the_same_bits(checkpoint: Checkpoint) -> None:
    """Catches a shape of the real model whose kernels depend on the number of rows."""
    once = checkpoint.tokenizer.encode(TEXT)
    tokens = (once * 20)[: 64 * 65 // 2]
    layers = (-1, 14, 29)
    alone = target(checkpoint, 1)
    expected = alone.score_spans([span_of(tokens, 0, range(BLOCKS), len(tokens))], layers)
    other = target(checkpoint, 2)
    start = width = 0
    while start < len(tokens):
        width = width % 64 + 1
        piece = tokens[start : start + width]
        mates = [span_of(tokens[:5], 0, [BLOCKS - 1], 5)] * (width % 3)
        span = span_of(piece, start, range(BLOCKS - 2, -1, -1), len(piece))
        scored = other.score_spans([*mates, span], layers)
        rows = slice(start, start + len(piece))
        assert torch.equal(scored.logits[5 * len(mates) :], expected.logits[rows]), width
        assert scored.features is not None
        assert expected.features is not None
        assert torch.equal(scored.features[5 * len(mates) :], expected.features[rows]), width
        start += len(piece)
