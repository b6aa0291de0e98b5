"""`outrider bench regret`: what a traced run would have brought with other verify lengths."""

import argparse
from typing import Any

from outrider.cli.console import Console
from outrider.cli.options import add_output_options
from outrider.cli.parsing import integer
from outrider.core.paths import expanded
from outrider.errors import ConfigError


def add_regret(kinds: Any) -> None:
    """Add `bench regret` to the parser."""
    parser = kinds.add_parser(
        "regret",
        help="what a traced run would have brought with other verify lengths",
        description="Price a trace at every fixed verify length and with the oracle's, from a step "
        "cost table.",
    )
    parser.add_argument("trace", metavar="TRACE", help="written by `outrider bench run --trace`")
    parser.add_argument(
        "--cost-table", required=True, metavar="FILE", help="written by `outrider profile --out`"
    )
    parser.add_argument(
        "--longest", type=integer(1), metavar="K", help="longest length (default: the drafter's)"
    )
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Read, price and report."""
    from outrider.analysis.counterfactual import counterfactual
    from outrider.analysis.regret_report import regret_lines, regret_record
    from outrider.core.step_cost import StepCostTable
    from outrider.core.trace import read_trace
    from outrider.engine.scheduling import read_text
    from outrider.schedule.cost import StepCost, faults_of

    table = StepCostTable.from_json(read_text(args.cost_table), args.cost_table)
    for fault in faults_of(table):
        if fault.is_fatal:
            raise ConfigError(f"{args.cost_table} would mislead: {fault.sentence}")
    path = expanded(args.trace)
    if not path.is_file():
        raise ConfigError(f"there is no trace {args.trace!r}; check the path")
    with path.open(encoding="utf-8") as lines:
        header, steps = read_trace(lines, args.trace)
        longest = args.longest or header.max_draft_len
        found = counterfactual(steps, StepCost(table), longest)
    console = Console(no_color=args.no_color)
    for line in regret_lines(found):
        console.print(line)
    if args.json:
        console.print_json(
            {"model": header.model, "length_policy": header.length_policy, **regret_record(found)}
        )
    return 0
