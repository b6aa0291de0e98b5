"""`outrider estimate`: what would drafting be worth?"""

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.cli.console import Console
from outrider.cli.options import add_output_options
from outrider.cli.parsing import integer, number, numbers
from outrider.core.paths import expanded
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.analysis.benefit import Regime
    from outrider.analysis.estimate import Measured

LONGEST = 16
DEFAULT_CONTEXT = 256


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "estimate",
        help="compute the speedup to expect, and the best draft length",
        description="Expected tokens per round over the cost of a round, by draft length. "
        "Acceptance comes from a rate, from rates by position, or from records of eval and bench; "
        "costs are in units of a plain step.",
    )
    group = parser.add_argument_group("acceptance (one of these)")
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument("--alpha", type=number, metavar="A", help="one rate for every position")
    source.add_argument(
        "--rates", type=numbers, metavar="R,R", help="conditional accept rates by position"
    )
    source.add_argument(
        "--from",
        dest="record",
        metavar="FILE",
        help="the JSON of `outrider eval` or of a paired `outrider bench run`, or a trace",
    )
    parser.add_argument("--domain", metavar="NAME", help="one domain of the record")
    parser.add_argument(
        "--max-draft-len", type=integer(1), default=LONGEST, metavar="N", help="longest draft"
    )
    _add_costs(parser)
    add_output_options(parser)
    parser.add_argument("--plot", metavar="FILE.svg", help="draw speedup over draft length")
    parser.set_defaults(run=run, parser=parser)


def _add_costs(parser: argparse.ArgumentParser) -> None:
    costs = parser.add_argument_group("costs")
    costs.add_argument(
        "--draft-cost", type=number, default=0.0, metavar="C", help="of one draft token"
    )
    costs.add_argument(
        "--draft-cost-per-round",
        type=number,
        default=0.0,
        metavar="C",
        help="of a draft of any length, as a block drafter has",
    )
    verify = costs.add_mutually_exclusive_group()
    verify.add_argument(
        "--row-cost",
        type=number,
        metavar="C",
        help="what each further verified position adds: 0 to 1 (default: both ends)",
    )
    verify.add_argument(
        "--verify-costs",
        type=numbers,
        metavar="V,V",
        help="of verifying 1, 2, … draft tokens, as measured",
    )
    table = parser.add_argument_group("costs measured on a machine, instead")
    table.add_argument(
        "--profile",
        metavar="TABLE",
        help="written by `outrider profile --out`, or a shipped one's name",
    )
    table.add_argument(
        "--batch",
        type=integer(1),
        nargs="+",
        default=[1, 4, 16],
        metavar="R",
        help="requests at a time (default: 1 4 16)",
    )
    table.add_argument(
        "--context", type=integer(1), metavar="N", help="tokens a row sees (default: the record's)"
    )
    table.add_argument(
        "--prompt-len", type=number, metavar="N", help="mean of the prompts (default: the record's)"
    )
    table.add_argument(
        "--output-len", type=number, metavar="N", help="mean of the outputs (default: the record's)"
    )
    table.add_argument("--drafter", metavar="NAME", help="of the table, if it has several")


def run(args: argparse.Namespace) -> int:
    """Estimate and report."""
    from outrider.analysis.benefit import (
        AcceptModel,
        ConstantRate,
        MeasuredRates,
        outlook,
    )
    from outrider.analysis.environment import environment
    from outrider.analysis.estimate import (
        estimate_figure,
        estimate_lines,
        estimate_record,
    )

    model: AcceptModel
    known: dict[str, Any] = {}
    lengths = None
    if args.domain is not None and args.record is None:
        raise ConfigError("--domain picks from a record; add --from, or leave it out")
    if args.record is not None:
        found = _measured(args)
        model, lengths = found.model, found.lengths
        known = {"measured_speedup": found.speedup, "concurrency": found.concurrency}
    elif args.rates is not None:
        model = MeasuredRates.from_conditional(args.rates)
    else:
        model = ConstantRate(args.alpha)
    regimes = _regimes(args, lengths)
    outlooks = [outlook(model, regime, args.max_draft_len) for regime in regimes]
    console = Console(no_color=args.no_color)
    for line in estimate_lines(outlooks):
        console.print(line)
    if known.get("measured_speedup") is not None:
        console.print(
            f"\nmeasured there, {known['concurrency']} at a time: {known['measured_speedup']:.3f}"
        )
    if args.plot is not None:
        Path(args.plot).write_text(estimate_figure(outlooks), "utf-8")
        console.say(f"wrote {args.plot}")
    if args.json:
        command = ["outrider", *sys.argv[1:]]
        record = estimate_record(outlooks) | known
        console.print_json({**record, "environment": environment(command)})
    return 0


def _measured(args: argparse.Namespace) -> "Measured":
    from outrider.analysis.estimate import measured, measured_in_trace, read_record
    from outrider.analysis.whatif_log import is_trace

    if not is_trace(args.record):
        return measured(read_record(args.record), args.record, args.domain)
    if args.domain is not None:
        raise ConfigError("a trace knows no domains; leave --domain out")
    with expanded(args.record).open(encoding="utf-8-sig") as lines:
        return measured_in_trace(lines, args.record)


def _regimes(args: argparse.Namespace, measured: "tuple[float, float] | None") -> "list[Regime]":
    from outrider.analysis.estimate import constant_regimes, read_cost_table, table_regimes

    if args.profile is None:
        if args.prompt_len is not None or args.output_len is not None:
            raise ConfigError("--prompt-len and --output-len are priced by a --profile; add one")
        return constant_regimes(
            draft_per_token=args.draft_cost,
            draft_per_round=args.draft_cost_per_round,
            per_row=args.row_cost,
            verify=args.verify_costs,
        )
    constants = (args.draft_cost, args.draft_cost_per_round, args.row_cost, args.verify_costs)
    if any(constants):
        raise ConfigError("--profile says what everything costs; leave the constant costs out")
    lengths = _lengths(args, measured)
    context = args.context
    if context is None:
        context = DEFAULT_CONTEXT if lengths is None else round(lengths[0] + lengths[1] / 2)
    return table_regimes(
        read_cost_table(args.profile),
        args.batch,
        context_len=context,
        drafter=args.drafter,
        lengths=lengths,
    )


def _lengths(
    args: argparse.Namespace, measured: "tuple[float, float] | None"
) -> "tuple[float, float] | None":
    """Tokens of a prompt and of an output: as given, else as recorded."""
    given = (args.prompt_len, args.output_len)
    if given == (None, None):
        return measured
    prompt, output = (
        own if own is not None else (measured[place] if measured else None)
        for place, own in enumerate(given)
    )
    if prompt is None or output is None or not (0 <= prompt < math.inf and 1 <= output < math.inf):
        raise ConfigError(
            f"the prompt has {prompt} tokens and the output {output}; give both --prompt-len, 0 or "
            "more, and --output-len, 1 or more"
        )
    return prompt, output
