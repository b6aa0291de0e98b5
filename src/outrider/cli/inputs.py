"""Where the prompts of a command come from."""

import argparse
import sys

from outrider.analysis.prompts import PromptRow, load_prompts
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
    return [PromptRow("prompt", "prompt", text)]


def _from_stdin(*, explicit: bool) -> str:
    if sys.stdin is None or (sys.stdin.isatty() and not explicit):
        raise ConfigError('there is no prompt; write for example: outrider generate "Say hello"')
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"stdin is not text in this locale's encoding ({error})") from error
