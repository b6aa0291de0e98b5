"""`outrider whatif`: what a log would have taken with other drafters, lengths, loads, machines."""

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from outrider.cli.console import Console
from outrider.cli.inputs import add_cost_options, add_raw_option
from outrider.cli.options import add_output_options
from outrider.cli.parsing import integer, number
from outrider.core.paths import expanded
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.analysis.whatif import Load

MOST_RATED = 256
POLICIES = ("fixed", "threshold", "throughput")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "whatif",
        help="simulate a log under other drafters, lengths, loads and machines",
        description="Serve a log once more by the real engine, on a clock that a step cost table "
        "moves: acceptance is counted, time is predicted. A log is JSON Lines of prompt and output "
        "(drafters that copy need no more), or a trace of `outrider bench run --trace`.",
    )
    parser.add_argument("log", metavar="LOG", help="JSON Lines of prompt and output, or a trace")
    add_cost_options(parser, steps="the steps of the trace")
    who = parser.add_argument_group("drafts")
    who.add_argument(
        "--draft",
        nargs="+",
        metavar="METHOD",
        help="drafters for a plain log: ngram, suffix (default: both); a trace has its own",
    )
    who.add_argument(
        "--speculative-config", metavar="JSON", help="one drafter for a plain log, as in vLLM"
    )
    who.add_argument(
        "--lengths",
        type=integer(1),
        nargs="+",
        default=[1, 2, 3, 5, 7],
        metavar="K",
        help="longest drafts to try (default: 1 2 3 5 7)",
    )
    who.add_argument(
        "--length-policy",
        nargs="+",
        choices=POLICIES,
        default=["fixed", "throughput"],
        metavar="POLICY",
        help=f"of {', '.join(POLICIES)} (default: fixed throughput)",
    )
    who.add_argument(
        "--length-threshold", type=number, default=0.5, metavar="C", help="of policy threshold"
    )
    who.add_argument(
        "--drafting", metavar="NAME", help="the drafter of the table whose time drafts take"
    )
    _add_load(parser)
    text = parser.add_argument_group("log of texts")
    text.add_argument("--model", metavar="MODEL", help="whose tokenizer reads the texts")
    add_raw_option(parser)
    parser.add_argument("--plot", metavar="FILE.svg", help="draw tokens/s and TPOT against load")
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    load.add_argument(
        "--concurrency",
        type=integer(1),
        nargs="+",
        metavar="C",
        help="requests at a time, the next when one is done (default: 1 4 16)",
    )
    load.add_argument(
        "--rate",
        type=number,
        nargs="+",
        metavar="R",
        help="requests a second instead, at random times (Poisson); --concurrency is the most",
    )
    load.add_argument(
        "--requests", type=integer(1), metavar="N", help="how many; the log is repeated as needed"
    )
    load.add_argument(
        "--max-num-batched-tokens",
        type=integer(1),
        default=512,
        metavar="N",
        help="most tokens in a step, prompts included",
    )
    load.add_argument("--seed", type=integer(), default=0, metavar="N", help="of the arrivals")


def run(args: argparse.Namespace) -> int:
    """Simulate and report."""
    from outrider.analysis.environment import environment
    from outrider.analysis.whatif import Outcome, Setting, simulate
    from outrider.analysis.whatif_report import whatif_figure, whatif_lines, whatif_records
    from outrider.cli.whatif_inputs import case_of

    loads = loads_of(args)
    console = Console(no_color=args.no_color)
    case = case_of(args)
    for note in case.notes:
        console.say(note)
    setting = Setting(
        max_num_batched_tokens=args.max_num_batched_tokens,
        num_requests=args.requests,
        seed=args.seed,
    )
    outcomes: list[Outcome] = []
    started, total = time.monotonic(), len(loads) * len(case.scenarios)
    try:
        for load in loads:
            for scenario in case.scenarios:
                console.progress(f"{load.name}, {scenario.name}", len(outcomes), total, started)
                outcomes.append(simulate(case.log, scenario, load, setting))
    finally:
        console.clear()
    for line in whatif_lines(outcomes):
        console.print(line)
    if args.plot is not None:
        expanded(args.plot).write_text(whatif_figure(outcomes), "utf-8")
        console.say(f"wrote {args.plot}")
    if args.json:
        console.print_json(
            {
                "log": args.log,
                "model": case.model,
                "costs_of": case.costs_of,
                "fit": case.fit,
                "outcomes": whatif_records(outcomes),
                "environment": environment(["outrider", *sys.argv[1:]]),
            }
        )
    return 0


def loads_of(args: argparse.Namespace) -> "list[Load]":
    """Give the loads asked for.

    Raises:
        ConfigError: A rate is not above 0, or several concurrencies stand beside rates.
    """
    from outrider.analysis.whatif import Load

    if args.rate is None:
        return [Load(concurrency) for concurrency in args.concurrency or (1, 4, 16)]
    most = args.concurrency or [MOST_RATED]
    if len(most) > 1:
        raise ConfigError("with --rate, --concurrency is the most that run at a time: give one")
    return [Load(most[0], rate) for rate in args.rate]
