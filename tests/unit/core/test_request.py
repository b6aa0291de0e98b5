"""Sampling parameters: normalised, frozen, and asked the right questions."""

import dataclasses
from typing import Any

import pytest

from outrider.core.request import SamplingParams
from outrider.errors import RequestRejected
from tests.unchecked import unchecked


@unchecked()
def test_containers_of_any_kind_are_normalised() -> None:
    """Catches a stop string taken for a list of letters, and JSON keys that stay strings."""
    params = SamplingParams.from_options(
        {
            "stop": "end",
            "stop_token_ids": [3, 3, 1],
            "allowed_token_ids": [2, 2],
            "logit_bias": {"7": 1.5},
        }
    )
    assert params.stop == ("end",)
    assert params.stop_token_ids == frozenset({1, 3})
    assert params.allowed_token_ids == frozenset({2})
    assert dict(params.logit_bias) == {7: 1.5}
    assert SamplingParams.from_options({"stop": ["a", "b"]}).stop == ("a", "b")
    assert SamplingParams.from_options({"stop": None}).stop == ()


@unchecked()
def test_a_wrong_rule_is_refused() -> None:
    """Catches a rule that is misspelt and silently means the engine's."""
    with pytest.raises(RequestRejected, match="verify_rule is 'rejecting'"):
        SamplingParams.from_options({"verify_rule": "rejecting"})


def test_parameters_cannot_change_under_a_running_request() -> None:
    """Catches parameters shared by requests and edited by one."""
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[2] = 3.0
    assert dict(params.logit_bias) == {1: 2.0}
    with pytest.raises(TypeError):
        params.logit_bias[1] = 9.0  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 3  # type: ignore[misc]


HISTORY = {
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": -0.1,
    "min_tokens": 1,
    "token_mask": lambda output: None,
}
FIXED = {"logit_bias": {1: 0.5}, "allowed_token_ids": frozenset({1})}


@pytest.mark.parametrize("name", [*HISTORY, *FIXED])
def test_what_forbids_the_short_cut_over_raw_logits(name: str) -> None:
    """Catches a greedy request whose options are skipped because it looks plain."""
    value = {**HISTORY, **FIXED}[name]
    params = SamplingParams.from_options({"temperature": 0, name: value})
    assert not params.is_plain_argmax
    assert params.has_history_warps == (name in HISTORY)


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p"])
def test_what_leaves_the_arg_max_alone(name: str) -> None:
    """Catches a greedy request that takes the slow path for nothing."""
    value = 5 if name == "top_k" else 0.5
    assert SamplingParams.from_options({"temperature": 0, name: value}).is_plain_argmax
    assert not SamplingParams.from_options({name: value}).is_plain_argmax


@pytest.mark.parametrize(("temperature", "is_greedy"), [(0, True), (1e-9, True), (1e-4, False)])
def test_greedy(temperature: float, is_greedy: bool) -> None:
    """Catches a division by a temperature that no float32 survives."""
    assert SamplingParams(temperature=temperature).is_greedy == is_greedy


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": "1"},
        {"top_p": None},
        {"stop": [5]},
        {"stop": 5},
        {"stop_token_ids": ["a"]},
        {"stop_token_ids": [1.5]},
        {"allowed_token_ids": 7},
        {"logit_bias": {5.7: 1}},
        {"logit_bias": {5: "x"}},
        {"logit_bias": [1]},
        {"ignore_eos": "no"},
        {"token_mask": 3},
    ],
)
@unchecked()
def test_wrong_types_name_the_option(options: dict[str, Any]) -> None:
    """Catches a TypeError deep inside, or worse, while other requests are being served."""
    with pytest.raises(RequestRejected, match=next(iter(options))):
        SamplingParams(**options)
