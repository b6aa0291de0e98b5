"""One call of `outrider doctor`."""

import argparse
import sys
import time
from functools import partial

from outrider.analysis.doctor.examine import SELF_TEST_CACHE, Examination, examine
from outrider.analysis.doctor.findings import report_lines
from outrider.analysis.doctor.machine import Computing, MachineFacts
from outrider.analysis.doctor.pair import open_pair
from outrider.analysis.doctor.prompts import SELF_TEST_PROMPTS
from outrider.analysis.doctor.self_test import SelfTestSetting
from outrider.analysis.environment import environment
from outrider.analysis.prompts import load_prompts
from outrider.cli.console import Console
from outrider.cli.loading import load
from outrider.cli.options import engine_options
from outrider.engine.config import EngineConfig
from outrider.engine.resolve import EnginePlan, resolve
from outrider.interop.speculators import flat_fields
from outrider.models.checkpoint import open_checkpoint

CHECK_FAILED = 1


def run_doctor(args: argparse.Namespace) -> int:
    """Examine and report; 1 if an error was found."""
    started = time.monotonic()
    console = Console(no_color=args.no_color)
    rows = SELF_TEST_PROMPTS
    if args.prompts is not None:
        rows = tuple(load_prompts(args.prompts, limit=args.limit))
    target = open_checkpoint(args.model)
    options = engine_options(args)
    plan = resolve(EngineConfig(model=args.model, **options), target)
    own = options | {"kv_cache_tokens": SELF_TEST_CACHE}
    how = Examination(
        computing=computing_of(plan),
        machine=MachineFacts.here(),
        setting=SelfTestSetting(rows=rows, max_tokens=args.max_tokens, raw=args.raw),
        load=partial(load, args, console, own, None) if args.self_test else None,
    )
    pair = open_pair(target, args.drafter, args.draft_len, flat_fields)
    with console.working("examining"):
        report = examine(pair, how)
    for line in report_lines(report):
        console.print(line)
    if args.json:
        console.print_json(
            {
                "model": args.model,
                "drafter": args.drafter,
                "backend": plan.backend.name,
                **report.record(),
                "seconds": time.monotonic() - started,
                "environment": environment(["outrider", *sys.argv[1:]]),
            }
        )
    return 0 if report.is_healthy else CHECK_FAILED


def computing_of(plan: EnginePlan) -> Computing:
    """Say how an engine of this plan computes."""
    config = plan.config
    asks_for_torch = config.backend == "torch" or config.dtype is not None or config.device != "cpu"
    return Computing(
        backend=plan.backend.name,
        dtype=plan.backend.precision,
        is_fallback=plan.backend.name == "torch" and not asks_for_torch,
        threads=config.threads,
        kv_tokens=plan.num_kv_blocks * config.block_size,
    )
