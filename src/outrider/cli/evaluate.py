"""`outrider eval`: how much of what a drafter guesses is accepted."""

import argparse
import sys
import time
from dataclasses import asdict, replace
from typing import Any

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
from outrider.errors import ConfigError

CHAIN_LEN = 7


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "eval",
        help="measure how much of a drafter's guesses is accepted",
        description="Acceptance by domain and position, conditional and marginal, with intervals. "
        "Every drafted token is verified; the length counts the target's own token.",
    )
    add_prompt_set_options(parser)
    parser.add_argument(
        "--temperature",
        nargs="+",
        type=number,
        default=[0.0],
        metavar="T",
        dest="temperatures",
        help="temperatures to run at; the first gives the headline (default: 0)",
    )
    parser.add_argument(
        "--concurrency", type=integer(1), default=16, metavar="C", help="requests at a time"
    )
    parser.add_argument(
        "--max-tokens", type=integer(1), default=128, metavar="N", help="per prompt"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first prompt")
    parser.add_argument(
        "--resamples", type=integer(1), default=1000, metavar="N", help="of the bootstrap"
    )
    add_model_options(parser)
    add_speculation_options(parser, has_policy=False)
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Evaluate and report."""
    from outrider.analysis.acceptance_eval import EvalSetting, evaluate
    from outrider.analysis.acceptance_report import eval_lines, eval_record
    from outrider.analysis.environment import environment
    from outrider.analysis.prompts import load_prompts
    from outrider.cli.loading import load, require_drafter, speculation_record

    speculative = speculative_config(args)
    if speculative is None:
        raise ConfigError("there is nothing to evaluate with --draft off; name a drafter")
    draft_len = speculative.num_speculative_tokens or CHAIN_LEN
    speculative = replace(speculative, num_speculative_tokens=draft_len)
    setting = EvalSetting(
        temperatures=tuple(args.temperatures),
        max_tokens=args.max_tokens,
        draft_len=draft_len,
        concurrency=args.concurrency,
        seed=args.seed,
        raw=args.raw,
        resamples=args.resamples,
    )
    rows = load_prompts(args.prompts, limit=args.limit)
    require_drafter(speculative)
    console = Console(no_color=args.no_color)
    options = engine_options(args) | seats(setting.concurrency) | {"length_policy": "fixed"}
    llm = load(args, console, options, speculative)
    started = time.monotonic()
    report = evaluate(
        llm, rows, setting, lambda what, done, total: console.progress(what, done, total, started)
    )
    console.clear()
    for line in eval_lines(report):
        console.print(line)
    if args.json:
        console.print_json(
            {
                **eval_record(report),
                "model": args.model,
                "speculative_config": speculation_record(llm),
                "verify_rule": args.verify_rule,
                "backend": llm.backend,
                "setting": asdict(setting),
                "seconds": time.monotonic() - started,
                "environment": environment(["outrider", *sys.argv[1:]]),
            }
        )
    return 0
