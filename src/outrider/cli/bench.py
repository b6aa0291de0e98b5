"""`outrider bench`: how fast, in this process or over the network."""

import argparse
from typing import Any

from outrider.cli.bench_compare import add_compare
from outrider.cli.bench_serve import add_serve
from outrider.cli.inputs import add_prompt_set_options
from outrider.cli.options import add_model_options, add_output_options, add_speculation_options
from outrider.cli.parsing import CommandParser, integer, number
from outrider.cli.regret import add_regret


def add(commands: Any) -> None:
    """Add the command and its sub-commands to the parser."""
    parser = commands.add_parser(
        "bench", help="measure speed, here or of a server; compare results"
    )
    parser.set_defaults(parser=parser)
    kinds = parser.add_subparsers(
        metavar="KIND", dest="kind", required=True, parser_class=CommandParser
    )
    add_run(kinds)
    add_serve(kinds)
    add_compare(kinds)
    add_regret(kinds)


def add_run(kinds: Any) -> None:
    """Add `bench run` to the parser."""
    parser = kinds.add_parser(
        "run",
        help="plain and speculative on the same prompts, in this process",
        description="Run the same prompts plain and speculative, in turns, on the same weights.",
    )
    add_prompt_set_options(parser)
    parser.add_argument(
        "--concurrency", type=integer(1), default=1, metavar="C", help="requests at a time"
    )
    parser.add_argument(
        "--max-tokens", type=integer(1), default=128, metavar="N", help="per prompt"
    )
    parser.add_argument("--repeats", type=integer(1), default=3, metavar="R", help="paired runs")
    parser.add_argument("--temperature", type=number, default=0.0, metavar="T", help="0 is greedy")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first prompt")
    parser.add_argument("--ignore-eos", action="store_true", help="always generate --max-tokens")
    parser.add_argument("--trace", metavar="FILE", help="write the speculative steps as JSON Lines")
    parser.add_argument(
        "--log", metavar="FILE", help="write prompts and outputs as JSON Lines, for `whatif`"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--plain-only", action="store_true", help="no speculative runs")
    what.add_argument(
        "--baseline-loop",
        action="store_true",
        help="plain decoding against a bare greedy loop: what the engine itself costs",
    )
    add_model_options(parser)
    add_speculation_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Measure and report."""
    from outrider.cli.benchmark import run_bench

    return run_bench(args)
