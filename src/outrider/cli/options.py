"""Options that several commands share, and the configs made of them. Imports no torch."""

import argparse
import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from outrider.cli.parsing import integer, number, token_bias, token_ids
from outrider.cli.structure import add_structure_options, structured_outputs
from outrider.core.request import VERIFY_RULES, SamplingParams
from outrider.drafters.config import SpeculativeConfig
from outrider.engine.config import BACKENDS, DTYPES, LENGTH_POLICIES, WEIGHT_FORMATS, EngineConfig
from outrider.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_DRAFT = "auto"
NO_DRAFT = "off"
DRAFT_HELP = (
    "auto (the drafter shipped for the model, suffix if there is none), ngram, suffix, "
    f"ngram-table, draft-model, dflash, dspark, combined, or {NO_DRAFT} (default: {DEFAULT_DRAFT})"
)
WITHOUT_MODEL = ("auto", "ngram", "suffix")

_ENGINE_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(EngineConfig)}
_SAMPLING_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(SamplingParams)}

# Option of SamplingParams → (parser of its argument, metavar, help).
_SAMPLING: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "max_tokens": (integer(1), "N", "most tokens to generate"),
    "min_tokens": (integer(0), "N", "no stop before this many tokens"),
    "temperature": (number, "T", "0 takes the most likely token"),
    "top_k": (integer(0), "K", "keep the K most likely tokens; 0 keeps all"),
    "top_p": (number, "P", "keep the fewest tokens that hold this probability"),
    "min_p": (number, "P", "keep tokens at least this fraction as likely as the likeliest"),
    "repetition_penalty": (number, "X", "divides the logits of tokens seen before"),
    "presence_penalty": (number, "X", "subtracted once from tokens in the output"),
    "frequency_penalty": (number, "X", "subtracted per occurrence in the output"),
    "allowed_token_ids": (token_ids, "ID,ID", "only these tokens may be generated"),
    "stop_token_ids": (token_ids, "ID,ID", "more tokens that end the output"),
    "seed": (int, "N", "seed of the noise, of the first prompt if there are several"),
    "n": (integer(1), "N", "continuations per prompt"),
    "logprobs": (integer(0), "N", "report log-probabilities and the N likeliest tokens (--json)"),
    "max_draft_len": (integer(0), "N", "longest draft of these requests; 0 for none"),
}
_CLI_DEFAULTS = {"temperature": 0.0, "seed": 0}


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add what to load and how to compute."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="MODEL",
        help="a name from `outrider models`, a GGUF file, a directory or a hub id",
    )
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        metavar="DTYPE",
        help=f"numbers torch computes with: {', '.join(DTYPES)}; asks for torch "
        "(default: bfloat16 on torch)",
    )
    group.add_argument(
        "--backend",
        choices=BACKENDS,
        default=_ENGINE_DEFAULTS["backend"],
        metavar="BACKEND",
        help=f"what computes: {', '.join(BACKENDS)}",
    )
    group.add_argument(
        "--weights",
        choices=WEIGHT_FORMATS,
        default=_ENGINE_DEFAULTS["weights"],
        metavar="FORMAT",
        help="how the native backend keeps matrices the checkpoint has not quantised: "
        f"{', '.join(WEIGHT_FORMATS)}",
    )
    group.add_argument("--device", default=_ENGINE_DEFAULTS["device"], help="a torch device")
    group.add_argument(
        "--threads", type=integer(1), metavar="N", help="threads that compute (default: all cores)"
    )


