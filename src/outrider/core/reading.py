"""What text is made of, as far as it says how well drafts of it hold.

Copied passages go wrong at the next number, at the end of a line or behind a comma sooner than
inside a phrase, and in calculations sooner than in code. A drafter's confidence does not see that.
A reading is a function of the tokens before each draft token, so it says nothing of the token
itself.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Kind = Literal["word", "inside", "mark", "line", "figure"]
"""A token that begins a word, goes on with one, is punctuation, ends a line, or has digits."""

WORDS: Final = "words"
CODE: Final = "code"
FIGURES: Final = "figures"
CODE_FROM: Final = 0.07
"""Share of tokens with signs of programs from which a text is code; looked at first."""
FIGURES_FROM: Final = 0.04
"""Share of tokens with digits from which a text is made of figures."""

_DIGIT: Final = re.compile(r"\d")
_SIGN: Final = re.compile(r"[(){}\[\]=_;<>#\\/|`+*]|  ")
_MARK: Final = re.compile(r"\s*[^\w\s]+\s*")


class Traits(NamedTuple):
    """What a token is by its text; `is_sign`: it has brackets, operators or indentation."""

    kind: Kind
    is_sign: bool


def traits_of(text: str) -> Traits:
    """Read the text of one token."""
    if _DIGIT.search(text):
        return Traits("figure", is_sign=False)
    return Traits(_kind(text), _SIGN.search(text) is not None)


def _kind(text: str) -> Kind:
    if "\n" in text:
        return "line"
    if _MARK.fullmatch(text):
        return "mark"
    return "inside" if text[:1].isalnum() else "word"


@dataclass(slots=True)
class Texture:
    """Counts over the tokens of one request."""

    num_read: int = 0
    figures: int = 0
    signs: int = 0

    def read(self, tokens: Iterable[Traits]) -> None:
        """Count more tokens."""
        for kind, is_sign in tokens:
            self.num_read += 1
            if kind == "figure":
                self.figures += 1
            elif is_sign:
                self.signs += 1

    @property
    def name(self) -> str:
        """What the text is made of: `CODE`, `FIGURES` or `WORDS`."""
        if self.signs > CODE_FROM * self.num_read:
            return CODE
        return FIGURES if self.figures > FIGURES_FROM * self.num_read else WORDS


@dataclass(frozen=True, slots=True)
class Reading:
    """The texture of the text before a draft, and the kind of the token before each draft token."""

    texture: str
    kinds: tuple[Kind, ...]

    def of_first(self, num_drafted: int) -> "Reading":
        """Give the reading of a draft that is cut."""
        return Reading(self.texture, self.kinds[:num_drafted])
