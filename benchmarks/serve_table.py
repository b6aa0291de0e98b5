"""Plain against speculative serving: throughput and TPOT by number of users.

    python benchmarks/to_sharegpt.py PROMPTS.jsonl --output sharegpt.json
    python benchmarks/serve_table.py sharegpt.json --model MODEL [--users 1 4 8 16] [--json OUT]

Starts two servers on loopback, one with `--draft off`, and puts the same conversations on them in
turns, so that what drifts on a machine hits both; only one has work at a time. Every case gets
conversations that were not played before, as far as there are enough, so that cached prompts are
as rare as they would be. Options behind `--` go to both servers, for example `-- --threads 2`.
The last line of stdout is one JSON object.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from outrider.analysis.conversations import load_conversations
from outrider.analysis.environment import environment
from outrider.analysis.serve_report import serve_record, spec_decode_record
from outrider.core.exchange import Conversation
from outrider.serving.load.client import RequestOptions
from outrider.serving.load.generate import LoadResult, LoadSetting, run_load

PLAIN, SPECULATIVE = "plain", "speculative"


@contextmanager
def server(options: list[str]) -> Iterator[str]:
    """Run `outrider serve` on a free port and give its address."""
    code = "import sys; from outrider.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "serve", "--port", "0", *options]
    with tempfile.NamedTemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield address(process, Path(log.name))
        finally:
            process.terminate()
            process.wait(60)


def address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the server says where it listens."""
    while (found := re.search(r"http://\S+:\d+", log.read_text("utf-8"))) is None:
        if process.poll() is not None:
            raise SystemExit("the server did not start:\n" + log.read_text("utf-8"))
        time.sleep(0.2)
    return found[0]


def cases(
    args: argparse.Namespace, conversations: list[Conversation]
) -> Iterator[tuple[int, list[str], list[Conversation]]]:
    """Give users, who goes first, and conversations, going on through the file case by case."""
    start = 0
    for repeat in range(args.repeats):
        for number, users in enumerate(args.users):
            count = users * args.per_user
            places = range(start, start + count)
            order = [PLAIN, SPECULATIVE] if (repeat + number) % 2 == 0 else [SPECULATIVE, PLAIN]
            yield users, order, [conversations[place % len(conversations)] for place in places]
            start += count


def measure(args: argparse.Namespace, urls: dict[str, str]) -> dict[tuple[int, str], list[Any]]:
    """Put every case on both servers, in turns."""
    conversations = load_conversations([args.conversations], max_turns=args.max_turns)
    options = RequestOptions(
        model="", max_tokens=args.max_tokens, temperature=args.temperature, timeout=3600.0
    )
    results: defaultdict[tuple[int, str], list[LoadResult]] = defaultdict(list)
    for users, order, chosen in cases(args, conversations):
        for side in order:
            started = time.monotonic()
            setting = LoadSetting(max_concurrency=users, num_warmups=1)
            result = run_load(urls[side], {}, chosen, options, setting, lambda _done, _all: None)
            results[users, side].append(result)
            seconds = time.monotonic() - started
            print(f"{users} users, {side}: {seconds:.1f} s", file=sys.stderr, flush=True)
    return results


def pooled(results: list[LoadResult]) -> dict[str, Any]:
    """Sum repeats up: durations add, latencies pool."""
    exchanges = [each for result in results for each in result.exchanges]
    record = serve_record(exchanges, sum(result.seconds for result in results), {})
    first = results[0]
    return record | spec_decode_record(first.metrics_before, results[-1].metrics_after)


def lines(records: dict[tuple[int, str], dict[str, Any]]) -> list[str]:
    """Give the table in Markdown; ratios above 1 are gains."""
    names = ("output_throughput", "mean_tpot_ms", "median_tpot_ms", "p99_tpot_ms")
    rows = [
        "| users | serving | output tokens/s | TPOT mean ms | median | p99 | acceptance length |",
        "|---|---|---|---|---|---|---|",
    ]
    for users in sorted({users for users, _ in records}):
        plain, fast = records[users, PLAIN], records[users, SPECULATIVE]
        for side, record in ((PLAIN, plain), (SPECULATIVE, fast)):
            cells = [f"{record[name]:.1f}" for name in names]
            length = record.get("spec_decode_acceptance_length")
            cells.append("-" if length is None else f"{length:.2f}")
            rows.append(f"| {users} | {side} | {' | '.join(cells)} |")
        gains = [
            fast[names[0]] / plain[names[0]],
            *(plain[name] / fast[name] for name in names[1:]),
        ]
        rows.append(f"| {users} | gain | {' | '.join(f'{gain:.2f}×' for gain in gains)} | |")
    return rows


def main() -> None:
    """Serve, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("conversations", help="JSON in ShareGPT's form, or JSON Lines")
    parser.add_argument("--model", required=True)
    parser.add_argument("--users", nargs="+", type=int, default=[1, 4, 8, 16])
    parser.add_argument("--per-user", type=int, default=4, help="conversations per user and repeat")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--max-turns", type=int)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--speculative-config", help="of the speculative server (default: auto)")
    parser.add_argument("--length-policy", default="fixed", help="of the speculative server")
    parser.add_argument("--json", type=Path, help="write the JSON object there too")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:end])
    both = ["--model", args.model, "--max-num-seqs", str(max(args.users)), *words[end + 1 :]]
    config = args.speculative_config
    drafting = ["--draft", "auto"] if config is None else ["--speculative-config", config]
    drafting += ["--length-policy", args.length_policy]
    with ExitStack() as stack:
        urls = {
            PLAIN: stack.enter_context(server([*both, "--draft", "off"])),
            SPECULATIVE: stack.enter_context(server([*both, *drafting])),
        }
        results = measure(args, urls)
    records = {case: pooled(each) for case, each in results.items()}
    print("\n".join(lines(records)))
    report = {
        "cases": [
            {"users": users, "serving": side, **record}
            for (users, side), record in sorted(records.items())
        ],
        "environment": environment(sys.argv),
    }
    if args.json:
        args.json.write_text(json.dumps(report) + "\n", "utf-8")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
