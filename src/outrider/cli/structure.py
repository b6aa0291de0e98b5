"""Options that give an output a form. Imports no torch."""

import argparse
from typing import Any

from outrider.core.paths import expanded
from outrider.core.request import StructuredOutputsParams
from outrider.errors import ConfigError


def add_structure_options(parser: argparse.ArgumentParser) -> None:
    """Add the fields of `StructuredOutputsParams`."""
    group = parser.add_argument_group("form of the output (one of them)")
    group.add_argument(
        "--json-schema", metavar="JSON|FILE", help="JSON that fits this schema, given or in a file"
    )
    group.add_argument("--regex", metavar="PATTERN", help="text that this pattern matches")
    group.add_argument(
        "--choice", action="append", metavar="TEXT", help="this text; repeated: one of them"
    )
    group.add_argument("--grammar", metavar="FILE", help="text of the Lark grammar in this file")


def structured_outputs(args: argparse.Namespace) -> StructuredOutputsParams | None:
    """Build from the options of `add_structure_options`; None where none is given.

    Raises:
        ConfigError: A file cannot be read.
        RequestRejected: Several are given, or one cannot be meant.
    """
    schema: str | None = args.json_schema
    given: dict[str, Any] = {
        "json": schema if schema is None or schema.lstrip().startswith("{") else _read(schema),
        "regex": args.regex,
        "choice": None if args.choice is None else tuple(args.choice),
        "grammar": None if args.grammar is None else _read(args.grammar),
    }
    if all(value is None for value in given.values()):
        return None
    return StructuredOutputsParams(**given)


def _read(path: str) -> str:
    try:
        return expanded(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); check the path") from error
