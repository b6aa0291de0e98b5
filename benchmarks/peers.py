"""Outrider's native runner against llama.cpp: same GGUF file, same threads, one process, in turns.

    pip install llama-cpp-python
    python benchmarks/peers.py MODEL.gguf [--threads 2] [--repeats 9] [--json out.json]

Every round measures both sides of every case, one right after the other, so a machine that slows
down slows both; the figure of a case is the median, and the ratio is the median of the rounds'
ratios. Greedy, batch one: *decode* is tokens/s of one request after a prompt of CONTEXT tokens
(Outrider's through the whole engine, llama.cpp's through a bare loop around `llama_decode`);
*window* is the time of one forward over n rows behind that context, with logits for every row;
*prefill* reads 512 tokens. The last line of stdout is one JSON object.
"""

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from outrider import LLM, SamplingParams
from outrider.analysis.environment import environment
from outrider.core.ids import BlockId
from outrider.tensor.span import Span

CONTEXT = 200
DECODED = 64
PREFILL = 512
WINDOWS = (1, 2, 4, 8, 16, 32, 64)


class Outrider:
    """The engine with speculation off, and a bare target over the same weights."""

    def __init__(self, path: str, threads: int) -> None:
        self.llm = LLM(
            path, backend="native", threads=threads, prefix_caching=False, kv_cache_tokens=4096
        )
        self.target = self.llm.new_target(2048)
        size = self.llm.config.block_size
        self._table = [BlockId(i) for i in range(2048 // size)]

    def window(self, rows: int) -> Callable[[], None]:
        span = Span(list(range(10, 10 + rows)), CONTEXT, self._table, rows)
        return lambda: self.target.score_spans([span]) and None

    def prefill(self) -> None:
        self.target.score_spans([Span(list(range(10, 10 + PREFILL)), 0, self._table, 1)])

    def decode(self, prompt: list[int]) -> float:
        """Seconds per token after the first."""
        params = SamplingParams(max_tokens=DECODED, temperature=0, ignore_eos=True)
        done = self.llm.generate([prompt], params)[0].outputs[0]
        return (done.finish_time - done.first_token_time) / (DECODED - 1)

    def bare_decode(self, prompt: list[int]) -> float:
        """Seconds per token of a loop around the forward, without the engine."""
        logits = self.target.score_spans([Span(prompt, 0, self._table, 1)]).logits
        started = time.perf_counter()
        for position in range(len(prompt), len(prompt) + DECODED - 1):
            token = int(logits[-1].argmax())
            logits = self.target.score_spans([Span([token], position, self._table, 1)]).logits
        return (time.perf_counter() - started) / (DECODED - 1)


class LlamaCpp:
    """llama.cpp through the low-level binding of llama-cpp-python."""

    def __init__(self, path: str, threads: int) -> None:
        import llama_cpp

        self.api = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        setting = llama_cpp.llama_context_default_params()
        setting.n_ctx, setting.n_batch, setting.n_ubatch = 2048, PREFILL, PREFILL
        setting.n_threads = setting.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(model, setting)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(PREFILL, 0, 1)
        self.forward_seconds = 0.0

    def _run(self, tokens: list[int], start: int, *, all_logits: bool) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, start + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = all_logits or i == len(tokens) - 1
        started = time.perf_counter()
        failed = self.api.llama_decode(self._context, batch)
        self.forward_seconds += time.perf_counter() - started
        if failed:
            raise RuntimeError("llama_decode failed")

    def _forget(self, start: int) -> None:
        memory = self.api.llama_get_memory(self._context)
        self.api.llama_memory_seq_rm(memory, 0, start, -1)

    def fill(self) -> None:
        """Put CONTEXT tokens into the cache, for `window`."""
        self._forget(0)
        self._run(list(range(10, 10 + CONTEXT)), 0, all_logits=False)

    def window(self, rows: int) -> Callable[[], None]:
        tokens = list(range(10, 10 + rows))

        def run() -> None:
            self._run(tokens, CONTEXT, all_logits=True)
            self._forget(CONTEXT)

        return run

    def prefill(self) -> None:
        self._forget(0)
        self._run(list(range(10, 10 + PREFILL)), 0, all_logits=False)

    def decode(self, prompt: list[int]) -> float:
        self._forget(0)
        self._run(prompt, 0, all_logits=False)
        started = time.perf_counter()
        for position in range(len(prompt), len(prompt) + DECODED - 1):
            self._run([self._best()], position, all_logits=True)
        return (time.perf_counter() - started) / (DECODED - 1)

    def _best(self) -> int:
        logits = self.api.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab,)).argmax())


