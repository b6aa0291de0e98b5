"""GGUF metadata as a `ModelSpec`."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from outrider.errors import UnsupportedModel
from outrider.models.spec import (
    SUPPORTED_ARCHITECTURES,
    Architecture,
    ModelSpec,
    RopeScaling,
    RopeSpec,
    extended_len,
    required,
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
        CorruptCheckpoint: a required key is absent.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise unsupported_architecture(architecture)

    def value(key: str) -> Any:
        return required(metadata, f"{architecture}.{key}")

    num_heads = _one_for_all_layers(value("attention.head_count"), "attention.head_count")
    hidden_size = value("embedding_length")
    num_kv_heads = metadata.get(f"{architecture}.attention.head_count_kv") or num_heads
    head_dim = metadata.get(f"{architecture}.attention.key_length") or hidden_size // num_heads
    rope = _gguf_rope(metadata, architecture, head_dim, frequency_divisors)
    vocab_size = metadata.get(f"{architecture}.vocab_size")
    return ModelSpec(
        architecture=cast("Architecture", architecture),
        vocab_size=vocab_size or len(required(metadata, "tokenizer.ggml.tokens")),
        hidden_size=hidden_size,
        num_layers=value("block_count"),
        num_heads=num_heads,
        num_kv_heads=_one_for_all_layers(num_kv_heads, "attention.head_count_kv"),
        head_dim=head_dim,
        intermediate_size=_one_for_all_layers(value("feed_forward_length"), "feed_forward_length"),
        norm_eps=float(value("attention.layer_norm_rms_epsilon")),
        rope=rope,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
        tied_head=tied_head,
        max_context_len=extended_len(rope),
        stop_token_ids=_gguf_stop_ids(metadata),
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
    )


def _one_for_all_layers(value: object, key: str) -> int:
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise UnsupportedModel(f"{key} differs between layers, which is not implemented")
        return int(value[0])
    return int(cast("int", value))


def _gguf_rope(
    metadata: Mapping[str, Any],
    architecture: str,
    head_dim: int,
    frequency_divisors: Sequence[float],
) -> RopeSpec:
    prefix = f"{architecture}.rope"
    theta = float(metadata.get(f"{prefix}.freq_base", 10000.0))
    max_position = required(metadata, f"{architecture}.context_length")
    rotary_dim = metadata.get(f"{prefix}.dimension_count") or head_dim
    if rotary_dim != head_dim:
        raise UnsupportedModel(
            f"rope turns {rotary_dim} of {head_dim} dimensions; partial rotation is not implemented"
        )
    kind = metadata.get(f"{prefix}.scaling.type", "none")
    factor = float(metadata.get(f"{prefix}.scaling.factor") or 1.0)
    if frequency_divisors:
        if kind != "none":
            raise UnsupportedModel(f"rope_freqs.weight together with rope scaling {kind!r}")
        return RopeSpec(theta, max_position, "llama3", frequency_divisors=tuple(frequency_divisors))
    if kind == "none":
        legacy = float(metadata.get(f"{prefix}.scale_linear") or 1.0)
        kind, factor = ("linear", legacy) if legacy != 1.0 else ("none", 1.0)
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(
            f"rope scaling {kind!r} is not implemented; supported in GGUF: none, linear, yarn, "
            "and the llama3 factors of rope_freqs.weight"
        )
    temperature = float(metadata.get(f"{prefix}.scaling.attn_factor") or 1.0)
    return RopeSpec(
        theta=theta,
        max_position=max_position,
        scaling=cast("RopeScaling", kind),
        factor=factor,
        original_max_position=metadata.get(f"{prefix}.scaling.original_context_length")
        or max_position,
        attention_factor=temperature * yarn_temperature(factor) if kind == "yarn" else 1.0,
    )


def _gguf_stop_ids(metadata: Mapping[str, Any]) -> frozenset[int]:
    declared = {
        metadata[key]
        for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        if metadata.get(key) is not None
    }
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    by_name = {
        index
        for index, (text, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == _GGUF_CONTROL_TOKEN and text in _END_OF_TURN
    }
    return frozenset(declared | by_name)
