"""`outrider serve`: an OpenAI-compatible server."""

import argparse
import os
from dataclasses import fields
from typing import Any

from outrider.cli.options import (
    add_model_options,
    add_output_options,
    add_speculation_options,
    engine_options,
    option_name,
    seats,
    speculative_config,
)
from outrider.cli.parsing import integer, number
from outrider.engine.config import EngineConfig
from outrider.errors import ConfigError
from outrider.serving.settings import ServeSettings

KEY_VARIABLE = "OUTRIDER_API_KEY"


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP, as OpenAI does",
        description="Serve a model: /v1/chat/completions, /v1/completions, /v1/models, /health, "
        "/metrics, /tokenize, /detokenize. Ctrl-C or SIGTERM lets requests finish.",
    )
    _add_http_options(parser)
    _add_limits(parser)
    add_model_options(parser)
    add_speculation_options(parser)
    add_output_options(parser, has_json=False)
    parser.set_defaults(run=run, parser=parser)


def _add_http_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("http")
    group.add_argument("--host", default=_DEFAULTS["host"], help="address to listen on")
    group.add_argument(
        "--port", type=integer(0), default=_DEFAULTS["port"], help="TCP port; 0 for a free one"
    )
    group.add_argument(
        "--served-model-name", metavar="NAME", help="name for clients (default: as loaded)"
    )
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"what clients must send; better in the variable {KEY_VARIABLE}, which others cannot "
        "see in the list of processes",
    )
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        dest="cors_origins",
        metavar="ORIGIN",
        help="web origin that may read answers; may be repeated",
    )


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(ServeSettings)}
_LIMITS: tuple[tuple[str, Any, str], ...] = (
    ("max_queue", integer(0), "most continuations that wait; more are answered 429"),
    ("max_request_seconds", number, "a request that takes longer is ended"),
    ("max_total_tokens", integer(1), "most tokens of one request: prompts × n × max_tokens"),
    ("max_body_bytes", integer(1), "largest request body"),
    ("max_connections", integer(1), "most open connections"),
    ("drain_seconds", number, "how long requests may go on after SIGTERM"),
)

_SETTINGS = ("host", "port", *(name for name, _, _ in _LIMITS))


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    for name, parse, text in _LIMITS:
        group.add_argument(
            option_name(name), type=parse, default=_DEFAULTS[name], metavar="N", help=text
        )
    group.add_argument(
        "--max-num-seqs",
        type=integer(1),
        default=EngineConfig.__dataclass_fields__["max_num_seqs"].default,
        metavar="N",
        help="most requests in a step",
    )
    group.add_argument(
        "--kv-cache-tokens", type=integer(1), metavar="N", help="tokens the KV cache holds"
    )
    group.add_argument(
        "--max-context-len", type=integer(1), metavar="N", help="longest prompt plus answer"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    settings = ServeSettings(
        **{name: getattr(args, name) for name in _SETTINGS},
        cors_origins=tuple(args.cors_origins),
        served_model_name=args.served_model_name or args.model,
        api_key=args.api_key or os.environ.get(KEY_VARIABLE),
    )
    speculative = speculative_config(args)
    try:
        from outrider.serving.server import Server
    except ImportError as error:
        raise ConfigError(
            f"serving needs {error.name}, which is not installed; install outrider[serve]"
        ) from error
    from outrider.cli.console import Console
    from outrider.cli.loading import load

    console = Console(no_color=args.no_color)
    sizes = {name: getattr(args, name) for name in ("kv_cache_tokens", "max_context_len")}
    options = engine_options(args) | sizes | seats(args.max_num_seqs)
    options["max_num_seqs"] = args.max_num_seqs
    llm = load(args, console, options, speculative)
    name = settings.served_model_name
    server = Server(llm, settings, lambda url: console.say(f"serving {name} at {url}"))
    try:
        server.run()
    except SystemExit as error:
        raise ConfigError(
            f"the server cannot listen on {settings.host} port {settings.port}; "
            "name another with --host and --port"
        ) from error
    return 0
