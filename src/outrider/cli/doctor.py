"""`outrider doctor`: do this target, this drafter and this machine fit together?"""

import argparse
from typing import Any

from outrider.cli.inputs import add_raw_option
from outrider.cli.options import add_model_options, add_output_options
from outrider.cli.parsing import integer


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="find out what is wrong with a target, a drafter and the machine",
        description="Looks at files and settings, then drafts for a few prompts and compares what "
        "is right, position by position, with the drafter's own record. Every finding has an id, "
        "says what it means and what to do. Exit code 1 if there is an error.",
    )
    parser.add_argument(
        "drafter",
        nargs="?",
        metavar="DRAFTER",
        help="folder of a block drafter (this project's, DeepSpec's, z-lab's or vLLM's form), a "
        "shipped folder, an n-gram table, or a draft model (default: what is shipped for MODEL)",
    )
    parser.add_argument("--draft-len", type=integer(1), metavar="N", help="longest draft to be run")
    parser.add_argument(
        "--self-test",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="draft for a few prompts (default: yes)",
    )
    parser.add_argument(
        "--prompts",
        nargs="+",
        metavar="FILE.jsonl",
        help="prompts of the self-test (default: eight built-in ones)",
    )
    parser.add_argument("--limit", type=integer(1), metavar="N", help="first N prompts per file")
    add_raw_option(parser)
    parser.add_argument(
        "--max-tokens",
        type=integer(1),
        default=128,
        metavar="N",
        help="of the self-test, per prompt",
    )
    add_model_options(parser)
    add_output_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Examine; 1 if an error was found."""
    from outrider.cli.doctoring import run_doctor

    return run_doctor(args)
