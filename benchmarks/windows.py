"""Time of a verify window over that of a one-row step, on the native runner alone.

    python benchmarks/windows.py MODEL.gguf [--threads 2] [--context 200] [--repeats 15]

Sizes take turns, so a machine that slows down slows all of them. Printed per size: the best and the
median time, and both over those of one row. The best one is what the machine can do; where other
programs run beside it, the median is what is left. The last line is JSON.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Final

from outrider.core.ids import BlockId
from outrider.models.checkpoint import open_checkpoint
from outrider.native.runner import Machine
from outrider.target.native_target import NativeTarget
from outrider.target.native_weights import load_native
from outrider.tensor.span import Span

WINDOWS: Final = (1, 2, 4, 8, 16, 32, 64)
PREFILL: Final = 512
BLOCK_SIZE: Final = 16


def measure(path: Path, threads: int, context: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of every repetition, by case."""
    model = load_native(open_checkpoint(path), Machine(threads, "auto"))
    num_blocks = (context + max(*WINDOWS, PREFILL)) // BLOCK_SIZE + 1
    target = NativeTarget(model, num_blocks=num_blocks, block_size=BLOCK_SIZE)
    table = [BlockId(i) for i in range(num_blocks)]
    cases = {f"prefill_{PREFILL}": Span(list(range(10, 10 + PREFILL)), 0, table, 1)}
    for rows in WINDOWS:
        cases[f"window_{rows}"] = Span(list(range(10, 10 + rows)), context, table, rows)
    times: dict[str, list[float]] = {name: [] for name in cases}
    for repeat in range(repeats + 1):
        for name, span in cases.items():
            started = time.perf_counter()
            target.score_spans([span])
            if repeat:  # The first round warms up.
                times[name].append(time.perf_counter() - started)
    return times


def main() -> None:
    """Measure, print a table, end with JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    times = measure(args.model, args.threads, args.context, args.repeats)
    figures = {
        name: {"best_ms": 1e3 * min(own), "median_ms": 1e3 * statistics.median(own)}
        for name, own in times.items()
    }
    one = figures["window_1"]
    for name, own in figures.items():
        ratios = [own[kind] / one[kind] for kind in ("best_ms", "median_ms")]
        print(
            f"{name:12} best {own['best_ms']:9.2f} ms ({ratios[0]:6.2f})   "
            f"median {own['median_ms']:9.2f} ms ({ratios[1]:6.2f})"
        )
    sys.stdout.write(json.dumps({"model": args.model.name, "cases": figures}) + "\n")


if __name__ == "__main__":
    main()
