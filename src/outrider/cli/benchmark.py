"""One call of `outrider bench run`."""

import argparse
import sys
import time
from dataclasses import asdict
from typing import Any

from outrider.analysis.baseline import bench_baseline
from outrider.analysis.bench import PLAIN, BenchSetting, bench
from outrider.analysis.environment import environment
from outrider.analysis.prompts import load_prompts
from outrider.analysis.render import baseline_lines, bench_lines
from outrider.analysis.whatif_log import log_text
from outrider.cli.console import Console
from outrider.cli.loading import load, require_drafter, speculation_record
from outrider.cli.options import engine_options, seats, speculative_config
from outrider.core.paths import expanded
from outrider.drafters.config import SpeculativeConfig
from outrider.errors import ConfigError


def run_bench(args: argparse.Namespace) -> int:
    """Measure and report."""
    speculative = None if args.plain_only or args.baseline_loop else speculative_config(args)
    setting = _setting(args)
    lines, record = _measure(args, setting, speculative)
    console = Console(no_color=args.no_color)
    for line in lines:
        console.print(line)
    if args.json:
        console.print_json(
            {
                "model": args.model,
                "verify_rule": args.verify_rule,
                "length_policy": args.length_policy,
                "setting": asdict(setting),
                **record,
                "environment": environment(["outrider", *sys.argv[1:]]),
            }
        )
    return 0


def _setting(args: argparse.Namespace) -> BenchSetting:
    if args.baseline_loop and (args.temperature != 0 or args.concurrency != 1):
        raise ConfigError(
            "--baseline-loop is greedy and serves one request at a time; "
            "leave --temperature and --concurrency out"
        )
    if args.baseline_loop and args.log is not None:
        raise ConfigError("--baseline-loop keeps no outputs; leave --log out")
    return BenchSetting(
        concurrency=args.concurrency,
        max_tokens=args.max_tokens,
        repeats=args.repeats,
        temperature=args.temperature,
        seed=args.seed,
        ignore_eos=args.ignore_eos,
        raw=args.raw,
    )


def _measure(
    args: argparse.Namespace, setting: BenchSetting, speculative: SpeculativeConfig | None
) -> tuple[list[str], dict[str, Any]]:
    """Give the report as lines and as a record."""
    rows = load_prompts(args.prompts, limit=args.limit)
    require_drafter(speculative)
    console = Console(no_color=args.no_color)
    options = engine_options(args) | seats(setting.concurrency) | {"prefix_caching": False}
    plain = load(args, console, options, None)
    computed: dict[str, Any] = {
        "speculative_config": None,
        "backend": plain.backend,
        "precision": plain.precision,
    }
    started = time.monotonic()

    def show(what: str, done: int, total: int) -> None:
        console.progress(what, done, total, started)

    try:
        if args.baseline_loop:
            baseline = bench_baseline(plain, rows, setting, show)
            return baseline_lines(baseline), computed | baseline.record()
        drafting = (
            None
            if speculative is None
            else plain.sibling(speculative_config=speculative, trace=args.trace)
        )
        computed["speculative_config"] = speculation_record(drafting or plain)
        report = bench(plain, drafting, rows, setting, show)
        if args.log is not None:
            outputs = [one for run in report.of(PLAIN, repeat=0) for one in run.outputs]
            expanded(args.log).write_text(log_text(outputs, args.model), "utf-8")
        return bench_lines(report), computed | report.record()
    finally:
        console.clear()
