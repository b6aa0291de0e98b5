"""`outrider export`: a block drafter in another project's format, or theirs in ours."""

import argparse
from pathlib import Path
from typing import Any

from outrider.cli.console import Console
from outrider.cli.options import DEFAULT_MODEL, add_output_options
from outrider.errors import ConfigError

FORMATS = ("vllm", "deepspec", "zlab", "outrider")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "export",
        help="write a block drafter in another project's format",
        description="Write a block drafter as vLLM (speculators), DeepSpec or z-lab's DFlash load "
        "it; `--to outrider` reads any of those formats.",
    )
    parser.add_argument("drafter", type=Path, metavar="DRAFTER", help="directory of the drafter")
    parser.add_argument(
        "--to", required=True, choices=FORMATS, metavar="FORMAT", help=", ".join(FORMATS)
    )
    parser.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="MODEL",
        help="the target it was trained for, whose embedding some formats repeat",
    )
    parser.add_argument(
        "--target-name",
        metavar="NAME",
        help="what the other engine finds the target under (default: MODEL)",
    )
    parser.add_argument(
        "--output", required=True, type=Path, metavar="DIR", help="directory to write"
    )
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Convert."""
    from outrider.drafters.block.checkpoint import load_checkpoint, require_target, save_checkpoint
    from outrider.interop import deepspec, speculators, zlab
    from outrider.interop.launch import vllm_command
    from outrider.interop.schema import TargetMatrices
    from outrider.models.checkpoint import open_checkpoint
    from outrider.models.fields import read_json
    from outrider.models.fingerprint import target_hash

    if args.output.resolve() == args.drafter.resolve():
        raise ConfigError(f"--output is the drafter's own directory {args.drafter}; name another")
    console = Console(no_color=args.no_color)
    target = open_checkpoint(args.model)
    name = args.target_name or args.model
    config = args.drafter / "config.json"
    is_speculator = config.is_file() and "speculators_model_type" in read_json(config)
    if is_speculator:
        drafter = speculators.read(args.drafter, target.spec)
    else:
        drafter = load_checkpoint(args.drafter)
    require_target(drafter.config, target_hash(target), args.model)
    if args.to == "outrider":
        save_checkpoint(args.output, drafter)
    else:
        formats = {"vllm": speculators, "deepspec": deepspec, "zlab": zlab}
        matrices = TargetMatrices.read(target, name)
        formats[args.to].export(drafter, matrices).write(args.output)
    record: dict[str, Any] = {"format": args.to, "output": str(args.output), "target": name}
    console.print(f"{args.drafter} as {args.to} in {args.output}")
    if args.to == "vllm":
        record["command"] = vllm_command(name, str(args.output), drafter.config)
        console.print(record["command"])
    if args.json:
        console.print_json(record)
    return 0
