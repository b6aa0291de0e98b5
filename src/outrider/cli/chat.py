"""`outrider chat`: a conversation in the terminal."""

import argparse
from typing import Any

from outrider.cli.options import (
    add_model_options,
    add_output_options,
    add_sampling_options,
    add_speculation_options,
)


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "chat",
        help="talk to a model",
        description="Talk. /reset forgets the conversation and /exit ends it; Ctrl-C stops an "
        "answer, Ctrl-D ends.",
    )
    parser.add_argument("--system", metavar="TEXT", help="instructions before the conversation")
    add_model_options(parser)
    add_speculation_options(parser)
    add_sampling_options(parser)
    add_output_options(parser, has_json=False)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Talk until the user leaves."""
    from outrider.cli.conversation import run_chat

    return run_chat(args)
