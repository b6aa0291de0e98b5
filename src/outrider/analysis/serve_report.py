"""What a server did under load, under the field names of `vllm bench serve`.

TTFT is the time from sending to the first text, E2EL to the last piece, TPOT is
(E2EL - TTFT) / (tokens - 1) per request, and ITL the time between two pieces of text, however many
tokens each holds. Only whole answers count, but for `failed` and `errors_by_reason`.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from outrider.analysis.numbers import MILLISECONDS, latency_record
from outrider.analysis.tables import table
from outrider.core.exchange import Exchange
from outrider.errors import ConfigError

OBJECTIVES = ("ttft", "tpot", "e2el")
"""Latencies that goodput can be asked for."""
LATENCIES = ("ttft", "tpot", "itl", "e2el")
_PREFIX = "vllm:spec_decode_num_"
_SAMPLE = re.compile(r"^(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)", re.M)
_POSITION = re.compile(r'position="(\d+)"')


def parse_goodput(texts: Sequence[str]) -> dict[str, float]:
    """Read objectives like `ttft:200`: the longest latency, in milliseconds, of a good request.

    Raises:
        ConfigError: One has another form.
    """
    objectives: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = -1.0
        if name not in OBJECTIVES or not limit >= 0:
            raise ConfigError(
                f"{text!r} is no objective like ttft:200; names are {', '.join(OBJECTIVES)}, "
                "values are milliseconds"
            )
        objectives[name] = limit
    return objectives


def serve_record(
    exchanges: Sequence[Exchange], seconds: float, goodput: Mapping[str, float]
) -> dict[str, Any]:
    """Sum the exchanges of a run of `seconds` up."""
    whole = [each for each in exchanges if each.is_complete]
    num_input = sum(each.input_tokens or 0 for each in whole)
    num_output = sum(each.num_output for each in whole)
    failures = Counter(each.reason or "unknown" for each in exchanges if not each.is_complete)
    queued = [each.queued for each in whole]
    return {
        "duration": seconds,
        "completed": len(whole),
        "failed": len(exchanges) - len(whole),
        "errors_by_reason": dict(failures.most_common()),
        "retries": sum(each.retries for each in exchanges),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "num_without_usage": sum(each.output_tokens is None for each in whole),
        "request_throughput": len(whole) / seconds,
        "request_goodput": _num_good(whole, goodput) / seconds if goodput else None,
        "output_throughput": num_output / seconds,
        "total_token_throughput": (num_input + num_output) / seconds,
        "max_output_tokens_per_s": max(_peak_throughput(whole), num_output / seconds),
        "max_concurrent_requests": _peak_concurrency(whole),
        **latency_record("ttft", [each.ttft for each in whole]),
        **latency_record("tpot", [each.tpot for each in whole if each.tpot is not None]),
        **latency_record("itl", [gap for each in whole for gap in _gaps(each)]),
        **latency_record("e2el", [each.e2el for each in whole]),
        **latency_record("client_queue_time", queued),
        **latency_record(
            "e2el_including_client_queue", [each.e2el + each.queued for each in whole]
        ),
    }


def detailed_record(exchanges: Sequence[Exchange]) -> dict[str, Any]:
    """Give every request's numbers, in the order of sending; times in seconds."""
    start = exchanges[0].sent if exchanges else 0.0
    return {
        "conversation_ids": [each.conversation for each in exchanges],
        "turns": [each.turn for each in exchanges],
        "input_lens": [each.input_tokens for each in exchanges],
        "output_lens": [each.num_output for each in exchanges],
        "start_times": [each.sent - start for each in exchanges],
        "queue_times": [each.queued for each in exchanges],
        "ttfts": [each.ttft for each in exchanges],
        "itls": [_gaps(each) for each in exchanges],
        "latencies": [each.e2el for each in exchanges],
        "generated_texts": [each.text for each in exchanges],
        "errors": [each.error or "" for each in exchanges],
    }


def _gaps(exchange: Exchange) -> list[float]:
    return [after - before for before, after in pairwise(exchange.chunk_times)]


def _num_good(whole: Sequence[Exchange], goodput: Mapping[str, float]) -> int:
    """Count requests that meet every objective; one of a single token has a TPOT of 0."""
    return sum(
        all((getattr(each, name) or 0.0) * MILLISECONDS <= limit for name, limit in goodput.items())
        for each in whole
    )


