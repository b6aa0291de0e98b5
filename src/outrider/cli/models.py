"""`outrider pull`, `models` and `info`: what there is to run, and what it runs on."""

import argparse
from typing import Any

from outrider.analysis.tables import listing
from outrider.cli.console import Console
from outrider.cli.options import add_output_options
from outrider.models import hub

_MEGABYTE = 1e6


def add_pull(commands: Any) -> None:
    """Add `pull` to the parser."""
    parser = commands.add_parser("pull", help="fetch a built-in model")
    parser.add_argument("name", metavar="NAME", help="a name from `outrider models`")
    add_output_options(parser)
    parser.set_defaults(run=run_pull, parser=parser)


def add_models(commands: Any) -> None:
    """Add `models` to the parser."""
    parser = commands.add_parser("models", help="list the models that a name is enough for")
    add_output_options(parser)
    parser.set_defaults(run=run_models, parser=parser)


def add_info(commands: Any) -> None:
    """Add `info` to the parser."""
    parser = commands.add_parser("info", help="describe this installation, or a model")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a model to describe as well")
    add_output_options(parser)
    parser.set_defaults(run=run_info, parser=parser)


def run_pull(args: argparse.Namespace) -> int:
    """Fetch, with progress on stderr and the path on stdout."""
    console = Console(no_color=args.no_color)
    path = hub.pull(args.name, console.say)
    if args.json:
        console.print_json({"name": args.name, "path": str(path)})
    else:
        console.print(str(path))
    return 0


def run_models(args: argparse.Namespace) -> int:
    """List names, sizes and whether they are here."""
    console = Console(no_color=args.no_color)
    found = hub.available()
    if args.json:
        console.print_json(
            {
                "models": [
                    {
                        "name": each.name,
                        "path": str(each.path) if each.path else None,
                        "num_bytes": each.num_bytes,
                        "licence": each.licence,
                    }
                    for each in found
                ]
            }
        )
        return 0
    rows = [["NAME", "MB", "LICENCE", "WHERE"]]
    for each in found:
        where = str(each.path) if each.path else f"not here: outrider pull {each.name}"
        rows.append([each.name, f"{each.num_bytes / _MEGABYTE:.0f}", each.licence or "-", where])
    for line in listing(rows):
        console.print(line)
    return 0


def run_info(args: argparse.Namespace) -> int:
    """Describe the machine and, if asked, a model."""
    from outrider.analysis.environment import environment

    console = Console(no_color=args.no_color)
    record: dict[str, Any] = environment(["outrider", "info"])
    del record["command"], record["date"]
    record["cache"] = str(hub.cache_dir())
    if args.model is not None:
        record["model"] = describe_model(args.model)
    if args.json:
        console.print_json(record)
        return 0
    described = record.pop("model", {})
    for line in listing([[name, _show(value)] for name, value in (record | described).items()]):
        console.print(line)
    return 0


def describe_model(name: str) -> dict[str, Any]:
    """Spec, size, tokenizer and quantisation of a checkpoint, without loading its weights.

    Raises:
        ModelError: It cannot be found or used.
    """
    from dataclasses import asdict

    from outrider.models.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(name)
    spec = asdict(checkpoint.spec)
    spec["stop_token_ids"] = sorted(spec["stop_token_ids"])
    rope = spec.pop("rope")
    tokenizer = checkpoint.tokenizer
    return {
        "path": str(checkpoint.path),
        **spec,
        "rope_theta": rope["theta"],
        "rope_scaling": rope["scaling"],
        "tokenizer_vocab_size": tokenizer.vocab_size,
        "has_chat_template": tokenizer.chat_template is not None,
        **_contents(checkpoint),
    }


def _contents(checkpoint: Any) -> dict[str, Any]:
    """Number of weights, bytes on disk, and how many tensors are stored in which way."""
    from collections import Counter
    from math import prod

    from outrider.models.weights import SafetensorsSource

    if checkpoint.gguf is not None:
        source = checkpoint.gguf
        kinds = Counter(source.kinds().values())
        num_bytes = checkpoint.path.stat().st_size
    else:
        source = SafetensorsSource(checkpoint.path)
        kinds = Counter({"safetensors": len(source.shapes())})
        num_bytes = sum(file.stat().st_size for file in checkpoint.path.glob("*.safetensors"))
    return {
        "parameters": sum(prod(shape) for shape in source.shapes().values()),
        "num_bytes": num_bytes,
        "tensors": dict(kinds.most_common()),
    }


def _show(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "-" if value is None else str(value)
