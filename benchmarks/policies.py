"""The throughput policy against plain decoding and every fixed length, at several loads.

    python benchmarks/policies.py --prompts FILE.jsonl … [--minutes 12] [--out turns.jsonl]

One process, one set of weights. At each concurrency the sides take turns on the same group of
prompts, in an order that rotates, so that what drifts on a machine hits all of them. Two
throughputs are given, each as the median over the turns of the ratio to plain decoding in the same
turn: end to end, prompts included, and *steady*, over the steps in which all seats decode and none
reads a prompt, which is what a verify length can change. Requests of one length end together under
plain decoding and one by one under speculation, so end to end the last ones leave seats empty.

Each load gets the same share of `--minutes`: at least one turn of every side, at most `--repeats`.
Turns are written to `--out` as they are made; a run that was broken off goes on behind the last
whole round of turns. The last line is JSON.

With `--priced` a step counts what the table named by `--cost-table` says of its rows, context and
requests, instead of what the clock said: policies can then be compared on a machine that is busy.
"""

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from outrider.analysis.closed_loop import Job, jobs_of
from outrider.analysis.environment import environment
from outrider.analysis.prompts import PromptRow, load_prompts
from outrider.analysis.tables import table
from outrider.core.ids import RequestId
from outrider.core.request import Request, SamplingParams
from outrider.core.step_cost import StepCostTable
from outrider.engine.continuation import continuation_seed
from outrider.engine.llm import LLM
from outrider.engine.report import StepReport
from outrider.engine.scheduling import read_text
from outrider.schedule.cost import StepCost

PLAIN, THROUGHPUT = "plain", "throughput"
# A step that asks nobody for drafts spends less than this on not asking.
ASKED_SECONDS = 1e-5


@dataclass(slots=True)
class Turn:
    """One group of prompts on one side."""

    tokens: int = 0
    seconds: float = 0.0
    steady_tokens: int = 0
    steady_seconds: float = 0.0
    rounds: int = 0
    verified: int = 0
    accepted: int = 0

    @property
    def throughput(self) -> float:
        """Tokens per second, prompts included."""
        return self.tokens / self.seconds

    @property
    def steady(self) -> float:
        """Tokens per second while all seats decode."""
        return self.steady_tokens / self.steady_seconds if self.steady_seconds else float("nan")


Turns = dict[str, Turn]
"""One turn of every side, on the same prompts."""


def priced_seconds(report: StepReport, cost: StepCost) -> float:
    """What the table says of a step."""
    num_rounds = len(report.rounds)
    seconds = cost.step(report.num_tokens, num_rounds, report.context_len)
    is_drafting = report.times.draft > ASKED_SECONDS
    return seconds + (cost.drafting(num_rounds) if is_drafting else 0.0)


def run_turn(llm: LLM, jobs: Sequence[Job], concurrency: int, cost: StepCost | None = None) -> Turn:
    """Run jobs, `concurrency` at a time; with `cost`, steps are priced and not timed."""
    waiting, running, turn = deque(jobs), 0, Turn()
    numbers = iter(range(len(jobs)))
    begun = time.perf_counter()
    while waiting or running:
        while waiting and running < concurrency:
            job = waiting.popleft()
            seed = continuation_seed(job.params.seed or 0)
            name = RequestId(f"job-{next(numbers)}")
            llm.engine.add(Request(name, job.prompt, job.params, seed))
            running += 1
        started = time.perf_counter()
        report = llm.engine.step()
        seconds = time.perf_counter() - started
        if cost is not None:
            seconds = priced_seconds(report, cost)
            turn.seconds += seconds
        counts = report.acceptance
        is_decoding = report.num_tokens - counts.verified == report.num_requests
        if is_decoding and len(report.rounds) == concurrency:
            turn.steady_seconds += seconds
            turn.steady_tokens += counts.delivered
        turn.rounds += counts.rounds
        turn.verified += counts.verified
        turn.accepted += counts.accepted
        turn.tokens += counts.delivered
        running -= sum(delta.finish is not None for delta in report.deltas)
    if cost is None:
        turn.seconds = time.perf_counter() - begun
    return turn


def sides_of(args: argparse.Namespace) -> dict[str, tuple[LLM, int | None]]:
    """Give every side: its engine and the draft length its requests ask for."""
    most = max(args.concurrency)
    options: dict[str, Any] = {"max_num_seqs": most, "prefix_caching": False}
    plain = LLM(
        args.model,
        backend="auto",
        threads=args.threads,
        kv_cache_tokens=most * args.tokens_per_request,
        **options,
    )
    speculative = {"method": args.draft, "num_speculative_tokens": args.draft_len}
    if args.draft_model:
        speculative["model"] = args.draft_model
    fixed = plain.sibling(speculative_config=speculative, length_policy="fixed")
    weighing = plain.sibling(
        speculative_config=speculative, length_policy="throughput", cost_table=args.cost_table
    )
    sides: dict[str, tuple[LLM, int | None]] = {PLAIN: (plain, None)}
    sides |= {f"fixed {length}": (fixed, length) for length in args.lengths}
    return sides | {THROUGHPUT: (weighing, None)}


