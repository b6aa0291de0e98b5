"""`outrider calibrate`: make confidences mean what they say."""

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from outrider.cli.console import Console
from outrider.cli.inputs import add_prompt_set_options
from outrider.cli.options import (
    add_model_options,
    add_output_options,
    add_speculation_options,
    engine_options,
    seats,
    speculative_config,
)
from outrider.cli.parsing import integer, number
from outrider.core.calibration import METHODS, Calibration
from outrider.core.paths import expanded
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.engine.llm import LLM


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "calibrate",
        help="fit a drafter's confidence to what is accepted",
        description="Verify whole drafts on the prompts, fit, and judge each half of the prompts "
        "by what the other half fits, by domain and position.",
    )
    add_prompt_set_options(parser)
    parser.add_argument(
        "--method",
        choices=METHODS,
        default=METHODS[0],
        metavar="METHOD",
        help=f"{', '.join(METHODS)}: by all evidence (default), temperatures for the product, or "
        "curves per position",
    )
    parser.add_argument(
        "--judge",
        nargs="?",
        const="",
        metavar="FILE",
        help="fit nothing; judge this calibration, or the one shipped with the drafter",
    )
    parser.add_argument("--out", metavar="FILE", help="write the calibration, for --calibration")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw observed against predicted")
    parser.add_argument(
        "--temperature",
        nargs="+",
        type=number,
        default=[0.0],
        metavar="T",
        help="0 is greedy; 0 and one other fit both",
    )
    parser.add_argument(
        "--concurrency", type=integer(1), default=16, metavar="C", help="requests at a time"
    )
    parser.add_argument(
        "--max-tokens", type=integer(1), default=128, metavar="N", help="per prompt"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first prompt")
    add_model_options(parser)
    add_speculation_options(parser, has_policy=False)
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Record, fit, judge and report."""
    from outrider.analysis.calibrate import CalibrateSetting, calibrate
    from outrider.analysis.calibration_report import (
        calibration_lines,
        calibration_record,
        reliability_plot,
    )
    from outrider.analysis.environment import environment
    from outrider.analysis.prompts import load_prompts
    from outrider.cli.loading import load, require_drafter

    speculative = speculative_config(args)
    if speculative is None:
        raise ConfigError("there is no confidence with --draft off; name a drafter")
    rows = load_prompts(args.prompts, limit=args.limit)
    require_drafter(speculative)
    setting = CalibrateSetting(
        method=args.method,
        temperatures=tuple(args.temperature),
        concurrency=args.concurrency,
        max_tokens=args.max_tokens,
        seed=args.seed,
        raw=args.raw,
    )
    console = Console(no_color=args.no_color)
    fixed = {"prefix_caching": False, "length_policy": "fixed", "calibration": args.judge or None}
    options = engine_options(args) | seats(args.concurrency) | fixed
    llm = load(args, console, options, speculative)
    given = None if args.judge is None else _in_use(llm)
    with console.working(f"drafting for {len(rows)} prompts"):
        found = calibrate(llm, rows, setting, given)
    for kind, judged in found.judged.items():
        if len(found.judged) > 1:
            console.print(f"{kind} requests")
        for line in calibration_lines(judged):
            console.print(line)
    if args.out is not None:
        _write(args.out, found.calibration.to_json())
    if args.plot is not None:
        _write(args.plot, reliability_plot(next(iter(found.data.values()))))
    if args.json:
        console.print_json(
            {
                "model": args.model,
                "speculative_config": asdict(speculative),
                "verify_rule": args.verify_rule,
                "setting": asdict(setting),
                "calibration": asdict(found.calibration),
                "scores": {kind: calibration_record(own) for kind, own in found.judged.items()},
                "environment": environment(["outrider", *sys.argv[1:]]),
            }
        )
    return 0


def _in_use(llm: "LLM") -> Calibration:
    found = llm.calibration
    if found is None:
        raise ConfigError(
            "no calibration is shipped with this drafter, so there is none to judge; name one with "
            "--judge FILE, or leave it out"
        )
    return found


def _write(path: str, text: str) -> None:
    expanded(path).write_text(text, encoding="utf-8")
