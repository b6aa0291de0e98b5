"""Predictions against runs: `estimate` (speedup), `whatif` (tokens per second), `recommend`.

    python benchmarks/whatif_check.py --prompts FILE.jsonl … [--draft suffix auto]

One process, one set of weights. Step costs are measured first, then at each concurrency every side,
plain decoding and each drafter at each fixed length, serves the same prompts in turns, in an order
that rotates. From the rounds and times of the longest length alone, `whatif` predicts the tokens
per second of the others and of plain decoding, and `estimate` their speedups; a choice is made as
`recommend` makes it and compared with the best side found. The last line is JSON.
"""

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.analysis.benefit import outlook
from outrider.analysis.closed_loop import Job, jobs_of
from outrider.analysis.environment import environment
from outrider.analysis.estimate import measured_in_trace, table_regimes
from outrider.analysis.prompts import load_prompts
from outrider.analysis.tables import table
from outrider.analysis.whatif import PLAIN, Load, Scenario, Setting, simulate
from outrider.analysis.whatif_trace import Recorded, TraceDrafter, fitted, recorded
from outrider.core.acceptance import Acceptance
from outrider.core.ids import RequestId
from outrider.core.request import Request, SamplingParams
from outrider.core.step_cost import StepCostTable
from outrider.core.trace import TraceHeader
from outrider.engine.config import EngineConfig
from outrider.engine.llm import LLM, continuation_seed
from outrider.engine.resolve import resolve, surroundings_of
from outrider.engine.scheduling import cached_table
from outrider.schedule.cost import StepCost


@dataclass(frozen=True, slots=True)
class Side:
    """What serves: an engine and the draft length its requests ask for; 0 is plain."""

    name: str
    draft: str
    llm: LLM
    length: int


@dataclass(slots=True)
class Served:
    """What one side did at one concurrency, over all turns. `lines` are its steps, as a trace."""

    tokens: int = 0
    seconds: float = 0.0
    acceptance: Acceptance = field(default_factory=Acceptance)
    lines: list[str] = field(default_factory=list)

    @property
    def throughput(self) -> float:
        """Tokens per second, prompts included."""
        return self.tokens / self.seconds


def serve(side: Side, jobs: Sequence[Job], concurrency: int, into: Served) -> None:
    """Run jobs in a closed loop; add to `into`."""
    waiting, running, number = deque(jobs), 0, 0
    reports = []
    begun = time.perf_counter()
    while waiting or running:
        while waiting and running < concurrency:
            job = waiting.popleft()
            params = replace(job.params, max_draft_len=side.length)
            seed = continuation_seed(params.seed or 0)
            side.llm.engine.add(Request(RequestId(f"job-{number}"), job.prompt, params, seed))
            running, number = running + 1, number + 1
        report = side.llm.engine.step()
        reports.append(report)
        running -= sum(delta.finish is not None for delta in report.deltas)
    into.seconds += time.perf_counter() - begun
    for report in reports:
        into.acceptance.add(report.acceptance)
        into.lines.append(report.trace().to_line())
    into.tokens = into.acceptance.delivered


def sides_of(args: argparse.Namespace, most: int) -> tuple[list[Side], dict[str, StepCostTable]]:
    """Load the weights once; measure the step costs of every drafter."""
    options: dict[str, Any] = {
        "threads": args.threads,
        "max_num_seqs": most,
        "prefix_caching": False,
        "max_num_batched_tokens": args.max_num_batched_tokens,
    }
    plain = LLM(args.model, **options)
    sides, tables = [Side(PLAIN, PLAIN, plain, 0)], {}
    for draft in args.draft:
        speculative = {"method": draft, "num_speculative_tokens": max(args.lengths)}
        llm = plain.sibling(speculative_config=speculative)
        sides += [Side(f"{draft} {length}", draft, llm, length) for length in args.lengths]
        assert llm.config.speculative is not None
        plan = resolve(
            EngineConfig(model=args.model, speculative=llm.config.speculative, **options)
        )
        around = surroundings_of(plan, plan.backend.load(plan.checkpoint))
        tables[draft] = cached_table(around) if args.cached_costs else around.measure()
    return sides, tables


def measure(
    sides: Sequence[Side], jobs: Sequence[Job], concurrency: int, repeats: int
) -> dict[str, Served]:
    """Let the sides take turns on groups of prompts."""
    size = 1 if concurrency == 1 else max(2 * concurrency, len(jobs))
    jobs = [jobs[n % len(jobs)] for n in range(max(len(jobs), size))]
    groups = [jobs[start : start + size] for start in range(0, len(jobs), size)]
    found = {side.name: Served() for side in sides}
    for turn in range(repeats * len(groups)):
        first = turn % len(sides)
        for side in [*sides[first:], *sides[:first]]:
            serve(side, groups[turn % len(groups)], concurrency, found[side.name])
        sys.stderr.write(f"{concurrency} at a time: {turn + 1}/{repeats * len(groups)}\n")
    return found


