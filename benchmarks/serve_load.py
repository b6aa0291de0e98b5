"""A server under more load than it can take, with clients that leave, and for a long time.

    python benchmarks/serve_load.py overload --seconds 60   4 × capacity, again and again
    python benchmarks/serve_load.py leave --clients 100     clients that go away mid-stream
    python benchmarks/serve_load.py soak --seconds 600      mixed requests, some of which leave

Starts `outrider serve` as a process of its own, on loopback, and watches its memory and its KV
blocks. The last line is one JSON object with a verdict for each promise; exit code 1 if one is
broken.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve_client import Answer, ask

SERVE = "import sys; from outrider.cli.main import main; sys.exit(main(sys.argv[1:]))"
SECONDS_BETWEEN_READINGS = 0.5
SETTLE = 0.3
"""Share of a run after which memory is compared: the memory of KV blocks is mapped at first use."""
FLAT = 0.05
LEAVE_SECONDS = 1.0
OK = 200
FIRST_5XX = 500


@dataclass
class Watched:
    """A running server and what was read from it, at times since the start of the run."""

    port: int
    process: "subprocess.Popen[str]"
    rss: list[tuple[float, int]] = field(default_factory=list)
    blocks: list[dict[str, float]] = field(default_factory=list)

    def read(self, now: float) -> None:
        """Read memory, in bytes, and KV blocks by state."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        kilobytes = re.search(r"VmRSS:\s+(\d+)", status)
        self.rss.append((now, 1024 * int(kilobytes[1]) if kilobytes else 0))
        self.blocks.append(self.kv_blocks())

    def kv_blocks(self) -> dict[str, float]:
        """KV blocks by state, from the metrics."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
        found = re.findall(r'^outrider:kv_blocks\{.*state="(\w+)"\} (\S+)', text, re.M)
        return {state: float(number) for state, number in found}

    def memory(self) -> dict[str, Any]:
        """How memory went: after it settled, the later half against the earlier."""
        last = self.rss[-1][0] if self.rss else 0.0
        settled = [rss for now, rss in self.rss if now >= SETTLE * last]
        half = len(settled) // 2
        before, after = (
            statistics.median(part) if part else 0.0 for part in (settled[:half], settled[half:])
        )
        change = after / before - 1 if before else 0.0
        return {"rss_before": before, "rss_after": after, "change": change}


@contextmanager
def server(options: list[str]) -> Iterator[Watched]:
    """Run the command and wait until it serves."""
    command = [sys.executable, "-c", SERVE, "serve", "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = ""
        while "serving" not in line:
            line = process.stderr.readline()
            if not line:
                raise SystemExit("the server did not start")
        try:
            yield Watched(int(line.rpartition(":")[2]), process)
        finally:
            process.terminate()
            process.wait(60)


def body_of(number: int, max_tokens: int) -> dict[str, Any]:
    """A mixed request; every one is different."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"presence_penalty": 0.5},
        {"stop": ["\n\n"], "logprobs": 2},
        {"speculative": False},
        {"n": 2},
        {"regex": "[a-z ]{10,60}"},
    ]
    prompt = f"{number}. Write about the number {number} and what it is good for."
    body = {"prompt": prompt, "seed": number, "max_tokens": max_tokens, "stream": number % 2 == 0}
    return body | kinds[number % len(kinds)]


async def keep_busy(
    watched: Watched, clients: int, seconds: float, max_tokens: int, leavers: int
) -> list[Answer]:
    """Let each client send one request after the other; every `leavers`-th is left early."""
    started = time.perf_counter()
    answers: list[Answer] = []
    count = 0

    async def client() -> None:
        nonlocal count
        while time.perf_counter() - started < seconds:
            count += 1
            leaves = leavers and count % leavers == 0
            body = body_of(count, max_tokens) | ({"stream": True} if leaves else {})
            answer = await ask(watched.port, body, leave_after=600 if leaves else None)
            answers.append(answer)
            if answer.status != OK:
                await asyncio.sleep(0.2)

    async def watch() -> None:
        while time.perf_counter() - started < seconds:
            await asyncio.to_thread(watched.read, time.perf_counter() - started)
            await asyncio.sleep(SECONDS_BETWEEN_READINGS)

    await asyncio.gather(watch(), *(client() for _ in range(clients)))
    return answers


async def free_again(watched: Watched, seconds: float) -> float | None:
    """Seconds until no KV block is in use; None if that takes too long."""
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        if not (await asyncio.to_thread(watched.kv_blocks))["used"]:
            return time.perf_counter() - started
        await asyncio.sleep(0.02)
    return None


async def leave(watched: Watched, clients: int) -> dict[str, Any]:
    """Go away mid-stream with every client and see how long blocks are still held."""
    tokens = {"max_tokens": 900, "stream": True, "ignore_eos": True, "temperature": 0}
    bodies = [body_of(0, 1) | tokens | {"prompt": f"{number}: go on"} for number in range(clients)]
    waiting = [asyncio.create_task(ask(watched.port, body, leave_after=1)) for body in bodies]
    answers = await asyncio.gather(*waiting)
    seconds = await free_again(watched, 30)
    return {
        "statuses": dict(Counter(answer.status for answer in answers)),
        "seconds_until_free": seconds,
        "promises": {"freed_within_a_second": seconds is not None and seconds <= LEAVE_SECONDS},
    }


def report(watched: Watched, answers: list[Answer]) -> dict[str, Any]:
    """Sum up a run under load."""
    done = sorted(answer.seconds for answer in answers if answer.status == OK)
    statuses = Counter(answer.status for answer in answers)
    memory = watched.memory()
    totals = {sum(each.values()) for each in watched.blocks}
    return {
        "statuses": dict(statuses),
        "endings": dict(Counter(answer.ending for answer in answers)),
        "latency_seconds": {
            "median": statistics.median(done) if done else None,
            "p99": done[int(0.99 * (len(done) - 1))] if done else None,
            "max": done[-1] if done else None,
        },
        "memory": memory,
        "promises": {
            "no_5xx": not any(status >= FIRST_5XX for status in statuses),
            "all_answered": 0 not in statuses,
            "memory_is_flat": abs(memory["change"]) <= FLAT,
            "blocks_are_conserved": len(totals) == 1,
        },
    }


def main() -> int:
    """Run one kind of load; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=("overload", "leave", "soak"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, help="default: 4 × capacity; 100; 12")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--max-queue", type=int, default=16)
    parser.add_argument("--kv-cache-tokens", type=int, default=4096)
    args = parser.parse_args()
    queue = 100 if args.kind == "leave" else args.max_queue
    options = ["--model", args.model, "--draft", args.draft, "--max-queue", str(queue)]
    options += ["--max-num-seqs", str(args.max_num_seqs)]
    options += ["--kv-cache-tokens", str(args.kv_cache_tokens)]
    with server(options) as watched:
        if args.kind == "leave":
            found = asyncio.run(leave(watched, args.clients or 100))
        else:
            capacity = args.max_num_seqs + args.max_queue
            clients = args.clients or (4 * capacity if args.kind == "overload" else 12)
            leavers = 10 if args.kind == "soak" else 0
            answers = asyncio.run(
                keep_busy(watched, clients, args.seconds, args.max_tokens, leavers)
            )
            freed = asyncio.run(free_again(watched, 30))
            found = report(watched, answers)
            found["promises"]["all_blocks_free_at_the_end"] = freed is not None
    print(json.dumps({"kind": args.kind, **found}))
    return 0 if all(found["promises"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
