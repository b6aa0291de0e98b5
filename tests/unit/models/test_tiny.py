"""Tiny checkpoints are worth testing with."""

from typing import Final

import pytest
import torch
from torch import Tensor

from outrider.models.attention import FullCausal
from outrider.models.decoder import Decoder
from outrider.models.spec import Architecture
from outrider.testing.tiny import byte_tokenizer, tiny_decoder, tiny_spec

ARCHITECTURES: Final[tuple[Architecture, ...]] = ("llama", "qwen2", "qwen3")


def distributions(decoder: Decoder, ids: Tensor) -> Tensor:
    hidden, _ = decoder(ids, torch.arange(len(ids)), FullCausal([len(ids)]))
    return decoder.logits(hidden).softmax(-1)


@pytest.mark.parametrize("tied_head", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_distributions_are_neither_flat_nor_certain(
    architecture: Architecture, tied_head: bool
) -> None:
    """Catches a scale at which every test of sampling or acceptance passes trivially."""
    decoder = tiny_decoder(tiny_spec(architecture, tied_head=tied_head), seed=0)
    ids = torch.randint(64, (60,), generator=torch.Generator().manual_seed(1))
    largest = distributions(decoder, ids).max(-1).values
    assert 0.15 < largest.mean() < 0.6
    repeats = (distributions(decoder, ids).argmax(-1) == ids).double().mean()
    assert repeats < 0.3


def test_context_matters() -> None:
    """Catches a model that a table of the last token would match."""
    decoder = tiny_decoder(tiny_spec(), seed=0)
    ids = torch.randint(64, (40,), generator=torch.Generator().manual_seed(1))
    other = ids.clone()
    other[5:10] = (other[5:10] + 1) % 64
    apart = (distributions(decoder, ids) - distributions(decoder, other)).abs().sum(-1) / 2
    assert apart[:5].max() < 1e-12
    assert apart[20:].mean() > 0.1


def test_seed_decides_and_precision_only_rounds() -> None:
    """Catches weights drawn from the global generator or in the decoder's own precision."""
    spec = tiny_spec()
    exact, again, other = (tiny_decoder(spec, seed) for seed in (3, 3, 4))
    rounded = tiny_decoder(spec, 3, torch.bfloat16)
    for name, weight in exact.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
        assert not torch.equal(weight, other.state_dict()[name])
        assert torch.equal(weight.bfloat16(), rounded.state_dict()[name])


@pytest.mark.parametrize("vocab_size", [3, 64, 258, 1000])
def test_vocabulary_never_exceeds_the_model(vocab_size: int) -> None:
    """Catches token ids that the embedding does not have."""
    tokenizer = byte_tokenizer(vocab_size)
    assert tokenizer.get_vocab_size() == min(vocab_size, 258)
    assert all(index < vocab_size for index in tokenizer.encode("Hello, world!").ids)
