"""`outrider certify`: is speculative output the plain output?"""

import argparse
import sys
import time
from dataclasses import asdict
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

CHECK_FAILED = 1


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "certify",
        help="prove that drafting changes nothing",
        description="Run every prompt plain and speculative and compare token for token; a "
        "difference is either a numeric tie, with its margin, or an error (exit code 1).",
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
    add_model_options(parser)
    add_speculation_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Certify; 1 if an output differs by more than rounding."""
    from outrider.analysis.certify import CertifySetting, certify, tolerance_record
    from outrider.analysis.environment import environment
    from outrider.analysis.prompts import load_prompts
    from outrider.analysis.render import certificate_lines
    from outrider.cli.loading import load, require_drafter, speculation_record

    speculative = speculative_config(args)
    if speculative is None:
        raise ConfigError("there is nothing to certify with --draft off; name a drafter")
    if args.verify_rule == "rejection" and 0 not in args.temperatures:
        raise ConfigError(
            "the rejection rule promises equal tokens at temperature 0 only; add 0 to --temperature"
        )
    setting = CertifySetting(
        temperatures=tuple(args.temperatures),
        concurrencies=tuple(args.concurrencies),
        max_tokens=args.max_tokens,
        seed=args.seed,
        raw=args.raw,
    )
    rows = load_prompts(args.prompts, limit=args.limit)
    require_drafter(speculative)
    console = Console(no_color=args.no_color)
    options = engine_options(args) | seats(max(args.concurrencies))
    plain = load(args, console, options, None)
    drafting = plain.sibling(speculative_config=speculative)
    started = time.monotonic()

    def show(what: str, done: int, total: int) -> None:
        console.progress(what, done, total, started)

    certificate = certify(plain, drafting, rows, setting, show)
    console.clear()
    for line in certificate_lines(certificate):
        console.print(line)
    if args.json:
        console.print_json(
            {
                "model": args.model,
                "speculative_config": speculation_record(drafting),
                "verify_rule": args.verify_rule,
                "backend": plain.backend,
                "tolerance": tolerance_record(plain.precision),
                "setting": asdict(setting),
                **certificate.record(),
                "seconds": time.monotonic() - started,
                "environment": environment(["outrider", *sys.argv[1:]]),
            }
        )
    return CHECK_FAILED if certificate.total.errors else 0
