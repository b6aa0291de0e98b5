"""Predictions against runs: `estimate` (speedup), `whatif` (tokens per second), `recommend`.

    python benchmarks/whatif_check.py --prompts FILE.jsonl … [--draft suffix auto]

One process, one set of weights. Step costs are measured first, then at each concurrency every side,
plain decoding and each drafter at each fixed length and with the throughput policy, serves the same
prompts in turns, in an order that rotates. From the rounds and times of the longest length alone,
`whatif` predicts the tokens per second of all sides and `estimate` the speedups of fixed lengths;
`recommend` chooses from the same, and the side it chose is compared with the best one. The last
line is JSON.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from outrider.analysis.benefit import outlook
from outrider.analysis.closed_loop import Job, jobs_of
from outrider.analysis.environment import environment
from outrider.analysis.estimate import measured_in_trace, table_regimes
from outrider.analysis.prompts import load_prompts
from outrider.analysis.recommend import (
    FIXED,
    NO_DRAFTS,
    OFF,
    THROUGHPUT,
    Candidate,
    Targets,
    TracedEvidence,
    recommend,
)
from outrider.analysis.tables import table
from outrider.analysis.whatif import PLAIN, Load, Scenario, Setting, simulate
from outrider.analysis.whatif_trace import Recorded, TraceDrafter, fitted, recorded
from outrider.core.acceptance import Acceptance
from outrider.core.ids import RequestId
from outrider.core.request import Request, SamplingParams
from outrider.core.step_cost import StepCostTable
from outrider.core.trace import TraceHeader
from outrider.engine.config import EngineConfig
from outrider.engine.continuation import continuation_seed
from outrider.engine.llm import LLM
from outrider.engine.resolve import resolve, surroundings_of
from outrider.engine.scheduling import Surroundings, cached_table
from outrider.schedule.cost import StepCost, faults_of

MOST_MEASUREMENTS = 3


@dataclass(frozen=True, slots=True)
class Side:
    """What serves: an engine, and the draft length its requests ask for; 0 is plain."""

    draft: str
    policy: str
    length: int
    llm: LLM

    @property
    def name(self) -> str:
        """How `recommend` calls it."""
        return NO_DRAFTS.name if self.draft == PLAIN else self.candidate.name

    @property
    def candidate(self) -> Candidate:
        """What `recommend` would choose it as."""
        return Candidate(self.draft, self.policy, self.length)


@dataclass(frozen=True, slots=True)
class Priced:
    """A table, and which of its drafters drafts."""

    costs: StepCostTable
    drafter: str


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


def usable_table(around: Surroundings) -> StepCostTable:
    """Measure step costs; again if something else disturbed them."""
    for _ in range(MOST_MEASUREMENTS):
        costs = around.measure()
        if not any(fault.is_fatal for fault in faults_of(costs)):
            return costs
    raise SystemExit("step costs cannot be measured while the machine is this busy")


def sides_of(args: argparse.Namespace, most: int) -> tuple[list[Side], dict[str, Priced]]:
    """Load the weights once; measure the step costs of every drafter."""
    options: dict[str, Any] = {
        "threads": args.threads,
        "max_num_seqs": most,
        "prefix_caching": False,
        "max_num_batched_tokens": args.max_num_batched_tokens,
    }
    plain = LLM(args.model, **options)
    sides, tables = [Side(PLAIN, OFF, 0, plain)], {}
    for draft in args.draft:
        speculative = {"method": draft, "num_speculative_tokens": max(args.lengths)}
        llm = plain.sibling(speculative_config=speculative, length_policy="fixed")
        sides += [Side(draft, FIXED, length, llm) for length in args.lengths]
        assert llm.config.speculative is not None
        plan = resolve(
            EngineConfig(model=args.model, speculative=llm.config.speculative, **options)
        )
        around = surroundings_of(plan, plan.backend.load(plan.checkpoint))
        costs = cached_table(around) if args.cached_costs else usable_table(around)
        tables[draft] = Priced(costs, around.drafter)
        path = Path(args.folder) / f"{draft}.json"
        path.write_text(costs.to_json(), "utf-8")
        weighing = plain.sibling(
            speculative_config=speculative, length_policy=THROUGHPUT, cost_table=str(path)
        )
        sides.append(Side(draft, THROUGHPUT, max(args.lengths), weighing))
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


def whatif_of(record: Recorded, cost: StepCost, concurrency: int, side: Side) -> float:
    """Predict the tokens per second of a side."""
    scenario = Scenario(PLAIN, None, cost, OFF)
    if side.length:
        scenario = Scenario(
            "", lambda served: TraceDrafter(record, served, side.length), cost, side.policy
        )
    setting = Setting(num_requests=len(record.requests))
    return simulate(record.requests, scenario, Load(concurrency), setting).throughput


@dataclass(frozen=True, slots=True)
class Known:
    """What the longest fixed side of one drafter tells: its trace, and the costs fitted to it."""

    record: Recorded
    cost: StepCost
    speedups: Sequence[float]
    """By length, as `estimate` computes them."""

    @classmethod
    def of(cls, draft: str, served: Served, priced: Priced, side: Side, seats: int) -> Self:
        """Take the trace apart."""
        header = TraceHeader("", "", draft, side.length, "matching", FIXED).to_line()
        lines = [header, *served.lines]
        record = recorded(lines, side.name)
        said = measured_in_trace(lines, side.name)
        assert said.lengths is not None
        context = round(said.lengths[0] + said.lengths[1] / 2)
        costs, name = priced.costs, priced.drafter
        regimes = table_regimes(
            costs, [seats], context_len=context, drafter=name, lengths=said.lengths
        )
        cost = StepCost(fitted(costs, name, record.steps).table, name)
        return cls(record, cost, outlook(said.model, regimes[0], side.length).speedups)


def compare(
    sides: Sequence[Side],
    found: dict[str, Served],
    tables: dict[str, Priced],
    concurrency: int,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Predict every side from its drafter's longest and choose one, beside what was measured."""
    rows, evidence = [], []
    plain = found[sides[0].name].throughput
    for draft, priced in tables.items():
        own = [side for side in sides if side.draft == draft]
        fixed = [side for side in own if side.policy == FIXED]
        longest = max(fixed, key=lambda side: side.length)
        known = Known.of(draft, found[longest.name], priced, longest, concurrency)
        lengths = [side.length for side in fixed]
        setting = Setting(num_requests=len(known.record.requests))
        evidence.append(TracedEvidence(known.record, known.cost, lengths, setting, drafter=draft))
        for side in [sides[0], *own]:
            served = found[side.name]
            told = whatif_of(known.record, known.cost, concurrency, side)
            is_known = side.policy != THROUGHPUT and side.length < len(known.speedups)
            said = known.speedups[side.length] if is_known else None
            rows.append(
                {
                    "concurrency": concurrency,
                    "draft": draft,
                    "side": side.name,
                    "measured": served.throughput,
                    "whatif": told,
                    "whatif_error": told / served.throughput - 1,
                    "speedup": served.throughput / plain,
                    "estimate": said,
                    "estimate_error": said and said * plain / served.throughput - 1,
                    "tokens_per_round": served.acceptance.acceptance_length,
                }
            )
    chosen = recommend(evidence, {concurrency: 1.0}, Targets()).choice.name
    best = max(found, key=lambda name: found[name].throughput)
    loss = 1 - found[chosen].throughput / found[best].throughput
    return rows, {"concurrency": concurrency, "chosen": chosen, "best": best, "loss": loss}


