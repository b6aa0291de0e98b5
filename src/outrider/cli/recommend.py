"""`outrider recommend`: which drafter, length policy and limits to run."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from outrider.cli.console import Console
from outrider.cli.inputs import add_cost_options
from outrider.cli.options import add_output_options
from outrider.cli.parsing import integer, number
from outrider.core.paths import expanded
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.analysis.recommend import Evidence
    from outrider.core.step_cost import StepCostTable

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 10, 15)


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "recommend",
        help="choose drafter, length policy and limits; print them as options",
        description="From traces (simulated) or records of eval and bench run (priced by means), "
        "a step cost table, the load and latency targets: what to run, what to expect of it, and "
        "the options for this engine, vLLM, SGLang, TensorRT-LLM and llama.cpp.",
    )
    parser.add_argument(
        "--from",
        dest="records",
        nargs="+",
        required=True,
        metavar="FILE",
        help="per drafter a trace, or the JSON of `outrider eval` or `outrider bench run`",
    )
    add_cost_options(parser, steps="the steps of each trace")
    parser.add_argument(
        "--drafting", metavar="NAME", help="the drafter of the table whose time drafts take"
    )
    _add_wishes(parser)
    parser.add_argument(
        "--lengths",
        type=integer(1),
        nargs="+",
        default=list(LENGTHS),
        metavar="K",
        help="draft lengths to simulate, as far as a trace goes",
    )
    parser.add_argument(
        "--prompt-len", type=number, metavar="N", help="mean of the prompts, for a record of eval"
    )
    parser.add_argument(
        "--output-len", type=number, metavar="N", help="mean of the outputs, for a record of eval"
    )
    parser.add_argument(
        "--requests", type=integer(1), metavar="N", help="how many to simulate (default: as whatif)"
    )
    parser.add_argument("--seed", type=integer(), default=0, metavar="N", help="of the resampling")
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def _add_wishes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--load",
        nargs="+",
        type=_load,
        default=[(1, 1.0), (4, 1.0), (16, 1.0)],
        metavar="C[:SHARE]",
        help="requests at a time, and the share of all tokens served so (default: 1 4 16)",
    )
    parser.add_argument("--ttft", type=number, metavar="MS", help="most time to the first token")
    parser.add_argument("--tpot", type=number, metavar="MS", help="most time per further token")


def _load(text: str) -> tuple[int, float]:
    concurrency, _, share = text.partition(":")
    try:
        value = int(concurrency), float(share or 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no load like 4 or 4:0.5") from error
    if value[0] < 1:
        raise argparse.ArgumentTypeError(f"{value[0]} requests at a time are too few")
    return value


def run(args: argparse.Namespace) -> int:
    """Weigh and report."""
    from outrider.analysis.environment import environment
    from outrider.analysis.estimate import read_cost_table
    from outrider.analysis.recommend import Targets, recommend
    from outrider.analysis.recommend_flags import flags
    from outrider.analysis.recommend_report import recommend_lines, recommend_record

    targets = Targets(args.ttft, args.tpot)
    loads = dict(args.load)
    console = Console(no_color=args.no_color)
    costs = read_cost_table(args.cost_table)
    evidence = [_evidence(args, path, costs) for path in args.records]
    drafters = [each.drafter for each in evidence]
    if len(set(drafters)) < len(drafters):
        raise ConfigError(f"two records are of one drafter ({', '.join(drafters)}); give one each")
    with console.working(f"weighing {', '.join(drafters)}"):
        found = recommend(evidence, loads, targets)
    spoken = flags(found, args.cost_table)
    for line in recommend_lines(found, spoken):
        console.print(line)
    if args.json:
        record = recommend_record(found, spoken)
        console.print_json({**record, "environment": environment(["outrider", *sys.argv[1:]])})
    return 0


def _evidence(args: argparse.Namespace, path: str, costs: "StepCostTable") -> "Evidence":
    from outrider.analysis.recommend import TracedEvidence
    from outrider.analysis.recommend_counts import counted
    from outrider.analysis.whatif import Setting
    from outrider.analysis.whatif_drafters import drafting_name
    from outrider.analysis.whatif_log import is_trace
    from outrider.analysis.whatif_trace import fitted, recorded
    from outrider.schedule.cost import StepCost

    if not is_trace(path):
        if args.fit:
            raise ConfigError(f"--fit needs the times of a trace, and {path} is none; leave it out")
        return counted(path, costs, args.drafting, (args.prompt_len, args.output_len))
    with expanded(path).open(encoding="utf-8-sig") as lines:
        record = recorded(lines, path)
    drafter = record.header.drafter
    if drafter is None:
        raise ConfigError(f"{path} is a trace of plain decoding; record one with a drafter")
    name = drafting_name(costs, drafter, args.drafting)
    if args.fit:
        costs = fitted(costs, name, record.steps).table
    elif name is None:
        raise ConfigError(
            f"the cost table knows no drafter like {drafter!r}; name one with --drafting, or take "
            "the trace's own times with --fit"
        )
    setting = Setting(num_requests=args.requests, seed=args.seed)
    return TracedEvidence(
        record, StepCost(costs, name or ""), args.lengths, setting, drafter=drafter
    )
