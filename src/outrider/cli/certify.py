"""`outrider certify`: is speculative output the plain output?"""

import argparse
from typing import Any

from outrider.cli.inputs import add_prompt_set_options
from outrider.cli.options import (
    DRAFT_HELP,
    add_model_options,
    add_output_options,
    add_speculation_options,
)
from outrider.cli.parsing import integer, number

CHECKS = ("tokens", "stream", "prefix-cache", "options", "rejection-fit")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "certify",
        help="prove that drafting changes nothing",
        description="Run every prompt plain and speculative and compare token for token; a "
        "difference is either a numeric tie, with its margin, or an error (exit code 1). Several "
        "drafters share the plain runs.",
    )
    add_prompt_set_options(parser)
    parser.add_argument(
        "--temperature",
        nargs="+",
        type=number,
        default=[0.0, 0.8],
        metavar="T",
        dest="temperatures",
        help="temperatures to compare at (default: 0 0.8)",
    )
    parser.add_argument(
        "--concurrency",
        nargs="+",
        type=integer(1),
        default=[1, 8],
        metavar="C",
        dest="concurrencies",
        help="requests at a time; plain runs at the smallest (default: 1 8)",
    )
    parser.add_argument(
        "--max-tokens", type=integer(1), default=128, metavar="N", help="per prompt"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first prompt")
    parser.add_argument(
        "--draft",
        nargs="+",
        metavar="METHOD",
        help=f"one or more of: random (any tokens, nearly all wrong), {DRAFT_HELP}",
    )
    parser.add_argument(
        "--checks",
        nargs="+",
        choices=CHECKS,
        default=["tokens"],
        metavar="CHECK",
        help=f"what to prove: {', '.join(CHECKS)} (default: tokens); rejection-fit tests the "
        "rejection rule's distribution, the others compare with the plain run",
    )
    parser.add_argument(
        "--fit-tokens",
        type=integer(1),
        default=4096,
        metavar="N",
        help="rejection-fit: tokens to sample (default: 4096)",
    )
    add_model_options(parser)
    add_speculation_options(parser, has_draft=False)
    # The more drafts are verified, the more is certified.
    parser.set_defaults(length_policy="fixed")
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Certify; 1 if an output differs by more than rounding."""
    from outrider.cli.certification import run_certify

    return run_certify(args)
