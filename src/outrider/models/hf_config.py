"""A Hugging Face `config.json` as a `ModelSpec`, and back."""

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

_CAUSAL_LM: dict[str, Architecture] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def from_hf_config(
    config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
) -> ModelSpec:
    """Read a `config.json`, and the stop ids of a `generation_config.json` where there is one.

    Accepts `rope_theta` with `rope_scaling` (transformers 4), and `rope_parameters`
    (transformers 5).

    Raises:
        UnsupportedModel: another architecture, quantised weights, sliding windows, a rope type or a
            bias that this family does not implement.
        CorruptCheckpoint: a required key is absent.
    """
    architecture = _hf_architecture(config)
    _refuse_unsupported(config, architecture)
    num_heads = required(config, "num_attention_heads")
    hidden_size = required(config, "hidden_size")
    rope = _hf_rope(config)
    generation = generation_config or {}
    return ModelSpec(
        architecture=architecture,
        vocab_size=required(config, "vocab_size"),
        hidden_size=hidden_size,
        num_layers=required(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads") or num_heads,
        head_dim=config.get("head_dim") or _default_head_dim(architecture, hidden_size, num_heads),
        intermediate_size=required(config, "intermediate_size"),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=rope,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
        tied_head=bool(config.get("tie_word_embeddings", False)),
        max_context_len=extended_len(rope),
        stop_token_ids=_token_ids(config.get("eos_token_id"))
        | _token_ids(generation.get("eos_token_id")),
        bos_token_id=config.get("bos_token_id"),
    )


def _hf_architecture(config: Mapping[str, Any]) -> Architecture:
    classes = config.get("architectures") or []
    for name in classes:
        if name not in _CAUSAL_LM:
            raise unsupported_architecture(name)
        return _CAUSAL_LM[name]
    model_type = config.get("model_type")
    if model_type not in SUPPORTED_ARCHITECTURES:
        raise unsupported_architecture(model_type)
    return cast("Architecture", model_type)


def _refuse_unsupported(config: Mapping[str, Any], architecture: Architecture) -> None:
    layer_types = config.get("layer_types") or []
    if config.get("use_sliding_window") or any(kind != "full_attention" for kind in layer_types):
        raise UnsupportedModel(
            "the checkpoint uses sliding-window attention, which is not implemented; "
            "use a checkpoint with use_sliding_window: false"
        )
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise UnsupportedModel(
            f"the safetensors are quantised ({method}), which is not implemented; "
            "use the unquantised checkpoint or a GGUF of the same model"
        )
    if config.get("mlp_bias") or (config.get("attention_bias") and architecture != "qwen2"):
        raise UnsupportedModel(
            f"attention_bias or mlp_bias is set, which is not implemented for {architecture}; "
            "only qwen2 carries biases, on its query, key and value projections"
        )
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"hidden_act {activation!r} is not implemented; supported: silu")


def _default_head_dim(architecture: Architecture, hidden_size: int, num_heads: int) -> int:
    return 128 if architecture == "qwen3" else hidden_size // num_heads


def _token_ids(value: object) -> frozenset[int]:
    if value is None:
        return frozenset()
    if isinstance(value, int):
        return frozenset((value,))
    return frozenset(int(token) for token in cast("Sequence[int]", value))


def _hf_rope(config: Mapping[str, Any]) -> RopeSpec:
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = parameters.get("rope_theta") or config.get("rope_theta") or 10000.0
    max_position = required(config, "max_position_embeddings")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModel("partial_rotary_factor other than 1 is not implemented")
    if kind in ("default", "none"):
        return RopeSpec(theta=float(theta), max_position=max_position)
    if kind not in ("linear", "llama3", "yarn"):
        raise UnsupportedModel(
            f"rope type {kind!r} is not implemented; supported: default, linear, llama3, yarn"
        )
    original = parameters.get("original_max_position_embeddings") or max_position
    factor = float(parameters.get("factor") or max_position / original)
    return RopeSpec(
        theta=float(theta),
        max_position=max_position,
        scaling=cast("RopeScaling", kind),
        factor=factor,
        original_max_position=int(original),
        low_freq_factor=float(parameters.get("low_freq_factor") or 1.0),
        high_freq_factor=float(parameters.get("high_freq_factor") or 4.0),
        beta_fast=float(parameters.get("beta_fast") or 32.0),
        beta_slow=float(parameters.get("beta_slow") or 1.0),
        attention_factor=_yarn_attention_factor(parameters, factor) if kind == "yarn" else 1.0,
        truncate=bool(parameters.get("truncate", True)),
    )


def _yarn_attention_factor(parameters: Mapping[str, Any], factor: float) -> float:
    """Temperature of YaRN, folded into cosine and sine (paper, section 3.4)."""
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)
    mscale, mscale_all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if mscale and mscale_all_dim:
        return yarn_temperature(factor, mscale) / yarn_temperature(factor, mscale_all_dim)
    return yarn_temperature(factor)


def to_hf_config(spec: ModelSpec) -> dict[str, Any]:
    """The `config.json` that `from_hf_config` reads as `spec`, in the spelling of transformers 4.

    Raises:
        UnsupportedModel: rope divisors of a GGUF file, which the format has no place for.
    """
    rope = spec.rope
    if rope.frequency_divisors:
        raise UnsupportedModel("a config.json cannot carry the rope_freqs of a GGUF file")
    config: dict[str, Any] = {
        "architectures": [name for name, kind in _CAUSAL_LM.items() if kind == spec.architecture],
        "model_type": spec.architecture,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate_size,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": rope.theta,
        "max_position_embeddings": rope.max_position,
        "tie_word_embeddings": spec.tied_head,
        "eos_token_id": sorted(spec.stop_token_ids),
        "bos_token_id": spec.bos_token_id,
        "hidden_act": "silu",
    }
    if rope.scaling != "none":
        config["rope_scaling"] = {
            "rope_type": rope.scaling,
            "factor": rope.factor,
            "original_max_position_embeddings": rope.original_max_position,
        } | _scaling_details(rope)
    return config


def _scaling_details(rope: RopeSpec) -> dict[str, float | bool]:
    if rope.scaling == "llama3":
        return {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.scaling == "yarn":
        return {
            "beta_fast": rope.beta_fast,
            "beta_slow": rope.beta_slow,
            "attention_factor": rope.attention_factor,
            "truncate": rope.truncate,
        }
    return {}
