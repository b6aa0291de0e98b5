"""Small grammars with an oracle of their own: derivatives of regular expressions, token by token.

The oracle shares nothing with the library under test. Its vocabulary has tokens of several bytes
that overlap in every way, tokens the grammars never use, special tokens and padding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import tokenizers
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from outrider.core.request import StructuredOutputsParams
from outrider.engine.grammar import GrammarCompiler
from outrider.models.bpe import byte_spelling
from outrider.models.tokenizer import Tokenizer

END = 1
TEXTS = [
    *("<|bos|>", "<|end|>"),
    *("a", "b", "c", "1", "2", "ab", "ba", "bc", "abc", "aab", "12", "b1", "cab"),
    *("{", "}", '"', ":", ",", '{"', '":', '"a"', "}z", "é"),
]
PADDING = 2
VOCAB = len(TEXTS) + PADDING


def tokenizer() -> Tokenizer:
    """A byte-level vocabulary of `TEXTS`; what it encodes does not matter here."""
    spelling = byte_spelling()
    spelled = [*TEXTS[:2], *("".join(spelling[b] for b in text.encode()) for text in TEXTS[2:])]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={text: index for index, text in enumerate(spelled)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in TEXTS[:2]])
    return Tokenizer(backend, special_tokens={"eos_token": TEXTS[END]})


@cache
def compiler() -> GrammarCompiler:
    """One for all tests, as in an engine."""
    return GrammarCompiler(tokenizer(), VOCAB, frozenset({END}))


@dataclass(frozen=True)
class Expression:
    """A regular expression: its spelling, whether it matches nothing at all, its derivative.

    `derive(char)` is what may follow once `char` was read; None if it may not come.
    """

    text: str
    is_complete: bool
    derive: Callable[[str], "Expression | None"]


EMPTY = Expression("", True, lambda _: None)


def literal(char: str) -> Expression:
    return Expression(char, False, lambda other: EMPTY if other == char else None)


def either(left: Expression | None, right: Expression | None) -> Expression | None:
    if left is None or right is None:
        return left or right
    return Expression(
        f"(?:{left.text}|{right.text})",
        left.is_complete or right.is_complete,
        lambda char: either(left.derive(char), right.derive(char)),
    )


def then(first: Expression | None, second: Expression) -> Expression | None:
    if first is None:
        return None
    return Expression(
        f"(?:{first.text})(?:{second.text})",
        first.is_complete and second.is_complete,
        lambda char: either(
            then(first.derive(char), second), second.derive(char) if first.is_complete else None
        ),
    )


def repeated(inner: Expression) -> Expression:
    return Expression(
        f"(?:{inner.text})*", True, lambda char: then(inner.derive(char), repeated(inner))
    )


def matches(expression: Expression, text: str) -> bool:
    """Whether the whole text has the form."""
    rest = behind(expression, text)
    return rest is not None and rest.is_complete


def behind(expression: Expression, text: str) -> Expression | None:
    """What may follow `text`; None if it is not even a beginning."""
    rest: Expression | None = expression
    for char in text:
        rest = rest and rest.derive(char)
    return rest


def token_mask(expression: Expression) -> Callable[[Sequence[int]], set[int]]:
    """The oracle's mask, for `SamplingParams.token_mask`."""

    @cache
    def allowed(output: tuple[int, ...]) -> frozenset[int]:
        if END in output:
            return frozenset({END})
        if any(token >= len(TEXTS) for token in output):
            return frozenset()
        rest = behind(expression, "".join(TEXTS[token] for token in output))
        if rest is None:
            return frozenset()
        fitting = {i for i, text in enumerate(TEXTS) if i > END and behind(rest, text) is not None}
        return frozenset(fitting | ({END} if rest.is_complete else set()))

    return lambda output: set(allowed(tuple(output)))


def form(expression: Expression) -> StructuredOutputsParams:
    """The same expression for the engine."""
    return StructuredOutputsParams(regex=expression.text)


def _pair(draw: st.DrawFn, inner: st.SearchStrategy[Expression]) -> Expression:
    kind, left, right = (
        draw(st.sampled_from(["or", "then", "star", "maybe"])),
        draw(inner),
        draw(inner),
    )
    made = {
        "or": lambda: either(left, right),
        "then": lambda: then(left, right),
        "star": lambda: then(repeated(left), right),
        "maybe": lambda: then(either(left, EMPTY), right),
    }[kind]()
    assert made is not None
    return made


expressions: st.SearchStrategy[Expression] = st.recursive(
    st.sampled_from([literal(char) for char in "aabbc12é"]),
    lambda inner: st.composite(_pair)(inner),
    max_leaves=8,
)
"""Expressions that match at least one text of at least one letter."""
