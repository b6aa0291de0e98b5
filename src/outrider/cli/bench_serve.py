"""`outrider bench serve`: load on a server, over the network alone."""

import argparse
import json
import math
import os
import sys
import time
from datetime import UTC, datetime
from typing import Any

from outrider.cli.console import Console
from outrider.cli.options import add_output_options
from outrider.cli.parsing import integer, number
from outrider.core.paths import expanded
from outrider.errors import ConfigError, OutputFailed

CHECK_FAILED = 1
_KEY_VARIABLE = "OPENAI_API_KEY"


def add_serve(kinds: Any) -> None:
    """Add `bench serve` to the parser."""
    parser = kinds.add_parser(
        "serve",
        help="load on any OpenAI-compatible server: throughput, latencies, goodput",
        description="Send conversations to a server and measure what comes back, under the field "
        "names of `vllm bench serve`. --max-concurrency users work through them one after the "
        "other; with --request-rate they arrive at random times.",
        epilog=f"A key in the environment variable {_KEY_VARIABLE} is sent along.",
    )
    _add_server_options(parser)
    _add_load_options(parser)
    _add_report_options(parser)
    parser.set_defaults(run=run, parser=parser)


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server and requests")
    server.add_argument(
        "--base-url", default="http://127.0.0.1:8000", metavar="URL", help="where the server is"
    )
    server.add_argument(
        "--endpoint",
        default="/v1/chat/completions",
        metavar="PATH",
        help="chat or text completions",
    )
    server.add_argument("--model", default="", metavar="NAME", help="(default: the server's first)")
    server.add_argument(
        "--max-tokens", type=integer(1), default=128, metavar="N", help="per answer"
    )
    server.add_argument("--temperature", type=number, default=0.0, metavar="T", help="0 is greedy")
    server.add_argument("--ignore-eos", action="store_true", help="always generate --max-tokens")
    server.add_argument(
        "--extra-body", metavar="JSON", help="fields put over each request; null takes one away"
    )
    server.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    server.add_argument(
        "--timeout", type=number, default=600.0, metavar="SECONDS", help="of one request"
    )
    server.add_argument(
        "--max-retries",
        type=integer(),
        default=0,
        metavar="N",
        help="after 429 and 503, waiting as Retry-After says",
    )


def _add_load_options(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    load.add_argument(
        "--dataset-path",
        nargs="+",
        required=True,
        metavar="FILE",
        help='JSON Lines with "prompt", "turns" or "messages", or JSON in ShareGPT\'s form',
    )
    load.add_argument(
        "--num-prompts",
        type=integer(1),
        metavar="N",
        help="conversations; more than there are repeat (default: all)",
    )
    load.add_argument(
        "--max-turns", type=integer(1), metavar="N", help="turns of each (default: all)"
    )
    load.add_argument(
        "--max-concurrency", type=integer(1), metavar="C", help="users (default: no limit)"
    )
    load.add_argument(
        "--request-rate",
        type=number,
        default=math.inf,
        metavar="R",
        help="conversations per second (default: all at once)",
    )
    load.add_argument(
        "--burstiness",
        type=number,
        default=1.0,
        metavar="B",
        help="of the arrivals: 1 is a Poisson process, less comes in bursts",
    )
    load.add_argument("--num-warmups", type=integer(), default=1, metavar="N", help="not counted")
    load.add_argument("--seed", type=integer(), default=0, metavar="N", help="of times and answers")


def _add_report_options(parser: argparse.ArgumentParser) -> None:
    report = parser.add_argument_group("report")
    report.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="limits of a good request, like ttft:200 tpot:50",
    )
    report.add_argument("--output", metavar="FILE", help="write the JSON object there")
    report.add_argument(
        "--save-detailed", action="store_true", help="with every request's times and text"
    )
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Put the load on and report; 1 if no request succeeded."""
    from outrider.analysis.conversations import load_conversations
    from outrider.analysis.serve_report import parse_goodput, serve_lines
    from outrider.serving.load.client import RequestOptions
    from outrider.serving.load.generate import LoadSetting, run_load

    goodput = parse_goodput(args.goodput)
    _require_sound(args)
    options = RequestOptions(
        model=args.model,
        endpoint=args.endpoint,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        seed=args.seed,
        ignore_eos=args.ignore_eos,
        timeout=args.timeout,
        max_retries=args.max_retries,
        extra=_extra_body(args.extra_body),
    )
    setting = LoadSetting(
        max_concurrency=args.max_concurrency,
        request_rate=args.request_rate,
        burstiness=args.burstiness,
        seed=args.seed,
        num_warmups=args.num_warmups,
    )
    conversations = load_conversations(
        args.dataset_path, num=args.num_prompts, max_turns=args.max_turns
    )
    console = Console(no_color=args.no_color)
    started = time.monotonic()

    def show(done: int, total: int) -> None:
        console.progress("conversations", done, total, started)

    try:
        result = run_load(
            args.base_url, _headers(args.header), conversations, options, setting, show
        )
    finally:
        console.clear()
    record = _record(args, result, goodput, len(conversations))
    for line in serve_lines(record):
        console.print(line)
    if args.output:
        _write(args.output, record)
    if args.json:
        console.print_json(record)
    return 0 if record["completed"] else CHECK_FAILED


def _record(
    args: argparse.Namespace, result: Any, goodput: dict[str, float], num_conversations: int
) -> dict[str, Any]:
    from outrider.analysis.environment import environment
    from outrider.analysis.serve_report import detailed_record, serve_record, spec_decode_record

    rate = args.request_rate
    record: dict[str, Any] = {
        "benchmark": "serve",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "model_id": result.model,
        "endpoint": args.endpoint,
        "num_prompts": num_conversations,
        "max_concurrency": args.max_concurrency,
        "request_rate": "inf" if math.isinf(rate) else rate,
        "burstiness": args.burstiness,
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "goodput": goodput,
        **serve_record(result.exchanges, result.seconds, goodput),
        "skipped_turns": result.skipped,
        **spec_decode_record(result.metrics_before, result.metrics_after),
    }
    if args.save_detailed:
        record |= detailed_record(result.exchanges)
    return record | {"environment": environment(["outrider", *sys.argv[1:]])}


def _require_sound(args: argparse.Namespace) -> None:
    for name in ("request_rate", "burstiness", "timeout"):
        value = getattr(args, name)
        if not value > 0:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} is {value:g}, but it must be more than 0")
    if not (0 <= args.temperature < math.inf):
        raise ConfigError(f"--temperature is {args.temperature:g}, but it must be 0 or more")


def _extra_body(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        extra = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--extra-body {text!r} is not JSON ({error})") from error
    if not isinstance(extra, dict):
        raise ConfigError(f"--extra-body {text!r} is no JSON object like " + '{"top_p": 0.9}')
    return extra


def _headers(texts: list[str]) -> dict[str, str]:
    key = os.environ.get(_KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip() or {"\r", "\n"} & set(text):
            raise ConfigError(f"--header {text!r} has not the form NAME=VALUE")
        headers[name.strip()] = value.strip()
    return headers


def _write(path: str, record: dict[str, Any]) -> None:
    try:
        expanded(path).write_text(
            json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )
    except OSError as error:
        raise OutputFailed(
            f"{path} cannot be written ({error}); choose another --output"
        ) from error
