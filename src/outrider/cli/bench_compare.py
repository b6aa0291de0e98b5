"""`outrider bench compare`: two results side by side."""

import argparse
from typing import Any

from outrider.cli.console import Console
from outrider.cli.options import add_output_options
from outrider.cli.parsing import number
from outrider.errors import ConfigError

CHECK_FAILED = 1


def add_compare(kinds: Any) -> None:
    """Add `bench compare` to the parser."""
    parser = kinds.add_parser(
        "compare",
        help="two results side by side, with their ratios",
        description="Compare two results of `bench serve` (or of `vllm bench serve`) or two of "
        "`bench run`. With --threshold the exit code is 1 if the second is worse.",
    )
    parser.add_argument(
        "before", metavar="A.json", help="a result, or saved output that ends in it"
    )
    parser.add_argument("after", metavar="B.json", help="another of the same kind")
    parser.add_argument(
        "--threshold", type=number, metavar="SHARE", help="loss that is allowed: 0.05 is 5 percent"
    )
    parser.add_argument(
        "--metrics",
        nargs="+",
        metavar="NAME",
        help="what --threshold looks at (default: output throughput, median TTFT, TPOT and E2EL)",
    )
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Compare and report; 1 if something is worse by more than the threshold."""
    from outrider.analysis.serve_compare import (
        GATED,
        compare,
        compare_lines,
        differing_settings,
        read_result,
        regressions,
    )

    if args.threshold is not None and not args.threshold >= 0:
        raise ConfigError(f"--threshold is {args.threshold:g}, but it must be 0 or more")
    if args.metrics and args.threshold is None:
        raise ConfigError("--metrics says what --threshold looks at; give a --threshold too")
    before, after = read_result(args.before), read_result(args.after)
    changes = compare(before, after)
    worse = []
    if args.threshold is not None:
        worse = regressions(changes, args.threshold, args.metrics or GATED)
    differing = differing_settings(before, after)
    console = Console(no_color=args.no_color)
    for line in compare_lines(changes, worse):
        console.print(line)
    for each in differing:
        console.say(f"set differently: {each}")
    if args.json:
        console.print_json(
            {
                "kind": before.kind,
                "figures": {
                    each.name: {"before": each.before, "after": each.after, "ratio": each.ratio}
                    for each in changes
                },
                "differing_settings": differing,
                "threshold": args.threshold,
                "regressions": [each.name for each in worse],
            }
        )
    return CHECK_FAILED if worse else 0
