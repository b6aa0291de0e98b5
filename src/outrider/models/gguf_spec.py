"""GGUF metadata as a `ModelSpec`."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from outrider.errors import UnsupportedModel
from outrider.models.fields import Fields
from outrider.models.spec import (
    SUPPORTED_ARCHITECTURES,
    ModelSpec,
    RopeScaling,
    RopeSpec,
    extended_len,
    unsupported_architecture,
    yarn_temperature,
)

_END_OF_TURN = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>"}
)
_GGUF_CONTROL_TOKEN = 3


def from_gguf(
    metadata: Mapping[str, Any],
    *,
    tied_head: bool,
    frequency_divisors: Sequence[float] = (),
) -> ModelSpec:
    """Read GGUF metadata.

    `tied_head` and `frequency_divisors` come from the tensors: the absence of `output.weight`, and
    the contents of `rope_freqs.weight`. Besides the declared end tokens, control tokens that end a
    turn by name (`<|im_end|>`, `<|endoftext|>`, ...) stop generation, because GGUF carries no
    generation config.

    Raises:
        UnsupportedModel: another architecture or a rope scaling that is not implemented.
        CorruptCheckpoint: a required key is absent, or a value has the wrong type or range.
    """
    fields = Fields(metadata)
    architecture = fields.text("general.architecture", "unknown")
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise unsupported_architecture(architecture)
    sizes = fields.under(f"{architecture}.")
    tokens = fields.items("tokenizer.ggml.tokens")
    hidden_size = sizes.integer("embedding_length")
    num_heads = _one_for_all_layers(sizes, "attention.head_count")
    head_dim = sizes.integer("attention.key_length", hidden_size // max(num_heads, 1))
    rope = _rope(sizes, head_dim, frequency_divisors)
    bos = "tokenizer.ggml.bos_token_id"
    return ModelSpec(
        architecture=architecture,
        vocab_size=sizes.integer("vocab_size", len(tokens)),
        hidden_size=hidden_size,
        num_layers=sizes.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=_one_for_all_layers(sizes, "attention.head_count_kv", num_heads),
        head_dim=head_dim,
        intermediate_size=_one_for_all_layers(sizes, "feed_forward_length"),
        norm_eps=sizes.real("attention.layer_norm_rms_epsilon"),
        rope=rope,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
        tied_head=tied_head,
        max_context_len=extended_len(rope),
        stop_token_ids=_stop_ids(fields, tokens),
        bos_token_id=fields.integer(bos) if fields.has(bos) else None,
    )


def _one_for_all_layers(sizes: Fields, key: str, default: int | None = None) -> int:
    values = sizes.items(key)
    if len(values) <= 1:
        return sizes.integer(key, default)
    if any(value != values[0] for value in values):
        raise UnsupportedModel(f"{key} differs between layers, which is not implemented")
    return Fields({key: values[0]}).integer(key)


def _rope(sizes: Fields, head_dim: int, frequency_divisors: Sequence[float]) -> RopeSpec:
    theta = sizes.real("rope.freq_base", 10000.0)
    max_position = sizes.integer("context_length")
    rotary_dim = sizes.integer("rope.dimension_count", head_dim)
    if rotary_dim != head_dim:
        raise UnsupportedModel(
            f"rope turns {rotary_dim} of {head_dim} dimensions; partial rotation is not implemented"
        )
    scaling = sizes.under("rope.scaling.")
    kind, factor = scaling.text("type", "none"), scaling.real("factor", 1.0)
    if frequency_divisors:
        if kind != "none":
            raise UnsupportedModel(
                f"rope_freqs.weight together with rope scaling {kind!r} is not implemented"
            )
        # The original length is part of the rule that gave the divisors, which nobody needs again.
        return RopeSpec(
            theta,
            max_position,
            scaling="llama3",
            original_max_position=max_position,
            frequency_divisors=tuple(frequency_divisors),
        )
    if kind == "none":
        factor = sizes.real("rope.scale_linear", 1.0)
        if factor == 1.0:
            return RopeSpec(theta, max_position)
        kind = "linear"
    if kind not in ("linear", "yarn"):
        raise UnsupportedModel(
            f"rope scaling {kind!r} is not implemented; supported in GGUF: none, linear, yarn, "
            "and the llama3 factors of rope_freqs.weight"
        )
    temperature = yarn_temperature(factor) if kind == "yarn" else 1.0
    return RopeSpec(
        theta=theta,
        max_position=max_position,
        scaling=cast("RopeScaling", kind),
        factor=factor,
        original_max_position=scaling.integer("original_context_length", max_position),
        attention_factor=scaling.real("attn_factor", 1.0) * temperature,
    )


def _stop_ids(fields: Fields, tokens: Sequence[object]) -> frozenset[int]:
    declared = fields.token_ids("tokenizer.ggml.eos_token_id")
    declared |= fields.token_ids("tokenizer.ggml.eot_token_id")
    kinds = fields.items("tokenizer.ggml.token_type")
    return declared | {
        index
        for index, (text, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == _GGUF_CONTROL_TOKEN and text in _END_OF_TURN
    }
