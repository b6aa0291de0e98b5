"""Options become the configs they name, with the defaults of those configs."""

import argparse
from dataclasses import fields
from typing import Any

import pytest

from outrider.cli.main import build_parser
from outrider.cli.options import (
    engine_options,
    sampling_params,
    seats,
    speculative_config,
)
from outrider.core.request import SamplingParams
from outrider.drafters.catalogue import DRAFTERS
from outrider.drafters.config import SpeculativeConfig
from outrider.engine.config import LENGTH_POLICIES, EngineConfig
from outrider.errors import ConfigError, RequestRejected


def parsed(*argv: str) -> argparse.Namespace:
    return build_parser().parse_args(["generate", "hi", *argv])


def test_defaults_are_those_of_the_python_api() -> None:
    """Catches a second source of defaults. The command line is greedy and seeded on purpose."""
    assert sampling_params(parsed()) == SamplingParams(temperature=0, seed=0)
    config = EngineConfig(model="m", **engine_options(parsed()))
    assert config == EngineConfig(model="m")
    assert speculative_config(parsed()) == SpeculativeConfig(method="auto")
    for policy in LENGTH_POLICIES:
        EngineConfig(model="m", length_policy=policy)


def test_every_sampling_option_has_an_argument() -> None:
    """Catches a field that was added to `SamplingParams` and forgotten here."""
    given = {
        "max_tokens": "5", "min_tokens": "2", "temperature": "0.5", "top_k": "3", "top_p": "0.9",
        "min_p": "0.1", "repetition_penalty": "1.1", "presence_penalty": "-1",
        "frequency_penalty": "0.5", "logit_bias": "7:-2.5", "allowed_token_ids": "1,2",
        "seed": "4", "n": "2", "stop": "end", "stop_token_ids": "8,9", "logprobs": "1",
        "max_draft_len": "0", "regex": "a+",
    }  # fmt: skip
    argv = [part for name, text in given.items() for part in (_option(name), text)]
    params = sampling_params(parsed(*argv, "--keep-special-tokens"))
    default = SamplingParams()
    unchanged = {
        field.name
        for field in fields(SamplingParams)
        if getattr(params, field.name) == getattr(default, field.name)
    }
    # A mask is a function; the rule is an option of the engine; a form needs its end.
    assert unchanged == {"token_mask", "verify_rule", "ignore_eos"}
    assert sampling_params(parsed("--ignore-eos")).ignore_eos
    assert params.logit_bias == {7: -2.5}
    assert params.stop == ("end",)


def test_values_out_of_range_are_refused_by_name() -> None:
    """Catches a range that is checked nowhere before the model is loaded."""
    with pytest.raises(RequestRejected, match="top_p is 2"):
        sampling_params(parsed("--top-p", "2"))


def test_every_method_is_offered() -> None:
    """Catches a drafter that the help does not know."""
    for command in ("generate", "certify"):
        commands = build_parser()._subparsers
        assert commands is not None
        help_text = commands._group_actions[0].choices[command].format_help()  # type: ignore[index]
        text = "".join(help_text.split())  # A line may end at the hyphen of a name.
        for method in DRAFTERS:
            assert method in text, (command, method)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--draft", "off"], None),
        (
            ["--draft", "ngram", "--draft-len", "3"],
            {"method": "ngram", "num_speculative_tokens": 3},
        ),
        (["--draft-model", "d.gguf"], {"method": "draft-model", "model": "d.gguf"}),
        (
            ["--speculative-config", '{"method": "draft_model", "model": "d"}'],
            {"method": "draft-model", "model": "d"},
        ),
    ],
)
def test_speculation_can_be_said_in_short_and_in_json(
    argv: list[str], expected: dict[str, object] | None
) -> None:
    """Catches a short flag that does not reach the config."""
    config = None if expected is None else SpeculativeConfig.from_options(expected)
    assert speculative_config(parsed(*argv)) == config


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--draft", "draft-model"], "add --draft-model and its path"),
        (["--draft", "ngram", "--draft-model", "d"], "leave --draft-model out"),
        (["--speculative-config", "{oops"], "is not JSON"),
        (["--speculative-config", "[1]"], "is not an object"),
        (["--speculative-config", "{}"], "has no method"),
        (["--speculative-config", '{"metod": "ngram"}'], "did you mean 'method'"),
        (["--speculative-config", '{"method": 5}'], "not a string"),
        (
            ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": "x"}'],
            "not an integer",
        ),
        (["--speculative-config", "[" * 100_000], "is not JSON"),
        (["--speculative-config", '{"method": "ngram"}', "--draft-len", "2"], "leave --draft-len"),
    ],
)
def test_contradictions_are_refused(argv: list[str], says: str) -> None:
    """Catches an option that is silently ignored, and a TypeError shown to a user."""
    with pytest.raises(ConfigError, match=says):
        speculative_config(parsed(*argv))


def test_seats_are_added_only_when_needed() -> None:
    """Catches a concurrency that the engine's own limit cuts down without a word."""
    default = EngineConfig(model="m")
    assert seats(default.max_num_seqs) == {}
    assert seats(default.max_num_seqs + 1)["max_num_seqs"] == default.max_num_seqs + 1
    for concurrency in (default.max_num_seqs + 1, default.max_num_batched_tokens + 100):
        options: dict[str, Any] = {"model": "m", **seats(concurrency)}
        assert EngineConfig(**options).max_num_seqs == concurrency


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
