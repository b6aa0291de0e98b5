"""`outrider profile`: what a step costs on this machine."""

import argparse
import json
import sys
from typing import Any

from outrider.cli.console import Console
from outrider.cli.options import (
    add_model_options,
    add_output_options,
    add_speculation_options,
    engine_options,
    seats,
    speculative_config,
)
from outrider.cli.parsing import integer
from outrider.core.paths import expanded
from outrider.errors import ConfigError

CHECK_FAILED = 1


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "profile",
        help="measure what a step costs here",
        description="Measure seconds of a step by rows and context, and of drafting by requests; "
        "keep them for the throughput policy. Exit code 1 if they cannot be used.",
    )
    parser.add_argument(
        "--concurrency", type=integer(1), default=16, metavar="C", help="most requests at a time"
    )
    parser.add_argument("--out", metavar="FILE", help="write the table here as well")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw forwards per second by rows")
    add_model_options(parser)
    add_speculation_options(parser, has_policy=False)
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Measure, keep and report; 1 if the table cannot be used."""
    from outrider.analysis.cost_report import cost_chart, cost_lines, cost_record
    from outrider.analysis.environment import environment
    from outrider.cli.loading import require_drafter
    from outrider.engine.config import EngineConfig
    from outrider.engine.resolve import resolve, surroundings_of
    from outrider.engine.scheduling import save_table, table_path
    from outrider.schedule.cost import faults_of

    speculative = speculative_config(args)
    if speculative is None:
        raise ConfigError("a step is profiled with its drafter; leave --draft off out")
    require_drafter(speculative)
    console = Console(no_color=args.no_color)
    options = engine_options(args) | seats(args.concurrency)
    with console.working(f"measuring {args.model}"):
        plan = resolve(EngineConfig(model=args.model, speculative=speculative, **options))
        around = surroundings_of(plan, plan.backend.load(plan.checkpoint))
        table = around.measure()
    for line in cost_lines(table):
        console.print(line)
    is_usable = not any(fault.is_fatal for fault in faults_of(table))
    path = table_path(around)
    if is_usable:
        save_table(table, path)
        console.say(f"kept as {path}")
    _write(args.out, table.to_json())
    _write(args.plot, cost_chart(table))
    if args.json:
        console.print_json(
            {
                **json.loads(table.to_json()),
                **cost_record(table),
                "environment": environment(["outrider", *sys.argv[1:]]),
            }
        )
    return 0 if is_usable else CHECK_FAILED


def _write(path: str | None, text: str) -> None:
    if path is not None:
        expanded(path).write_text(text, encoding="utf-8")
