"""The `outrider` command: one parser, one exit code.

Exit codes: 0 fine, 1 a check failed, 2 bad usage or input, 130 interrupted by Ctrl-C. Commands
import torch and the engine when they run, so that help and bad usage answer at once.
"""

import io
import os
import sys
from collections.abc import Sequence

import outrider
from outrider.cli import (
    analyze,
    bench,
    calibrate,
    certify,
    chat,
    data,
    doctor,
    estimate,
    evaluate,
    export,
    generate,
    models,
    profile,
    recommend,
    serve,
    train,
    whatif,
)
from outrider.cli.parsing import BAD_USAGE, CommandParser
from outrider.errors import OutriderError

INTERRUPTED = 130
BROKEN_PIPE = 141

COMMANDS = (models.add_pull, models.add_models, models.add_info, generate.add, chat.add, serve.add)
PROOFS = (
    certify.add,
    doctor.add,
    evaluate.add,
    bench.add,
    analyze.add,
    estimate.add,
    whatif.add,
    recommend.add,
    profile.add,
    calibrate.add,
)
MAKING = (
    data.add,
    train.add,
    export.add,
)


def build_parser() -> CommandParser:
    """Build the parser of all commands."""
    parser = CommandParser(prog="outrider", description=outrider.__doc__)
    parser.add_argument("--version", action="version", version=f"outrider {outrider.__version__}")
    commands = parser.add_subparsers(
        metavar="COMMAND", dest="command", required=True, parser_class=CommandParser
    )
    for add in (*COMMANDS, *PROOFS, *MAKING):
        add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code."""
    if sys.stderr is None:
        # What says nothing useful to nobody must not end up in the results.
        sys.stderr = io.StringIO()
    if sys.stdout is None:
        sys.stderr.write("outrider: stdout is closed; send it somewhere, for example to a file\n")
        return BAD_USAGE
    args, extra = build_parser().parse_known_args(argv)
    args.parser.refuse_unknown(extra)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A model may say what the terminal's encoding cannot.
        sys.stdout.reconfigure(errors="replace")
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return BROKEN_PIPE
    except (OutriderError, OSError) as error:
        if args.debug:
            raise
        sys.stderr.write(f"{args.parser.prog}: {error}\n")
        return BAD_USAGE
    return code


def _forget_stdout() -> None:
    """Let nothing more be written to a reader that has gone, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
