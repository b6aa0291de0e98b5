"""argparse with errors of one sentence that name the nearest option or choice."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from outrider.errors import unknown_name

BAD_USAGE = 2

_CHOICE = re.compile(r"(?:argument (\S+): )?invalid choice: '?(.*?)'? \(choose from (.*)\)", re.S)


class CommandParser(argparse.ArgumentParser):
    """A parser that suggests what was probably meant and exits with 2."""

    def __init__(self, **options: Any) -> None:
        """Take the options of `ArgumentParser`; abbreviated option names are not accepted."""
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", _Formatter)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        """Print one sentence and exit."""
        choice = _CHOICE.fullmatch(message)
        if choice is not None:
            kind = choice[1] or "choice"
            known = [name.strip(" '\"") for name in choice[3].split(",")]
            message = unknown_name(kind.lower(), choice[2], known)
        sys.stderr.write(f"{self.prog}: {message} (see {self.prog} --help)\n")
        sys.exit(BAD_USAGE)

    def refuse_unknown(self, extra: Sequence[str]) -> None:
        """Exit if arguments were left over, naming the option that the first one is near to."""
        if not extra:
            return
        first = extra[0].partition("=")[0]
        if not first.startswith("-"):
            self.error(f"unexpected argument {first!r}; quote a text of several words")
        names = [name for name in self._option_string_actions if name.startswith("--")]
        self.error(unknown_name("option", first, names))


class _Formatter(argparse.HelpFormatter):
    """Shows defaults that are worth showing."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        is_shown = isinstance(action.default, str | int | float) and not (
            isinstance(action.default, bool) or action.default == argparse.SUPPRESS
        )
        if action.option_strings and is_shown and "default" not in text:
            return f"{text} (default: %(default)s)"
        return text


def integer(low: int = 0) -> Callable[[str], int]:
    """Parse an integer of `low` or more."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from error
        if value < low:
            raise argparse.ArgumentTypeError(f"{value} is too small, it must be {low} or more")
        return value

    return parse


def number(text: str) -> float:
    """Parse a number."""
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error


def numbers(text: str) -> list[float]:
    """Parse numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of numbers like 0.9,0.8"
        ) from error


def token_ids(text: str) -> frozenset[int]:
    """Parse token ids separated by commas."""
    try:
        return frozenset(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of token ids like 11,42"
        ) from error


def token_bias(text: str) -> tuple[int, float]:
    """Parse `ID:BIAS`."""
    token, separator, bias = text.partition(":")
    try:
        if not separator:
            raise ValueError
        return int(token), float(bias)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a token id and a bias like 42:-5"
        ) from error
