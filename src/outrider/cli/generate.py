"""`outrider generate`: continue prompts and show which tokens were drafted."""

import argparse
from typing import Any

from outrider.cli.inputs import add_prompt_options, add_raw_option
from outrider.cli.options import (
    add_model_options,
    add_output_options,
    add_sampling_options,
    add_speculation_options,
)


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "generate",
        help="continue a prompt, speculatively",
        description="Continue prompts. Accepted draft tokens are coloured.",
    )
    add_prompt_options(parser)
    add_raw_option(parser)
    parser.add_argument(
        "--compare",
        action="store_true",
        help="run plain and speculative and compare; without a prompt a built-in one",
    )
    add_model_options(parser)
    add_speculation_options(parser)
    add_sampling_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Generate or compare."""
    if args.compare:
        from outrider.cli.compare import run_compare

        return run_compare(args)
    from outrider.cli.generation import run_generate

    return run_generate(args)
