"""What a user asked for: sampling parameters and the request around them."""

import json as json_text
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, Self

from outrider.core.ids import RequestId
from outrider.errors import RequestRejected, unknown_name

VerifyRule = Literal["matching", "rejection"]
VERIFY_RULES: tuple[VerifyRule, ...] = ("matching", "rejection")

# Given the output tokens so far, the ids that may come next; None allows all of them.
TokenMask = Callable[[Sequence[int]], Iterable[int] | None]

MAX_PENALTY = 2.0
MAX_LOGIT_BIAS = 100.0
# Dividing logits by less would leave the range of float32.
GREEDY_BELOW = 1e-5


MAX_GRAMMAR_LENGTH = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form an output must have; exactly one field is given. Names as in vLLM.

    The whole output has the form, from its first token to the end-of-sequence token.

    Raises:
        RequestRejected: None or several are given, or one cannot be meant; the message names it.
    """

    json: str | Mapping[str, Any] | None = None
    """A JSON schema; kept as text."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    """A regular expression without look-around, for the whole output."""
    choice: tuple[str, ...] | None = None
    """One of these texts."""
    grammar: str | None = None
    """A context-free grammar in the Lark notation of llguidance; its first rule is `start`."""

    def __post_init__(self) -> None:
        """Bring the schema and the choices into one form, and refuse what cannot be meant."""
        names = [each.name for each in fields(self)]
        given = [name for name in names if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise RequestRejected(
                f"structured_outputs has {' and '.join(given) or 'nothing'}; give exactly one of "
                f"{', '.join(names)}"
            )
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        if self.json_object not in (True, False):
            raise RequestRejected(f"json_object is {self.json_object!r}, but it must be true")
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and not _is_text(value):
                raise RequestRejected(f"{name} is {value!r}, but it must be Unicode text")
        choice: object = self.choice
        if choice is not None:
            if not (isinstance(choice, list | tuple) and choice and all(map(_is_text, choice))):
                raise RequestRejected(f"choice is {choice!r}, but it must be texts, none empty")
            object.__setattr__(self, "choice", tuple(choice))
        self._refuse_size(given[0])

    def _refuse_size(self, name: str) -> None:
        value = getattr(self, name)
        length = sum(map(len, value)) if name == "choice" else len(str(value))
        if length > MAX_GRAMMAR_LENGTH:
            raise RequestRejected(
                f"{name} has {length} characters, but at most {MAX_GRAMMAR_LENGTH} are taken"
            )


def _schema_text(schema: object) -> str:
    """Spell a schema as one line of JSON, so that equal requests have equal text."""
    try:
        value = json_text.loads(schema) if isinstance(schema, str) else schema
        if not isinstance(value, Mapping):
            raise RequestRejected(f"json is {value!r:.80}, but a schema is a JSON object")
        return json_text.dumps(dict(value), separators=(",", ":"))
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, RequestRejected):
            raise
        raise RequestRejected(f"json is no JSON schema: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it ends.

    The warps act in this order: allowed tokens, mask and form, logit bias, min_tokens, penalties,
    temperature, min_p, top_k, top_p. Penalties see the history each position really has, so a
    drafted prefix counts while it is being verified and is forgotten when it is rejected.

    Raises:
        RequestRejected: A value is outside its range; the message names it.
    """

    max_tokens: int = 256
    """Most tokens to generate; at least 1."""
    min_tokens: int = 0
    """No stop token, stop string or end-of-sequence token ends the request before this many."""
    temperature: float = 1.0
    """0 (below 1e-5) takes the likeliest token; else it sharpens or flattens the distribution."""
    top_k: int = 0
    """Keep the `top_k` most likely tokens (ties at the border stay); 0 keeps all."""
    top_p: float = 1.0
    """Keep the fewest tokens that hold this probability (ties at the border stay); 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the most likely one."""
    repetition_penalty: float = 1.0
    """Divides (multiplies, if negative) the logits of tokens in prompt or output."""
    presence_penalty: float = 0.0
    """Subtracted once from the logits of tokens in the output."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence in the output."""
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    """Added to the logits of the given token ids."""
    allowed_token_ids: frozenset[int] | None = None
    """Only these ids may be generated."""
    token_mask: TokenMask | None = None
    """Called with the output so far, drafted prefix included; returns the ids allowed next."""
    structured_outputs: StructuredOutputsParams | None = None
    """The form the output must have."""
    seed: int | None = None
    """Fixes the noise of this request; None derives one from the engine's seed."""
    n: int = 1
    """How many continuations of the prompt; continuation i uses a seed of its own."""
    stop: tuple[str, ...] = ()
    """Strings that end the output; the text is cut before them."""
    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the output, besides the model's own end-of-sequence tokens."""
    ignore_eos: bool = False
    """Treat the model's end-of-sequence tokens like any other token."""
    logprobs: int | None = None
    """Report each token's log-probability (of the raw logits) and those of this many top tokens."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    verify_rule: VerifyRule | None = None
    """Overrides the engine's rule for this request."""
    max_draft_len: int | None = None
    """Overrides the engine's draft length for this request; 0 turns speculation off."""

    def __post_init__(self) -> None:
        """Normalise containers and refuse values out of range."""
        self._refuse_wrong_types()
        object.__setattr__(self, "stop", _as_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", frozenset(self.stop_token_ids))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", frozenset(self.allowed_token_ids))
        bias = {int(token): value for token, value in self.logit_bias.items()}
        object.__setattr__(self, "logit_bias", MappingProxyType(bias))
        for name, value, holds, rule in self._rules():
            if not holds:
                raise RequestRejected(f"{name} is {value!r}, but it must be {rule}")

    def _refuse_wrong_types(self) -> None:
        """Name the option before a comparison deep inside fails on its type."""
        for names, fits, wanted in _TYPES:
            for name in names:
                value = getattr(self, name)
                if not fits(value):
                    raise RequestRejected(f"{name} is {value!r}, but it must be {wanted}")

    def _rules(self) -> Iterable[tuple[str, object, bool, str]]:
        """Yield (name, value, whether it holds, the rule in words)."""
        yield from self._integer_rules()
        yield from (
            ("temperature", self.temperature, _within(self.temperature, 0, math.inf), "0 or more"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", self.min_p, 0 <= self.min_p <= 1, "between 0 and 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                0 < self.repetition_penalty < math.inf,
                "above 0",
            ),
            *(
                (name, value, _within(value, -MAX_PENALTY, MAX_PENALTY), "between -2 and 2")
                for name, value in (
                    ("presence_penalty", self.presence_penalty),
                    ("frequency_penalty", self.frequency_penalty),
                )
            ),
            (
                "logit_bias",
                dict(self.logit_bias),
                all(_within(v, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS) for v in self.logit_bias.values()),
                "a map of token ids to values between -100 and 100",
            ),
            (
                "allowed_token_ids",
                self.allowed_token_ids,
                self.allowed_token_ids is None or len(self.allowed_token_ids) > 0,
                "None or at least one id",
            ),
            ("stop", self.stop, all(self.stop), "strings that are not empty"),
            (
                "ignore_eos",
                self.ignore_eos,
                not (self.ignore_eos and self.structured_outputs),
                "false with structured_outputs, whose end is the end-of-sequence token",
            ),
            (
                "verify_rule",
                self.verify_rule,
                self.verify_rule is None or self.verify_rule in VERIFY_RULES,
                "None, 'matching' or 'rejection'",
            ),
        )

    def _integer_rules(self) -> Iterable[tuple[str, object, bool, str]]:
        lowest = {"max_tokens": 1, "min_tokens": 0, "top_k": 0, "n": 1}
        optional = {"logprobs": 0, "max_draft_len": 0}
        for name, low in lowest.items():
            value = getattr(self, name)
            yield name, value, _is_integer(value) and value >= low, f"an integer of {low} or more"
        for name, low in optional.items():
            value = getattr(self, name)
            fine = value is None or (_is_integer(value) and value >= low)
            yield name, value, fine, f"None or an integer of {low} or more"
        yield "seed", self.seed, self.seed is None or _is_integer(self.seed), "None or an integer"
        yield (
            "min_tokens",
            self.min_tokens,
            self.min_tokens <= self.max_tokens,
            f"at most max_tokens, which is {self.max_tokens}",
        )

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_history_warps(self) -> bool:
        """Whether the distribution depends on the tokens before, beyond the model's own logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.min_tokens > 0
            or self.token_mask is not None
        )

    @property
    def is_plain_argmax(self) -> bool:
        """Whether the next token is the arg-max of the model's raw logits."""
        return (
            self.is_greedy
            and not self.has_history_warps
            and not self.logit_bias
            and self.allowed_token_ids is None
            and self.structured_outputs is None
        )

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Build from a mapping.

        Raises:
            RequestRejected: A name is unknown (the nearest one is suggested) or a value is refused.
        """
        known = {f.name for f in fields(cls)}
        for name in options:
            if name not in known:
                raise RequestRejected(unknown_name("sampling option", name, known))
        return cls(**options)


def _as_strings(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _within(value: float, low: float, high: float) -> bool:
    return low <= value <= high and math.isfinite(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    """Half a character, which JSON can spell, is no text."""
    if not isinstance(value, str) or not value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _are_ids(value: object) -> bool:
    return isinstance(value, Collection) and all(_is_integer(each) for each in value)


def _are_strings(value: object) -> bool:
    return value is None or (
        isinstance(value, Collection) and all(isinstance(each, str) for each in value)
    )


def _is_bias(value: object) -> bool:
    """JSON objects have strings for keys, so digits pass for an id."""
    return (
        isinstance(value, Mapping)
        and all(_is_integer(key) or (isinstance(key, str) and key.isdecimal()) for key in value)
        and all(map(_is_number, value.values()))
    )


_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty")
_TYPES: tuple[tuple[tuple[str, ...], Callable[[object], bool], str], ...] = (
    ((*_FLOATS, "frequency_penalty"), _is_number, "a number"),
    (("stop",), _are_strings, "a string or strings"),
    (("stop_token_ids",), _are_ids, "token ids"),
    (("allowed_token_ids",), lambda ids: ids is None or _are_ids(ids), "None or token ids"),
    (("logit_bias",), _is_bias, "a map of token ids to numbers"),
    (("token_mask",), lambda mask: mask is None or callable(mask), "None or a function"),
    (
        ("structured_outputs",),
        lambda form: form is None or isinstance(form, StructuredOutputsParams),
        "None or StructuredOutputsParams",
    ),
    (("ignore_eos", "skip_special_tokens"), lambda flag: isinstance(flag, bool), "true or false"),
)


@dataclass(frozen=True, slots=True)
class Request:
    """One continuation to generate: a prompt, how to sample it, and the seed that makes it exact.

    `group` and `index` tell which prompt and which of its `n` continuations this is.
    """

    id: RequestId
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    group: int = 0
    index: int = 0
