"""Where the prompts of a command come from."""

import argparse
import sys

from outrider.analysis.prompts import PromptRow, load_prompts, require_unicode
from outrider.cli.parsing import integer
from outrider.errors import ConfigError

STDIN = "-"


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    """Add a prompt, or a file of prompts."""
    parser.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="the text; - or nothing reads stdin"
    )
    parser.add_argument(
        "--prompt-file",
        action="append",
        default=[],
        metavar="FILE.jsonl",
        help='JSON Lines with a "prompt" each, or a directory of such files; may be repeated',
    )


def add_prompt_set_options(parser: argparse.ArgumentParser) -> None:
    """Add files of prompts, as measurements need them."""
    parser.add_argument(
        "--prompts",
        nargs="+",
        required=True,
        metavar="FILE.jsonl",
        help='JSON Lines with a "prompt" each, or directories of such files',
    )
    parser.add_argument("--limit", type=integer(1), metavar="N", help="first N prompts per file")
    add_raw_option(parser)


def add_cost_options(parser: argparse.ArgumentParser, *, steps: str) -> None:
    """Add a step cost table for a simulation; `steps` says which ones it may be scaled to."""
    parser.add_argument(
        "--cost-table",
        required=True,
        metavar="TABLE",
        help="written by `outrider profile --out`, or the name of a shipped one",
    )
    parser.add_argument(
        "--fit",
        action="store_true",
        help=f"scale the costs so that {steps} take what they took",
    )


def add_raw_option(parser: argparse.ArgumentParser) -> None:
    """Add the switch that leaves the chat template out."""
    parser.add_argument("--raw", action="store_true", help="continue the text: no chat template")


def prompts_of(args: argparse.Namespace, *, fallback: str | None = None) -> list[PromptRow]:
    """Read the prompts; `fallback` stands in where none is given, else stdin is read.

    Raises:
        ConfigError: There is none, it is empty, or a file cannot be used.
    """
    if args.prompt_file:
        if args.prompt is not None:
            raise ConfigError("a prompt and --prompt-file exclude each other; leave one out")
        return load_prompts(args.prompt_file)
    text = args.prompt
    if text is None and fallback is not None:
        text = fallback
    if text is None or text == STDIN:
        text = _from_stdin(explicit=text == STDIN)
    if not text.strip():
        raise ConfigError("the prompt is empty; give some text")
    require_unicode(text, "the prompt")
    return [PromptRow("prompt", "prompt", text)]


def _from_stdin(*, explicit: bool) -> str:
    if sys.stdin is None or (sys.stdin.isatty() and not explicit):
        raise ConfigError('there is no prompt; write for example: outrider generate "Say hello"')
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"stdin is not text in this locale's encoding ({error})") from error
