"""Structured outputs: forms compiled by llguidance to matchers over the model's own tokens.

llguidance is optional and imported when the first request wants a form. It parses bytes with an
Earley parser over derivatives of regular expressions, and walks the vocabulary as a trie for masks.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from outrider.core.matcher import TokenMatcher
from outrider.core.request import StructuredOutputsParams
from outrider.errors import RequestRejected
from outrider.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

CACHED_GRAMMARS: Final = 32
LONGEST_REASON: Final = 300
# White space between the parts of a JSON text; without a bound a model can pad for ever.
JSON_SPACE: Final = r"[ \n\t]{1,40}"
# Some 20 ms to read a grammar, 15 ms and 2.5 ms for a mask, 50 MB of lexer states.
_LIMITS: Final = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 500_000,
}
# Where only one text can follow, all tokens that spell it may come and not one spelling alone: a
# mask then says what can still be completed, and nothing of how it was reached.
_EVERY_TOKEN: Final = '%llguidance {"no_forcing": true}\n'
_DEAD_END: Final = "NoExtensionBias"


class GrammarCompiler:
    """Makes matchers for one model. The vocabulary is read once, the latest grammars are kept."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_tokens: frozenset[int]) -> None:
        """Prepare nothing yet; `vocab_size` counts the ids the model pads its vocabulary with.

        `stop_tokens` end a complete output.
        """
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._stop_tokens = sorted(stop_tokens)
        self._fresh = lru_cache(CACHED_GRAMMARS)(self._compile)

    def matcher(self, form: StructuredOutputsParams) -> TokenMatcher:
        """Make a matcher of its own for one request; callable from any thread.

        Raises:
            RequestRejected: llguidance is not installed, the model has no end-of-sequence token, or
                the form cannot be compiled within the limits.
        """
        return _Matcher(self._fresh(form), frozenset(self._stop_tokens), -(-self._vocab_size // 8))

    def _compile(self, form: StructuredOutputsParams) -> "llguidance.LLMatcher":
        library = _llguidance()
        if not self._stop_tokens:
            raise RequestRejected(
                "the model has no end-of-sequence token, so no form could end; leave "
                "structured_outputs out"
            )
        limits = library.LLParserLimits(**_LIMITS, verbose_errors=False)
        matcher: llguidance.LLMatcher = library.LLMatcher(
            self._vocabulary, _source(library, form), log_level=0, limits=limits
        )
        # A dead end can show only when the first mask is asked for.
        probe = matcher.deep_copy()
        probe.compute_bitmask()
        fault = _fault_of(matcher) or _fault_of(probe)
        if fault is not None:
            raise RequestRejected(f"structured_outputs cannot be used: {fault}")
        return matcher

    @cached_property
    def _vocabulary(self) -> "llguidance.LLTokenizer":
        library = _llguidance()
        spelled = self._tokenizer.token_bytes()
        made: llguidance.LLTokenizer
        if spelled is None:
            made = library.LLTokenizer(
                self._tokenizer.backend.to_str(), self._vocab_size, eos_token=self._stop_tokens
            )
            return made
        padding = [b""] * (self._vocab_size - len(spelled))
        vocabulary = _Vocabulary(
            tokens=[*spelled, *padding],
            special_token_ids=sorted(self._tokenizer.special_ids | set(self._stop_tokens)),
            eos_token_id=self._stop_tokens[0],
            tokenizer=self._tokenizer,
        )
        made = library.LLTokenizer(
            library.TokenizerWrapper(vocabulary), eos_token=self._stop_tokens
        )
        return made


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """What llguidance wants to know of a tokenizer, under its names."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    tokenizer: Tokenizer
    bos_token_id: int | None = None

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokenize; only ever asked for text a grammar forces."""
        plain = text if isinstance(text, str) else text.decode("utf-8", errors="replace")
        return self.tokenizer.encode(plain, add_special_tokens=False)


class _Matcher:
    """See `core.matcher.TokenMatcher`. The library never hears of the end: it is judged here."""

    def __init__(self, fresh: "llguidance.LLMatcher", ends: frozenset[int], num_bytes: int) -> None:
        self.fault: str | None = None
        self._fresh = fresh
        self._ends = ends
        self._nothing = bytes(num_bytes)
        self._only_ends = sum(1 << token for token in ends).to_bytes(num_bytes, "little")
        self._restart()

    def _restart(self) -> None:
        self._matcher = self._fresh.deep_copy()
        self._tokens: list[int] = []
        self._masks: dict[int, bytes] = {}

    def num_fitting(self, output: Sequence[int], drafts: Sequence[int]) -> int:
        tokens = [*output, *drafts]
        length = self._length(tokens)
        reached = self._go_to(tokens[:length])
        if reached == length < len(tokens) and self._matcher.is_accepting():
            reached += 1
        return max(0, reached - len(output))

    def masks(self, output: Sequence[int], drafts: Sequence[int]) -> list[bytes]:
        self.fault = None
        tokens = [*output, *drafts]
        length = self._length(tokens)
        masks = [
            self._mask_behind(tokens[:end])
            for end in range(len(output), min(length, len(tokens)) + 1)
        ]
        while len(masks) <= len(drafts):
            masks.append(self._mask_behind_end(tokens[: len(output) + len(masks)], length))
        return masks

    def _length(self, tokens: list[int]) -> int:
        """Count the tokens before the end of the text, all of them if it goes on."""
        return next((i for i, token in enumerate(tokens) if token in self._ends), len(tokens))

    def _mask_behind_end(self, tokens: list[int], length: int) -> bytes:
        """Behind the end there are only ends; a text that ended early goes nowhere."""
        is_end = self._go_to(tokens[:length]) == length and self._matcher.is_accepting()
        is_end = is_end and self._ends.issuperset(tokens[length:])
        return self._only_ends if is_end else self._nothing

    def _mask_behind(self, tokens: list[int]) -> bytes:
        known = self._masks.get(len(tokens))
        if known is not None and self._tokens[: len(tokens)] == tokens:
            return known
        if self.fault is not None or self._go_to(tokens) < len(tokens):
            return self._nothing
        mask = self._matcher.compute_bitmask()
        self.fault = _fault_of(self._matcher)
        if self.fault is not None:
            self._restart()
            return self._nothing
        self._masks[len(tokens)] = mask
        return mask

    def _go_to(self, tokens: list[int]) -> int:
        """Stand behind `tokens`, or behind as many of them as fit; say how many."""
        common = _common(self._tokens, tokens)
        surplus = len(self._tokens) - common
        if surplus:
            if not self._matcher.rollback(surplus):
                self._restart()
                return self._go_to(tokens)
            del self._tokens[common:]
            self._masks = {end: mask for end, mask in self._masks.items() if end <= common}
        if common < len(tokens):
            taken = self._matcher.try_consume_tokens(tokens[common:])
            self._tokens += tokens[common : common + taken]
            if common + taken < len(tokens):
                self._recover()
        return len(self._tokens)

    def _recover(self) -> None:
        """Stand where it stood if the library broke on a token, which may be a draft's."""
        fault = _fault_of(self._matcher)
        if fault is not None:
            reached, masks = self._tokens, self._masks
            self._restart()
            taken = self._matcher.try_consume_tokens(reached)
            self.fault, self._tokens, self._masks = fault, reached[:taken], masks


def _common(left: list[int], right: list[int]) -> int:
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    return next(i for i in range(length) if left[i] != right[i])


def _fault_of(matcher: "llguidance.LLMatcher") -> str | None:
    """Say why a matcher cannot go on; None if it can, or if its text is complete."""
    if matcher.is_stopped() and not matcher.is_accepting():
        lines = [line.strip() for line in matcher.get_error().splitlines()]
        said = "; ".join(line for line in lines if line and not line.startswith("<"))
        if said in ("", _DEAD_END):
            return "no token of this vocabulary leads to a text that fits"
        # The library repeats the grammar it was given, however long it is.
        return said if len(said) <= LONGEST_REASON else f"{said[:LONGEST_REASON]} …"
    return None


def _source(library: Any, form: StructuredOutputsParams) -> str:
    """Spell a form as the Lark grammar that llguidance compiles."""
    if form.grammar is not None:
        # Who sets options of the library sets them all.
        return form.grammar if "%llguidance" in form.grammar else _EVERY_TOKEN + form.grammar
    if form.regex is not None:
        start = f"/{library.regex_to_lark(form.regex, '')}/"
    elif form.choice is not None:
        # One terminal: as many as there are texts would take the library's limits of work.
        texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in form.choice)
        start = f"CHOICE\nCHOICE: {texts}"
    else:
        schema: dict[str, Any] = {"type": "object"}
        if form.json is not None:
            schema = json.loads(str(form.json))
        options = schema.get("x-guidance", {})
        if isinstance(options, dict):
            options = {"whitespace_pattern": JSON_SPACE} | options
        start = f"%json {json.dumps({**schema, 'x-guidance': options})}"
    return f"{_EVERY_TOKEN}start: {start}\n"


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise RequestRejected(
            "structured outputs need llguidance, which is not installed; install outrider[serve]"
        ) from error
    return llguidance