def lines_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Show predicted beside measured."""
    head = ["", "tokens/s", "whatif", "error", "speedup", "estimate", "error", "tokens/round"]
    body = [
        [
            f"{row['concurrency']} at a time, {row['draft']}: {row['side']}",
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
    with tempfile.TemporaryDirectory() as args.folder:
        sides, tables = sides_of(args, max(args.concurrency))
    params = SamplingParams(temperature=0.0, max_tokens=args.max_tokens, seed=0)
    jobs = jobs_of(sides[0].llm, prompts, params)
    for side in sides:
        warm = [replace(job, params=replace(job.params, max_tokens=8)) for job in jobs[:4]]
        serve(side, warm, 4, Served())
    rows, choices = [], []
    for concurrency in args.concurrency:
        found = measure(sides, jobs, concurrency, args.repeats)
        more, choice = compare(sides, found, tables, concurrency)
        rows += more
        choices.append(choice)
    print("\n".join(lines_of(rows)))
    for one in choices:
        print(
            f"{one['concurrency']} at a time: recommended {one['chosen']}, best {one['best']}, "
            f"lost by it {one['loss']:.1%}"
        )
    record = {"rows": rows, "choices": choices, "args": vars(args)}
    print(json.dumps({**record, "environment": environment(sys.argv)}))


if __name__ == "__main__":
    main()
