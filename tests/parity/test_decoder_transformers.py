"""Our decoder against the one of transformers, on tiny random weights in float32."""

from typing import Any, Final

import pytest
import torch
from torch import Tensor

from outrider.models.attention import FullCausal
from outrider.models.decoder import EMBEDDING_TAP, Decoder
from outrider.models.hf_config import from_hf_config, to_hf_config
from outrider.models.spec import Architecture, ModelSpec, RopeSpec
from outrider.models.weights import load_decoder
from outrider.testing.tiny import InMemoryTensors, tiny_decoder, tiny_spec, tiny_tensors

LENGTH: Final = 150  # beyond the original context below, so that every kind of scaling bites
TOLERANCE: Final = 1e-4

ROPES: Final = {
    "none": RopeSpec(theta=10000.0, max_position=512),
    "linear": RopeSpec(
        theta=10000.0, max_position=512, scaling="linear", factor=4.0, original_max_position=512
    ),
    "llama3": RopeSpec(
        theta=500.0,
        max_position=512,
        scaling="llama3",
        factor=8.0,
        original_max_position=64,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    ),
    "yarn": RopeSpec(
        theta=10000.0,
        max_position=512,
        scaling="yarn",
        factor=4.0,
        original_max_position=128,
        beta_fast=8.0,
        attention_factor=1.1386294361119891,
    ),
}
ARCHITECTURES: Final[tuple[Architecture, ...]] = ("llama", "qwen2", "qwen3")


def transformers_model(spec: ModelSpec, tensors: dict[str, Tensor]) -> Any:
    """The same weights in transformers, eager attention, float32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    values = to_hf_config(spec)
    config = AutoConfig.for_model(**values)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    missing, unexpected = model.load_state_dict(
        {name: tensor.float() for name, tensor in tensors.items()}, strict=False
    )
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if spec.tied_head else set())
    return model.eval()


def token_ids(seed: int, vocab_size: int, length: int = LENGTH) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (length,), generator=generator)


def run(decoder: Decoder, ids: Tensor, taps: tuple[int, ...] = ()) -> tuple[Tensor, Tensor | None]:
    hidden, features = decoder(ids, torch.arange(len(ids)), FullCausal([len(ids)]), taps)
    return decoder.logits(hidden), features


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("tied_head", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_and_features_agree(architecture: Architecture, tied_head: bool, rope: str) -> None:
    """Catches any slip in norms, rotation, biases, grouping, residuals, or in what a tap is."""
    spec = tiny_spec(architecture, tied_head=tied_head, rope=ROPES[rope], num_layers=3)
    tensors = tiny_tensors(spec, seed=7)
    model = transformers_model(spec, tensors)
    decoder = load_decoder(spec, InMemoryTensors(tensors), torch.float32)
    ids = token_ids(11, spec.vocab_size)
    last: list[Any] = []
    hook = model.model.layers[-1].register_forward_hook(lambda *call: last.append(call[2]))
    with torch.inference_mode():
        expected = model(ids[None], output_hidden_states=True)
        logits, features = run(decoder, ids, (EMBEDDING_TAP, 0, 1, 2))
    hook.remove()
    torch.testing.assert_close(logits, expected.logits[0], atol=TOLERANCE, rtol=0)
    before_final_norm = last[0] if isinstance(last[0], Tensor) else last[0][0]
    tapped = torch.cat(
        [*(state[0] for state in expected.hidden_states[:3]), before_final_norm[0]], -1
    )
    assert features is not None
    torch.testing.assert_close(features, tapped, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("rope", [name for name in ROPES if name != "none"])
def test_every_rope_scaling_changes_the_logits(rope: str) -> None:
    """Catches a parity grid whose scalings are all ignored on both sides."""
    ids = token_ids(12, 64)
    plain, scaled = (
        run(tiny_decoder(tiny_spec(rope=ROPES[name]), seed=7), ids)[0] for name in ("none", rope)
    )
    assert (plain - scaled).abs().max() > 0.1


@pytest.mark.parametrize("rope", ROPES)
def test_both_spellings_of_the_config_give_one_spec(rope: str) -> None:
    """Catches rope settings lost between transformers 4 (written by us) and 5 (written by it)."""
    from transformers import AutoConfig

    spec = tiny_spec("qwen3", rope=ROPES[rope])
    written = to_hf_config(spec)
    rewritten = AutoConfig.for_model(**written).to_dict()
    assert "rope_parameters" in rewritten
    assert "rope_scaling" not in rewritten
    assert from_hf_config(written).rope == spec.rope
    assert from_hf_config(rewritten).rope == spec.rope


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_low_precision_is_as_close_as_transformers(architecture: Architecture) -> None:
    """Catches a norm or a rotary table computed in bfloat16."""
    spec = tiny_spec(architecture, hidden_size=64, num_layers=4, num_heads=8)
    tensors = tiny_tensors(spec, seed=3)
    model = transformers_model(spec, tensors).to(torch.bfloat16)
    exact = load_decoder(spec, InMemoryTensors(tensors), torch.float64)
    ours = load_decoder(spec, InMemoryTensors(tensors), torch.bfloat16)
    ids = token_ids(13, spec.vocab_size, 400)
    with torch.inference_mode():
        truth = run(exact, ids)[0]
        our_error = (run(ours, ids)[0] - truth).abs().mean()
        their_error = (model(ids[None]).logits[0] - truth).abs().mean()
    assert our_error < 1.2 * their_error
    assert our_error > 1e-4, "bfloat16 was not used"


def test_gradients_reach_every_weight_and_match() -> None:
    """Catches an in-place or detached operation that training a drafter would trip over."""
    spec = tiny_spec("qwen3", tied_head=False)
    tensors = tiny_tensors(spec, seed=5)
    model = transformers_model(spec, tensors)
    decoder = load_decoder(spec, InMemoryTensors(tensors), torch.float32).requires_grad_()
    ids = token_ids(14, spec.vocab_size, 20)
    run(decoder, ids)[0].logsumexp(-1).sum().backward()
    model(ids[None]).logits[0].logsumexp(-1).sum().backward()
    assert all(weight.grad is not None for weight in decoder.parameters())
    block, theirs = decoder.get_submodule("layers.0"), model.model.layers[0]
    assert theirs.self_attn.q_proj.weight.grad.abs().max() > 0
    torch.testing.assert_close(
        block.get_parameter("attention.qkv.weight").grad,
        torch.cat(
            [getattr(theirs.self_attn, f"{part}_proj").weight.grad for part in ("q", "k", "v")]
        ),
        atol=1e-3,
        rtol=1e-3,
    )