def whatif_of(record: Recorded, costs: StepCostTable, concurrency: int, length: int) -> float:
    """Predict tokens per second of one length; 0 is plain."""
    name = next(iter(costs.drafting))
    fit = fitted(costs, name, record.steps)
    cost = StepCost(fit.table, name)
    scenario = Scenario("", lambda served: TraceDrafter(record, served, length), cost)
    if not length:
        scenario = Scenario(PLAIN, None, cost, "off")
    setting = Setting(num_requests=len(record.requests))
    return simulate(record.requests, scenario, Load(concurrency), setting).throughput


def compare(
    sides: Sequence[Side],
    found: dict[str, Served],
    tables: dict[str, StepCostTable],
    concurrency: int,
) -> list[dict[str, Any]]:
    """Predict every side from its drafter's longest, and put the measured number beside."""
    rows = []
    for draft, costs in tables.items():
        own = [side for side in sides if side.draft == draft]
        longest = max(own, key=lambda side: side.length)
        header = TraceHeader("", "", draft, longest.length, "matching", "fixed").to_line()
        lines = [header, *found[longest.name].lines]
        record = recorded(lines, longest.name)
        said = measured_in_trace(lines, longest.name)
        assert said.lengths is not None
        context = round(said.lengths[0] + said.lengths[1] / 2)
        regimes = table_regimes(costs, [concurrency], context_len=context, lengths=said.lengths)
        expected = outlook(said.model, regimes[0], longest.length).speedups
        plain = found[PLAIN].throughput
        for side in [sides[0], *own]:
            served = found[side.name]
            told = whatif_of(record, costs, concurrency, side.length)
            is_known = side.length < len(expected)
            rows.append(
                {
                    "concurrency": concurrency,
                    "draft": draft,
                    "length": side.length,
                    "measured": served.throughput,
                    "whatif": told,
                    "whatif_error": told / served.throughput - 1,
                    "speedup": served.throughput / plain,
                    "estimate": expected[side.length] if is_known else None,
                    "estimate_error": expected[side.length] * plain / served.throughput - 1
                    if is_known
                    else None,
                    "tokens_per_round": served.acceptance.acceptance_length,
                }
            )
    return rows


def lines_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Show predicted beside measured."""
    head = ["", "tokens/s", "whatif", "error", "speedup", "estimate", "error", "tokens/round"]
    body = [
        [
            f"{row['draft']} {row['length']}, {row['concurrency']} at a time",
            f"{row['measured']:.1f}",
            f"{row['whatif']:.1f}",
            f"{row['whatif_error']:+.1%}",
            f"{row['speedup']:.3f}",
            "-" if row["estimate"] is None else f"{row['estimate']:.3f}",
            "-" if row["estimate"] is None else f"{row['estimate_error']:+.1%}",
            f"{row['tokens_per_round']:.2f}",
        ]
        for row in rows
    ]
    return table([head, *body])


def main() -> None:
    """Measure, predict and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", nargs="+", required=True)
    parser.add_argument("--limit", type=int, default=2, help="prompts of each file")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft", nargs="+", default=["suffix", "auto"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 3, 5, 7])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cached-costs", action="store_true", help="do not measure them anew")
    args = parser.parse_args()
    files = [load_prompts([path], limit=args.limit) for path in args.prompts]
    # In turns, so that every group is mixed.
    prompts = [file[n] for n in range(max(map(len, files))) for file in files if n < len(file)]
    sides, tables = sides_of(args, max(args.concurrency))
    params = SamplingParams(temperature=0.0, max_tokens=args.max_tokens, seed=0)
    jobs = jobs_of(sides[0].llm, prompts, params)
    for side in sides:
        warm = [replace(job, params=replace(job.params, max_tokens=8)) for job in jobs[:4]]
        serve(side, warm, 4, Served())
    rows = []
    for concurrency in args.concurrency:
        found = measure(sides, jobs, concurrency, args.repeats)
        rows += compare(sides, found, tables, concurrency)
    print("\n".join(lines_of(rows)))
    print(json.dumps({"rows": rows, "args": vars(args), "environment": environment(sys.argv)}))


if __name__ == "__main__":
    main()