def measure(
    sides: dict[str, tuple[LLM, int | None]],
    rows: Sequence[PromptRow],
    concurrency: int,
    args: argparse.Namespace,
    done: Sequence[Turns],
) -> Iterator[Turns]:
    """Let the sides take turns on groups of prompts, after those that are `done`."""
    params = SamplingParams(
        temperature=args.temperature, max_tokens=args.max_tokens, ignore_eos=True, seed=0
    )
    jobs = jobs_of(sides[PLAIN][0], rows, params)
    cost = priced_by(args)
    size = concurrency * max(1, -(-args.prompts_per_turn // concurrency))
    begun, share = time.monotonic(), 60 * args.minutes / len(args.concurrency)
    for number in range(len(done), args.repeats):
        made = number - len(done)
        if made and (time.monotonic() - begun) * (made + 1) / made > share:
            return
        chosen = [jobs[(number * size + index) % len(jobs)] for index in range(size)]
        order = list(sides)
        order = order[number % len(order) :] + order[: number % len(order)]
        turns: Turns = {}
        for name in order:
            llm, length = sides[name]
            own = [replace(j, params=replace(j.params, max_draft_len=length)) for j in chosen]
            turns[name] = run_turn(llm, own, concurrency, cost)
            sys.stderr.write(f"{concurrency}: {name} {turns[name].steady:.0f} tokens/s\n")
        yield turns


def priced_by(args: argparse.Namespace) -> StepCost | None:
    """Read the table that steps are priced with, if they are."""
    if not args.priced:
        return None
    table = StepCostTable.from_json(read_text(args.cost_table), args.cost_table)
    return StepCost(table, next(iter(table.drafting), None))


def record_of(rounds: Sequence[Turns]) -> dict[str, dict[str, float]]:
    """Median ratios to plain, and what the side accepted."""
    result = {}
    for name in rounds[0]:
        pairs = [(turns[name], turns[PLAIN]) for turns in rounds]
        num_rounds = sum(turn.rounds for turn, _ in pairs)
        result[name] = {
            "steady": median(turn.steady / plain.steady for turn, plain in pairs),
            "end_to_end": median(turn.throughput / plain.throughput for turn, plain in pairs),
            "steady_throughput": median(turn.steady for turn, _ in pairs),
            "acceptance_length": 1 + sum(turn.accepted for turn, _ in pairs) / num_rounds,
            "verified_per_round": sum(turn.verified for turn, _ in pairs) / num_rounds,
            "turns": len(pairs),
        }
    return result


def verdict_of(record: dict[str, dict[str, float]], key: str) -> list[str]:
    """How the policy compares with the best of all others and with the longest fixed length."""
    others = {name: own[key] for name, own in record.items() if name != THROUGHPUT}
    best = max(others, key=lambda name: others[name])
    longest = list(others)[-1]
    own = record[THROUGHPUT]
    lost = 1 - own["acceptance_length"] / record[longest]["acceptance_length"]
    return [
        f"{own[key]:.3f}",
        f"{own[key] / others[best]:.3f} ({best})",
        f"{own[key] / others[longest]:.2f}",
        f"{lost:.1%}",
        f"{own['turns']}",
    ]


class Log:
    """Turns on disk, a line per round of turns; without a path nothing is kept."""

    def __init__(self, path: Path | None, key: dict[str, Any]) -> None:
        """Read what is there; turns made with other options are refused."""
        self._path, self._key = path, key
        self.done: dict[int, list[Turns]] = {}
        if path is None or not path.exists():
            return
        for line in path.read_text("utf-8").splitlines():
            entry = json.loads(line)
            if entry["key"] != key:
                sys.exit(f"{path} holds turns made with other options; name another file")
            turns = {name: Turn(**own) for name, own in entry["turns"].items()}
            self.done.setdefault(entry["concurrency"], []).append(turns)

    def add(self, concurrency: int, turns: Turns) -> None:
        """Keep a round of turns."""
        self.done.setdefault(concurrency, []).append(turns)
        if self._path is not None:
            record = {name: asdict(turn) for name, turn in turns.items()}
            entry = {"key": self._key, "concurrency": concurrency, "turns": record}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", nargs="+", required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--draft-model")
    parser.add_argument("--draft-len", type=int, default=7)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 3, 5, 7])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--prompts-per-turn", type=int, default=10, help="at least one per seat")
    parser.add_argument("--repeats", type=int, default=9, help="turns of each side, at most")
    parser.add_argument("--minutes", type=float, default=12.0, help="for all loads together")
    parser.add_argument("--out", type=Path, help="file of turns, to go on with")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tokens-per-request", type=int, default=768)
    parser.add_argument("--cost-table")
    parser.add_argument("--priced", action="store_true")
    args = parser.parse_args()
    files = [load_prompts([path], limit=args.limit) for path in args.prompts]
    # In turns, so that every group is mixed.
    rows = [file[n] for n in range(max(map(len, files))) for file in files if n < len(file)]
    sides = sides_of(args)
    free = {"concurrency", "repeats", "minutes", "out"}
    log = Log(args.out, {name: own for name, own in vars(args).items() if name not in free})
    results = {}
    for concurrency in args.concurrency:
        for turns in measure(sides, rows, concurrency, args, log.done.get(concurrency, [])):
            log.add(concurrency, turns)
        results[concurrency] = record_of(log.done[concurrency])
    report(results, sides, args)


def report(
    results: dict[int, dict[str, dict[str, float]]],
    sides: Iterable[str],
    args: argparse.Namespace,
) -> None:
    """Print tables for people and a line for programs."""
    for key in ("steady", "end_to_end", "acceptance_length"):
        body = [
            [str(concurrency), *(f"{own[name][key]:.3f}" for name in sides)]
            for concurrency, own in results.items()
        ]
        print(f"{key}, {args.draft}")
        print("\n".join(table([["requests", *sides], *body])), end="\n\n")
    head = ["requests", THROUGHPUT, "of the best", "over the longest", "acceptance lost", "turns"]
    body = [[str(load), *verdict_of(own, "steady")] for load, own in results.items()]
    print("\n".join(table([head, *body])), end="\n\n")
    options = {name: own for name, own in vars(args).items() if name != "out"}
    print(
        json.dumps(
            {"results": results, "args": options, "environment": environment(sys.argv)},
            allow_nan=True,
        )
    )


if __name__ == "__main__":
    main()
