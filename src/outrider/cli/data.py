"""`outrider data`: prompts and answers to train a drafter on, all by the target itself."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from outrider.cli.options import add_model_options, add_output_options
from outrider.cli.parsing import CommandParser, integer, number
from outrider.training.settings import (
    FEATURE_MODES,
    HISTORY_MODES,
    GenerateSetting,
    SynthesisSetting,
)

DEFAULT_CONCURRENCY = 96

_GENERATE: dict[str, Any] = {field.name: field.default for field in fields(GenerateSetting)}
_SYNTHESIS: dict[str, Any] = {field.name: field.default for field in fields(SynthesisSetting)}


def add(commands: Any) -> None:
    """Add the command and its sub-commands to the parser."""
    parser = commands.add_parser("data", help="make training data with the target model")
    parser.set_defaults(parser=parser)
    kinds = parser.add_subparsers(
        metavar="KIND", dest="kind", required=True, parser_class=CommandParser
    )
    _add_synthesize(kinds)
    _add_generate(kinds)


def _add_synthesize(kinds: Any) -> None:
    parser = kinds.add_parser(
        "synthesize",
        help="the target writes prompts",
        description="The target writes prompts in the place of its chat template's user, each "
        "from an opener of its domain. Degenerate and repeated prompts are dropped.",
    )
    parser.add_argument(
        "--count",
        nargs="+",
        required=True,
        type=domain_count,
        metavar="DOMAIN=N",
        help="how many prompts of which domain, for example chat=500 code=500",
    )
    parser.add_argument(
        "--output", required=True, type=Path, metavar="FILE.jsonl", help="file to write"
    )
    parser.add_argument(
        "--openers", type=Path, metavar="FILE.json", help="openers by domain (default: built in)"
    )
    add_exclude(parser)
    group = parser.add_argument_group("sampling")
    _add_number(group, "--temperature", _SYNTHESIS["temperature"], "T", "of the user's words")
    _add_number(group, "--top-p", _SYNTHESIS["top_p"], "P", "keep the fewest tokens that hold P")
    group.add_argument(
        "--max-tokens", type=integer(1), default=_SYNTHESIS["max_tokens"], metavar="N",
        help="longest prompt",
    )  # fmt: skip
    _add_number(
        group, "--max-overlap", _SYNTHESIS["max_overlap"], "X",
        "drop a prompt that shares this much of its words with an earlier one, at least 0.5",
    )  # fmt: skip
    _add_common(parser, _SYNTHESIS["seed"])
    parser.set_defaults(run=run_synthesize, parser=parser)


def _add_generate(kinds: Any) -> None:
    parser = kinds.add_parser(
        "generate",
        help="the target answers prompts",
        description="The target answers prompts; tokens, loss masks and features go to shards. "
        "Run again, the command makes what is missing.",
    )
    parser.add_argument(
        "--prompts",
        nargs="+",
        required=True,
        type=Path,
        metavar="FILE",
        help='JSON Lines with "prompt", "turns" or "messages", ShareGPT JSON, or directories',
    )
    parser.add_argument("--limit", type=integer(1), metavar="N", help="first N entries per file")
    parser.add_argument(
        "--output", required=True, type=Path, metavar="DIR", help="directory of the shards"
    )
    add_exclude(parser)
    parser.add_argument(
        "--features",
        choices=FEATURE_MODES,
        default=FEATURE_MODES[0],
        metavar="MODE",
        help="capture (kept while generating), recompute (left to the training), none "
        "(default: capture)",
    )
    parser.add_argument(
        "--taps",
        type=_layers,
        metavar="L,L",
        help="layers the drafter will read; the last one is kept as well (default: four, evenly "
        "spaced)",
    )
    _add_answer_options(parser)
    parser.add_argument(
        "--estimate-only", action="store_true", help="say what it would take, and stop"
    )
    _add_common(parser, _GENERATE["seed"])
    parser.set_defaults(run=run_generate, parser=parser)


def _add_answer_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("answers")
    for name, low, metavar, text in (
        ("max_tokens", 1, "N", "longest answer"),
        ("top_k", 0, "K", "of sampled answers; 0 keeps all"),
        ("min_answer_tokens", 1, "N", "drop documents in which the target wrote less"),
        ("shard_documents", 1, "N", "documents per shard"),
    ):
        group.add_argument(
            "--" + name.replace("_", "-"), type=integer(low), default=_GENERATE[name],
            metavar=metavar, help=text,
        )  # fmt: skip
    _add_number(
        group, "--greedy-share", _GENERATE["greedy_share"], "X", "share answered at temperature 0"
    )
    _add_number(group, "--temperature", _GENERATE["temperature"], "T", "of the other answers")
    _add_number(group, "--top-p", _GENERATE["top_p"], "P", "of sampled answers")
    group.add_argument(
        "--history",
        choices=HISTORY_MODES,
        default=_GENERATE["history"],
        metavar="MODE",
        help="earlier answers of a conversation: regenerate (all by the target), or keep (as in "
        "the file, without loss; only the last turn is answered)",
    )
    group.add_argument(
        "--raw",
        action="store_true",
        help="continue the first turn as it is, without a chat template",
    )


def _add_common(parser: argparse.ArgumentParser, seed: int) -> None:
    parser.add_argument(
        "--concurrency",
        type=integer(1),
        default=DEFAULT_CONCURRENCY,
        metavar="C",
        help="requests at a time",
    )
    parser.add_argument("--seed", type=int, default=seed, metavar="N", help="of the whole run")
    add_model_options(parser)
    add_output_options(parser)


def add_exclude(parser: argparse.ArgumentParser) -> None:
    """Add files whose prompts must not be trained on."""
    parser.add_argument(
        "--exclude",
        nargs="+",
        default=[],
        type=Path,
        metavar="FILE",
        help="drop prompts that nearly repeat one of these files, such as evaluation prompts",
    )


def _add_number(group: Any, name: str, default: float, metavar: str, text: str) -> None:
    group.add_argument(name, type=number, default=default, metavar=metavar, help=text)


def domain_count(text: str) -> tuple[str, int]:
    """Parse `DOMAIN=N`."""
    domain, separator, count = text.partition("=")
    if not separator or not domain or not count.isdecimal() or not int(count):
        raise argparse.ArgumentTypeError(f"{text!r} is not a domain and a number like code=500")
    return domain, int(count)


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of layers like 1,10,19,28"
        ) from error


def run_synthesize(args: argparse.Namespace) -> int:
    """Write prompts."""
    from outrider.cli.data_making import make_prompts

    return make_prompts(args)


def run_generate(args: argparse.Namespace) -> int:
    """Write answers."""
    from outrider.cli.data_making import make_answers

    return make_answers(args)