def seconds(run: Callable[[], None], at_least: int = 3) -> float:
    """Median time of a few calls."""
    times = []
    for _ in range(at_least):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def read_bandwidth() -> float:
    """Bytes per second of a streaming read of 512 MB by all threads of torch."""
    import torch

    data = torch.ones(1 << 27, dtype=torch.float32)
    return data.numel() * 4 / seconds(lambda: data.sum() and None)


def measure(path: str, threads: int, repeats: int) -> dict[str, Any]:
    """Run all cases `repeats` times in turns."""
    ours, theirs = Outrider(path, threads), LlamaCpp(path, threads)
    prompt = list(range(10, 10 + CONTEXT))
    samples: dict[str, list[tuple[float, float]]] = {}
    bare: list[float] = []
    bandwidth: list[float] = []

    def note(case: str, own: float, other: float) -> None:
        samples.setdefault(case, []).append((own, other))

    for repeat in range(repeats + 1):  # The first round warms up and is dropped.
        note("decode", ours.decode(prompt), theirs.decode(prompt))
        bare.append(ours.bare_decode(prompt))
        note("prefill_512", seconds(ours.prefill, 1), seconds(theirs.prefill, 1))
        theirs.fill()
        for rows in WINDOWS:
            note(f"window_{rows}", seconds(ours.window(rows)), seconds(theirs.window(rows)))
        bandwidth.append(read_bandwidth())
        print(f"round {repeat} of {repeats}", file=sys.stderr)
    cases = {name: _case(pairs[1:]) for name, pairs in samples.items()}
    one_row = samples["window_1"][1:]
    growth = {
        f"window_{rows}_over_1": [
            statistics.median(
                pair[side] / one[side]
                for pair, one in zip(samples[f"window_{rows}"][1:], one_row, strict=True)
            )
            for side in (0, 1)
        ]
        for rows in WINDOWS
    }
    decode = [own for own, _ in samples["decode"][1:]]
    return {
        "model": Path(path).name,
        "threads": threads,
        "repeats": repeats,
        "cases": cases,
        "growth_outrider_llamacpp": growth,
        "engine_overhead": statistics.median(
            (own - loop) / own for own, loop in zip(decode, bare[1:], strict=True)
        ),
        "read_bandwidth_gb_s": statistics.median(bandwidth[1:]) / 1e9,
    }


def _case(pairs: list[tuple[float, float]]) -> dict[str, float]:
    return {
        "outrider_ms": statistics.median(own for own, _ in pairs) * 1e3,
        "llamacpp_ms": statistics.median(other for _, other in pairs) * 1e3,
        "ratio": statistics.median(other / own for own, other in pairs),
    }


def write_result(result: dict[str, Any], path: Path | None) -> None:
    """End a benchmark: its result as the last line of stdout, and in a file if one is named."""
    text = json.dumps(result)
    if path is not None:
        path.write_text(text + "\n", encoding="utf-8")
    print(text)


def main() -> None:
    """Measure, print a table, end with JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.model, args.threads, args.repeats)
    for name, case in result["cases"].items():
        print(
            f"{name:12} outrider {case['outrider_ms']:9.2f} ms   "
            f"llama.cpp {case['llamacpp_ms']:9.2f} ms   ratio {case['ratio']:5.2f}"
        )
    for name, (own, other) in result["growth_outrider_llamacpp"].items():
        print(f"{name:18} outrider {own:5.2f}   llama.cpp {other:5.2f}")
    result["environment"] = environment(sys.argv)
    write_result(result, args.json)


if __name__ == "__main__":
    main()