def _peak_throughput(whole: Sequence[Exchange]) -> float:
    """Most tokens that arrived within one second; a request's tokens are spread over its pieces."""
    pieces = sorted(
        (moment, each.num_output / len(each.chunk_times))
        for each in whole
        for moment in each.chunk_times
    )
    peak = tokens = 0.0
    oldest = 0
    for moment, count in pieces:
        tokens += count
        while pieces[oldest][0] <= moment - 1.0:
            tokens -= pieces[oldest][1]
            oldest += 1
        peak = max(peak, tokens)
    return peak


def _peak_concurrency(whole: Sequence[Exchange]) -> int:
    # A request that ends as another begins makes room for it: -1 sorts before +1.
    events = sorted(event for each in whole for event in ((each.sent, 1), (each.ended, -1)))
    running = peak = 0
    for _, change in events:
        running += change
        peak = max(peak, running)
    return peak


def spec_decode_record(before: str | None, after: str | None) -> dict[str, Any]:
    """Compare two readings of a metrics page in Prometheus' text format; {} without drafts.

    The conventions are vLLM's: a draft is a round that sent draft tokens, rates by position
    (marginal) divide by drafts, the acceptance rate is a percentage.
    """
    if before is None or after is None:
        return {}
    first, last = _counters(before), _counters(after)
    change = {name: last[name] - first.get(name, 0.0) for name in last}
    drafts, tokens, accepted = (
        change.get(f"{_PREFIX}{name}_total", 0.0)
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    if drafts <= 0 or tokens <= 0:
        return {}
    by_position = sorted(
        (int(place[1]), value)
        for name, value in change.items()
        if (place := _POSITION.search(name)) is not None
    )
    return {
        "spec_decode_num_drafts": int(drafts),
        "spec_decode_draft_tokens": int(tokens),
        "spec_decode_accepted_tokens": int(accepted),
        "spec_decode_acceptance_rate": 100 * accepted / tokens,
        "spec_decode_acceptance_length": 1 + accepted / drafts,
        "spec_decode_per_position_acceptance_rates": [value / drafts for _, value in by_position],
    }


def _counters(page: str) -> dict[str, float]:
    """Sum the counters of speculation over engines and models; a position stays in the name."""
    sums: dict[str, float] = {}
    for sample in _SAMPLE.finditer(page):
        name = sample["name"]
        if not name.startswith(_PREFIX) or not name.endswith("_total"):
            continue
        position = _POSITION.search(sample["labels"] or "")
        if position is not None:
            name += f"{{{position[0]}}}"
        sums[name] = sums.get(name, 0.0) + float(sample["value"])
    return sums


def serve_lines(record: Mapping[str, Any]) -> list[str]:
    """Give the report for people."""
    rows = [["ms", "mean", "median", "std", "p99"]]
    for name in LATENCIES:
        cells = [record[f"{kind}_{name}_ms"] for kind in ("mean", "median", "std", "p99")]
        rows.append([name.upper(), *("-" if cell is None else f"{cell:.1f}" for cell in cells)])
    lines = [
        f"requests           {record['completed']} completed, {record['failed']} failed "
        f"in {record['duration']:.2f} s",
        *(f"  failed           {num} x {why}" for why, num in record["errors_by_reason"].items()),
        f"tokens             {record['total_input_tokens']} in, "
        f"{record['total_output_tokens']} out",
        f"throughput         {record['output_throughput']:.1f} output tokens/s, "
        f"{record['request_throughput']:.3f} requests/s",
        f"peak               {record['max_output_tokens_per_s']:.1f} output tokens/s, "
        f"{record['max_concurrent_requests']} requests at a time",
    ]
    if record["request_goodput"] is not None:
        lines.append(f"goodput            {record['request_goodput']:.3f} requests/s")
    if record["num_without_usage"]:
        lines.append(
            f"no token counts    {record['num_without_usage']} answers came without usage; "
            "their pieces are counted as tokens"
        )
    if "spec_decode_acceptance_length" in record:
        rates = record["spec_decode_per_position_acceptance_rates"]
        lines += [
            f"acceptance length  {record['spec_decode_acceptance_length']:.2f} per draft, "
            f"{record['spec_decode_acceptance_rate']:.1f} % of draft tokens accepted",
            f"  by position      {' '.join(f'{rate:.2f}' for rate in rates)}",
        ]
    return [*lines, "", *table(rows)]
