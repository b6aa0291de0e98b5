"""config.json to ModelSpec: what is read, what is refused, what is called damaged."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import CorruptCheckpoint, ModelError, UnsupportedModel
from outrider.models.hf_config import from_hf_config, to_hf_config
from outrider.models.spec import Architecture, RopeSpec
from outrider.testing.tiny import tiny_spec

LLAMA: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
    "bos_token_id": 1,
}


def test_defaults_of_an_old_config() -> None:
    """Catches a wrong default where the config is silent."""
    spec = from_hf_config({**LLAMA, "num_key_value_heads": None})
    assert spec.num_kv_heads == 4
    assert spec.head_dim == 16
    assert spec.rope == RopeSpec(theta=10000.0, max_position=1024)
    assert not spec.tied_head
    assert spec.max_context_len == 1024


@pytest.mark.parametrize(
    ("in_config", "in_generation", "expected"),
    [
        (2, None, {2}),
        ([2, 3], None, {2, 3}),
        (2, [3, 4], {2, 3, 4}),
        (None, 5, {5}),
        (None, None, set()),
    ],
)
def test_stop_ids_are_joined(in_config: object, in_generation: object, expected: set[int]) -> None:
    """Catches generation running past an end token that only one of the two files names."""
    spec = from_hf_config({**LLAMA, "eos_token_id": in_config}, {"eos_token_id": in_generation})
    assert spec.stop_token_ids == expected


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_written_config_reads_back(architecture: Architecture) -> None:
    """Catches a field that the writer forgets."""
    spec = tiny_spec(architecture, tied_head=False, bos_token_id=None, norm_eps=1e-5)
    assert from_hf_config(to_hf_config(spec)) == spec


def test_yarn_extends_the_context() -> None:
    """Catches a stretched checkpoint cut off at its trained length."""
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    spec = from_hf_config({**LLAMA, "rope_scaling": scaling})
    assert spec.max_context_len == 4096
    assert spec.rope.attention_factor == pytest.approx(1.138629436)


def test_deepseek_style_temperature() -> None:
    """Catches mscale ignored, or its ratio turned over."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "mscale": 2.0, "mscale_all_dim": 1.0}
    rope = from_hf_config({**LLAMA, "rope_scaling": scaling}).rope
    assert rope.attention_factor == pytest.approx((0.2 * 1.3862943611 + 1) / (0.1386294361 + 1))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "llama, qwen2, qwen3"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "LlamaForCausalLMEagle3"),
        ({"architectures": None, "model_type": "gemma2"}, "gemma2"),
        ({"architectures": None, "model_type": None}, "unknown"),
        ({"use_sliding_window": True}, "sliding"),
        ({"layer_types": ["sliding_attention"]}, "sliding"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1]}}, "mrope"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
    ],
)
def test_what_is_not_implemented_is_refused(changes: dict[str, Any], named: str) -> None:
    """Catches a checkpoint that runs and gives nonsense."""
    with pytest.raises(UnsupportedModel, match=named):
        from_hf_config({**LLAMA, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": None},
        {"hidden_size": "64"},
        {"hidden_size": -64},
        {"num_hidden_layers": 0},
        {"num_hidden_layers": 10**9},
        {"num_attention_heads": 0},
        {"num_key_value_heads": 3},
        {"head_dim": 15},
        {"rms_norm_eps": "small"},
        {"rms_norm_eps": float("nan")},
        {"rms_norm_eps": -1},
        {"rms_norm_eps": 0.0},
        {"rope_theta": 0.0},
        {"rope_scaling": "linear"},
        {"rope_scaling": {"type": "linear", "factor": 0}},
        {"rope_scaling": {"type": "llama3", "low_freq_factor": 4, "high_freq_factor": 4}},
        {"eos_token_id": "</s>"},
        {"tie_word_embeddings": "yes"},
    ],
)
def test_damage_is_called_damage(changes: dict[str, Any]) -> None:
    """Catches a TypeError, a division by zero, or a decoder that cannot be built."""
    with pytest.raises(CorruptCheckpoint):
        from_hf_config({**LLAMA, **changes})


ANYTHING: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**12),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-2, 5), max_size=3),
    st.dictionaries(
        st.sampled_from(["rope_type", "factor", "rope_theta", "mscale"]),
        st.sampled_from(["yarn", "llama3", "linear", 0, -1.0, 2.5, None, 10**400]),
        max_size=4,
    ),
)


@given(
    st.dictionaries(
        st.sampled_from(
            [*LLAMA, "rope_scaling", "rope_parameters", "rope_theta", "head_dim", "layer_types"]
        ),
        ANYTHING,
    )
)
def test_no_config_gives_anything_but_a_spec_or_a_model_error(changes: dict[str, Any]) -> None:
    """Catches an exception of Python's own reaching the user."""
    try:
        spec = from_hf_config({**LLAMA, **changes})
    except ModelError:
        return
    assert spec.num_heads % spec.num_kv_heads == 0