def add_speculation_options(
    parser: argparse.ArgumentParser, *, has_policy: bool = True, has_draft: bool = True
) -> None:
    """Add who drafts and how drafts are judged; and how many, unless the command says so.

    A command without `has_draft` adds a `--draft` of its own.
    """
    group = parser.add_argument_group("speculation")
    if has_draft:
        group.add_argument("--draft", metavar="METHOD", help=DRAFT_HELP)
    group.add_argument("--draft-model", metavar="MODEL", help="checkpoint or table of the drafter")
    group.add_argument(
        "--draft-len", type=integer(1), metavar="N", help="longest draft (default: the method's)"
    )
    group.add_argument("--speculative-config", metavar="JSON", help="all of it at once, as in vLLM")
    group.add_argument(
        "--verify-rule",
        choices=VERIFY_RULES,
        default=_ENGINE_DEFAULTS["verify_rule"],
        metavar="RULE",
        help="matching (same tokens as plain) or rejection (same distribution)",
    )
    if not has_policy:
        return
    group.add_argument(
        "--length-policy",
        choices=LENGTH_POLICIES,
        default=_ENGINE_DEFAULTS["length_policy"],
        metavar="POLICY",
        help=f"how much of a draft is verified: {', '.join(LENGTH_POLICIES)}",
    )
    group.add_argument(
        "--length-threshold",
        type=number,
        default=_ENGINE_DEFAULTS["length_threshold"],
        metavar="C",
        help="threshold: least confidence of a draft token",
    )
    group.add_argument(
        "--cost-table",
        metavar="FILE",
        help="throughput: step costs from `outrider profile` (default: measured once, then kept)",
    )
    group.add_argument(
        "--calibration",
        metavar="FILE",
        help="confidences corrected by `outrider calibrate` (default: as shipped with the drafter)",
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add every field of `SamplingParams` that text can express."""
    group = parser.add_argument_group("sampling")
    for name, (parse, metavar, text) in _SAMPLING.items():
        default = _CLI_DEFAULTS.get(name, _SAMPLING_DEFAULTS[name])
        group.add_argument(
            option_name(name), type=parse, metavar=metavar, default=default, help=text
        )
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end the output before this text; may be repeated",
    )
    group.add_argument(
        "--logit-bias",
        action="append",
        type=token_bias,
        default=[],
        metavar="ID:BIAS",
        help="add to the logit of a token; may be repeated",
    )
    group.add_argument(
        "--ignore-eos", action="store_true", help="treat end-of-sequence like any other token"
    )
    group.add_argument(
        "--keep-special-tokens",
        action="store_false",
        dest="skip_special_tokens",
        help="leave special tokens in the text",
    )
    add_structure_options(parser)


def add_output_options(parser: argparse.ArgumentParser, *, has_json: bool = True) -> None:
    """Add how results are shown."""
    group = parser.add_argument_group("output")
    if has_json:
        group.add_argument("--json", action="store_true", help="one JSON object, last on stdout")
    group.add_argument("--no-color", action="store_true", help="no colours; so does NO_COLOR")
    group.add_argument("--debug", action="store_true", help="show where an error came from")


def option_name(field: str) -> str:
    """Spell a field as an option."""
    return "--" + field.replace("_", "-")


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """Build from the options of `add_sampling_options`.

    Raises:
        RequestRejected: A value is out of range.
    """
    given = {name: getattr(args, name) for name in _SAMPLING}
    return SamplingParams(
        **given,
        stop=tuple(args.stop),
        logit_bias=dict(args.logit_bias),
        ignore_eos=args.ignore_eos,
        skip_special_tokens=args.skip_special_tokens,
        structured_outputs=structured_outputs(args),
    )


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """Give the fields of `EngineConfig` that the shared options set."""
    names = (
        "backend",
        "weights",
        "dtype",
        "device",
        "threads",
        "verify_rule",
        "length_policy",
        "length_threshold",
        "cost_table",
        "calibration",
    )
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def seats(concurrency: int) -> dict[str, int]:
    """Give the engine options that let `concurrency` requests run at once; none if all can."""
    if concurrency <= _ENGINE_DEFAULTS["max_num_seqs"]:
        return {}
    tokens = max(concurrency, _ENGINE_DEFAULTS["max_num_batched_tokens"])
    return {"max_num_seqs": concurrency, "max_num_batched_tokens": tokens}


def speculative_config(args: argparse.Namespace) -> SpeculativeConfig | None:
    """Build from the options of `add_speculation_options`; None if drafting is off.

    Raises:
        ConfigError: The options contradict each other or the JSON cannot be used.
    """
    single = [
        name for name in ("draft", "draft_model", "draft_len") if getattr(args, name) is not None
    ]
    if args.speculative_config is not None:
        if single:
            raise ConfigError(
                f"--speculative-config says everything; leave {option_name(single[0])} out"
            )
        return config_of_json(args.speculative_config)
    method = args.draft or ("draft-model" if args.draft_model else DEFAULT_DRAFT)
    if method == NO_DRAFT:
        return None
    config = SpeculativeConfig(
        method=method, model=args.draft_model, num_speculative_tokens=args.draft_len
    )
    if config.method == "draft-model" and config.model is None:
        raise ConfigError("--draft draft-model needs a model; add --draft-model and its path")
    if config.method in WITHOUT_MODEL and config.model is not None:
        raise ConfigError(f"--draft {config.method} uses no model; leave --draft-model out")
    return config


def config_of_json(text: str) -> SpeculativeConfig:
    """Build from the JSON of `--speculative-config`.

    Raises:
        ConfigError: It is no JSON object, or a key or value in it is refused.
    """
    example = '\'{"method": "ngram", "num_speculative_tokens": 4}\''
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"--speculative-config is not JSON ({error}); write for example {example}"
        ) from error
    if not isinstance(options, dict):
        raise ConfigError(f"--speculative-config is not an object; write for example {example}")
    try:
        return SpeculativeConfig.from_options(options)
    except (TypeError, AttributeError) as error:
        raise ConfigError(
            f"--speculative-config has a value of the wrong type ({error}); for example {example}"
        ) from error
