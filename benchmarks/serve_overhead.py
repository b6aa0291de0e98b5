"""What the server costs: the same requests through HTTP and through `LLM`, in turns.

    python benchmarks/serve_overhead.py --model smollm2-135m --seconds 60

Server and library share one process and one loaded model, the clients have a process of their own.
Each side has an engine of its own and they take turns, so that a machine that slows down slows
both. At each concurrency the library keeps as many requests running as clients do. Overhead is
1 − (served tokens/s) / (library tokens/s), from medians over the turns. The last line is one JSON
object.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from serve_client import run

from outrider.core.request import SamplingParams
from outrider.engine.llm import LLM
from outrider.engine.prompt import Prompt
from outrider.serving.server import Server
from outrider.serving.settings import ServeSettings

FEWEST_TURNS = 3
OK = 200
TOPICS = ("rivers", "clocks", "bread", "maps", "glass", "ships", "bees", "music", "snow", "salt")


def prompts_of(llm: LLM, count: int) -> list[list[int]]:
    """Chat prompts that differ from their first words on, so that no cache helps."""
    return [
        llm.chat_prompt(
            [{"role": "user", "content": f"{number}: tell me about {TOPICS[number % 10]}."}]
        )
        for number in range(count)
    ]


@contextmanager
def serving(llm: LLM) -> Iterator[str]:
    """Run a server in a thread and give its address."""
    found: list[str] = []
    is_ready = threading.Event()

    def ready(url: str) -> None:
        found.append(url)
        is_ready.set()

    server = Server(llm, ServeSettings(port=0), ready)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    is_ready.wait()
    yield found[0]
    server.handle_exit(2, None)
    thread.join()


def library(
    llm: LLM, prompts: list[list[int]], concurrency: int, max_tokens: int
) -> dict[str, Any]:
    """Serve all prompts with `LLM`, as many at a time."""
    waiting = list(reversed(prompts))
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    in_flight = 0

    def source() -> tuple[Prompt, SamplingParams] | None:
        nonlocal in_flight
        if not waiting or in_flight >= concurrency:
            return None
        in_flight += 1
        return waiting.pop(), params

    started = time.perf_counter()
    firsts, num_tokens = [], 0
    for _, output in llm.generate_from(source):
        in_flight -= 1
        one = output.outputs[0]
        num_tokens += len(one.token_ids)
        firsts.append(one.first_token_time - one.arrival_time)
    return {"rate": num_tokens / (time.perf_counter() - started), "first": firsts}


def served(
    clients: Executor, port: int, prompts: list[list[int]], concurrency: int, max_tokens: int
) -> dict[str, Any]:
    """Send all prompts as streams, as many at a time, from another process."""
    body = {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    body["stream_options"] = {"include_usage": True}
    bodies = [body | {"prompt": prompt} for prompt in prompts]
    answers, seconds = clients.submit(run, port, bodies, concurrency).result()
    if any(answer.status != OK for answer in answers):
        raise SystemExit(f"the server answered {sorted({answer.status for answer in answers})}")
    rate = sum(answer.num_tokens for answer in answers) / seconds
    return {"rate": rate, "first": [answer.first or 0.0 for answer in answers]}


def compare(
    llm: LLM, clients: Executor, port: int, concurrency: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Take turns until the time is over."""
    sides: dict[str, list[dict[str, Any]]] = {"library": [], "served": []}
    end = time.monotonic() + args.seconds
    number = 0
    while time.monotonic() < end or number < FEWEST_TURNS:
        prompts = prompts_of(llm, 2 * concurrency)
        order = ("library", "served") if number % 2 == 0 else ("served", "library")
        for side in order:
            if side == "library":
                found = library(llm, prompts, concurrency, args.max_tokens)
            else:
                found = served(clients, port, prompts, concurrency, args.max_tokens)
            if number:  # The first turn warms up.
                sides[side].append(found)
        number += 1
    rates = {
        side: statistics.median(turn["rate"] for turn in turns) for side, turns in sides.items()
    }
    firsts = {
        side: statistics.median(each for turn in turns for each in turn["first"])
        for side, turns in sides.items()
    }
    return {
        "concurrency": concurrency,
        "turns": number - 1,
        "library_output_throughput": rates["library"],
        "served_output_throughput": rates["served"],
        "overhead": 1 - rates["served"] / rates["library"],
        "library_median_ttft_ms": 1000 * firsts["library"],
        "served_median_ttft_ms": 1000 * firsts["served"],
        "ttft_overhead_ms": 1000 * (firsts["served"] - firsts["library"]),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft", default="suffix", help="a method, or off")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=30, help="per concurrency")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16])
    args = parser.parse_args()
    drafts = None if args.draft == "off" else {"method": args.draft}
    options: dict[str, Any] = {"prefix_caching": False, "threads": args.threads}
    llm = LLM(args.model, speculative_config=drafts, **options)
    results = []
    spawn = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, mp_context=spawn) as clients,
        serving(llm.sibling(speculative_config=drafts)) as url,
    ):
        port = int(url.rpartition(":")[2])
        for concurrency in args.concurrency:
            found = compare(llm, clients, port, concurrency, args)
            print(found, file=sys.stderr)
            results.append(found)
    print(json.dumps({"model": args.model, "draft": args.draft, "results": results}))


if __name__ == "__main__":
    main()
