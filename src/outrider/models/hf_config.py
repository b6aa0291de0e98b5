"""A Hugging Face `config.json` as a `ModelSpec`, and back."""

import math
from collections.abc import Mapping
from typing import Any, cast

from outrider.errors import UnsupportedModel
from outrider.models.fields import Fields
from outrider.models.spec import (
    SUPPORTED_ARCHITECTURES,
    Architecture,
    ModelSpec,
    RopeScaling,
    RopeSpec,
    extended_len,
    unsupported_architecture,
    yarn_temperature,
)

_CAUSAL_LM: dict[str, Architecture] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_QWEN3_HEAD_DIM = 128


def from_hf_config(
    config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
) -> ModelSpec:
    """Read a `config.json`, and the stop ids of a `generation_config.json` where there is one.

    Accepts `rope_theta` with `rope_scaling` (transformers 4), and `rope_parameters`
    (transformers 5).

    Raises:
        UnsupportedModel: another architecture, quantised weights, sliding windows, a rope type or a
            bias that this family does not implement.
        CorruptCheckpoint: a required key is absent, or a value has the wrong type or range.
    """
    fields = Fields(config)
    architecture = _architecture(fields)
    _refuse_unsupported(fields, architecture)
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    rope = _rope(fields)
    return ModelSpec(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=fields.integer(
            "head_dim",
            _QWEN3_HEAD_DIM if architecture == "qwen3" else hidden_size // max(num_heads, 1),
        ),
        intermediate_size=fields.integer("intermediate_size"),
        norm_eps=fields.real("rms_norm_eps", 1e-6),
        rope=rope,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
        tied_head=fields.flag("tie_word_embeddings"),
        max_context_len=extended_len(rope),
        stop_token_ids=fields.token_ids("eos_token_id")
        | Fields(generation_config or {}).token_ids("eos_token_id"),
        bos_token_id=fields.integer("bos_token_id") if fields.has("bos_token_id") else None,
    )


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


def _architecture(fields: Fields) -> Architecture:
    classes = fields.items("architectures")
    if classes:
        name = str(classes[0])
        if name not in _CAUSAL_LM:
            raise unsupported_architecture(name)
        return _CAUSAL_LM[name]
    model_type = fields.text("model_type", "unknown")
    if model_type not in SUPPORTED_ARCHITECTURES:
        raise unsupported_architecture(model_type)
    return model_type


def _refuse_unsupported(fields: Fields, architecture: Architecture) -> None:
    mixed = any(kind != "full_attention" for kind in fields.items("layer_types"))
    if fields.flag("use_sliding_window") or mixed:
        raise UnsupportedModel(
            "the checkpoint uses sliding-window attention, which is not implemented; "
            "use a checkpoint with use_sliding_window: false"
        )
    if fields.has("quantization_config"):
        method = fields.section("quantization_config").text("quant_method", "unknown method")
        raise UnsupportedModel(
            f"the safetensors are quantised ({method}), which is not implemented; "
            "use the unquantised checkpoint or a GGUF of the same model"
        )
    if fields.flag("mlp_bias") or (fields.flag("attention_bias") and architecture != "qwen2"):
        raise UnsupportedModel(
            f"attention_bias or mlp_bias is set, which is not implemented for {architecture}; "
            "only qwen2 carries biases, on its query, key and value projections"
        )
    activation = fields.text("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModel(f"hidden_act {activation!r} is not implemented; supported: silu")
    if fields.real("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel("partial_rotary_factor other than 1 is not implemented")


def _rope(fields: Fields) -> RopeSpec:
    name = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    parameters = fields.section(name)
    theta = parameters.real("rope_theta", fields.real("rope_theta", 10000.0))
    max_position = fields.integer("max_position_embeddings")
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if parameters.real("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel("partial_rotary_factor other than 1 is not implemented")
    if kind == "default":
        return RopeSpec(theta=theta, max_position=max_position)
    if kind not in ("linear", "llama3", "yarn"):
        raise UnsupportedModel(
            f"rope type {kind!r} is not implemented; supported: default, linear, llama3, yarn"
        )
    original = parameters.integer("original_max_position_embeddings", max_position)
    factor = parameters.real("factor", max_position / max(original, 1))
    return RopeSpec(
        theta=theta,
        max_position=max_position,
        scaling=cast("RopeScaling", kind),
        factor=factor,
        original_max_position=original,
        low_freq_factor=parameters.real("low_freq_factor", 1.0),
        high_freq_factor=parameters.real("high_freq_factor", 4.0),
        beta_fast=parameters.real("beta_fast", 32.0),
        beta_slow=parameters.real("beta_slow", 1.0),
        attention_factor=_yarn_attention_factor(parameters, factor) if kind == "yarn" else 1.0,
        truncate=parameters.flag("truncate", default=True),
    )


def _yarn_attention_factor(parameters: Fields, factor: float) -> float:
    """Temperature of YaRN, folded into cosine and sine (paper, section 3.4)."""
    mscale = parameters.real("mscale", 0.0)
    mscale_all_dim = parameters.real("mscale_all_dim", 0.0)
    if mscale and mscale_all_dim:
        base = yarn_temperature(factor, mscale_all_dim)
        derived = yarn_temperature(factor, mscale) / base if base else math.inf
    else:
        derived = yarn_temperature(factor)
    return parameters.real("attention_factor", derived)
