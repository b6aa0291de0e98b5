"""`outrider train`: make a drafter for a target out of the target's own text."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from outrider.cli.options import DEFAULT_MODEL, add_output_options
from outrider.cli.parsing import integer, number
from outrider.cli.train_block import add_block_options
from outrider.errors import ConfigError, unknown_name


@dataclass(frozen=True, slots=True)
class Method:
    """One kind of drafter: its options and what trains it."""

    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "train",
        help="train a drafter for a model",
        description="Train a drafter on text that the target wrote.",
    )
    parser.add_argument(
        "--method", required=True, metavar="METHOD", help=f"what to train: {', '.join(METHODS)}"
    )
    parser.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="MODEL",
        help="the target: a name from `outrider models`, a GGUF file, a directory or a hub id",
    )
    parser.add_argument(
        "--data", required=True, type=Path, metavar="PATH", help="shards, or a JSONL file of tokens"
    )
    parser.add_argument(
        "--output", required=True, type=Path, metavar="DIR", help="directory to write"
    )
    for method in METHODS.values():
        method.add_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Train by the method's own command."""
    if args.method not in METHODS:
        raise ConfigError(unknown_name("training method", args.method, METHODS))
    return METHODS[args.method].run(args)


def _add_table_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ngram-table")
    group.add_argument(
        "--max-order", type=integer(1), metavar="N", help="longest context in tokens (default: 4)"
    )
    group.add_argument(
        "--min-gain",
        type=number,
        metavar="P",
        help="hold an entry that a shorter context agrees with from this difference in chance "
        "(default: 0.15)",
    )


def _run_table(args: argparse.Namespace) -> int:
    from outrider.cli.train_table import run_table

    return run_table(args)


def _run_block(args: argparse.Namespace) -> int:
    from outrider.cli.train_block import run_block

    return run_block(args)


def _no_more_options(_: argparse.ArgumentParser) -> None:
    """The options of `dspark` serve `dflash` too."""


METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        "dspark": Method(add_block_options, _run_block),
        "dflash": Method(_no_more_options, _run_block),
        "ngram-table": Method(_add_table_options, _run_table),
    }
)
