"""Every sampling option with a value that matters for a given output, alone and together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from outrider.core.request import SamplingParams, StructuredOutputsParams
from outrider.sampling.noise import mix

NUM_COMBINATIONS: Final = 6
_ALLOWED: Final = 512
_FORM: Final = "[a-z ]{1,24}"


@dataclass(frozen=True, slots=True)
class Variant:
    """A name for people and the parameters to run with."""

    name: str
    params: SamplingParams


def variants(
    base: SamplingParams, tokens: Sequence[int], text: str, vocab_size: int
) -> Iterator[Variant]:
    """Vary `base`, whose plain output is `tokens` and `text`, option by option and in combinations.

    Each value is chosen so that it changes that output, or ends it in the middle.
    """
    single = _singles(base, tokens, text, vocab_size)
    for name, changes in single.items():
        yield Variant(name, _changed(base, changes))
    together = [name for name in single if name not in _ALONE]
    yield Variant("all together", _changed(base, _joined(single, together)))
    for number in range(NUM_COMBINATIONS):
        chosen = [name for name in together if mix(number, *name.encode()) % 2]
        yield Variant(" + ".join(chosen), _changed(base, _joined(single, chosen)))


# These say how much and from where, or exclude others, and would hide what they are combined with.
_ALONE: Final = frozenset(
    {
        "max_tokens",
        "temperature",
        "seed",
        "n",
        "verify_rule",
        "max_draft_len",
        "structured_outputs",
        "token_mask",
    }
)


def _singles(
    base: SamplingParams, tokens: Sequence[int], text: str, vocab_size: int
) -> dict[str, dict[str, Any]]:
    middle = tokens[len(tokens) // 2] if tokens else 0
    half = len(text) // 2
    allowed = frozenset(tokens) | set(range(0, vocab_size, 2))
    masks = [
        frozenset(tokens) | set(range(start, min(vocab_size, _ALLOWED), 2)) for start in (0, 1)
    ]
    changes: dict[str, dict[str, Any]] = {
        "max_tokens": {"max_tokens": 1},
        "min_tokens": {
            "min_tokens": min(base.max_tokens, 8),
            "stop_token_ids": frozenset({middle}),
        },
        "temperature": {"temperature": 1.4},
        "top_k": {"top_k": 7},
        "top_p": {"top_p": 0.8},
        "min_p": {"min_p": 0.05},
        "repetition_penalty": {"repetition_penalty": 1.3},
        "presence_penalty": {"presence_penalty": 0.7},
        "frequency_penalty": {"frequency_penalty": 0.4},
        "logit_bias": {"logit_bias": dict.fromkeys(tokens[:8], -2.0)},
        "allowed_token_ids": {"allowed_token_ids": allowed},
        "token_mask": {"token_mask": lambda output: masks[len(output) % 2]},
        "seed": {"seed": (base.seed or 0) + 77},
        "n": {"n": 2},
        "stop_token_ids": {"stop_token_ids": frozenset({middle})},
        "ignore_eos": {"ignore_eos": True},
        "logprobs": {"logprobs": 3},
        "skip_special_tokens": {"skip_special_tokens": False},
        "verify_rule": {"verify_rule": "matching"},
        "max_draft_len": {"max_draft_len": 2},
        "structured_outputs": {"structured_outputs": StructuredOutputsParams(regex=_FORM)},
    }
    if text[half : half + 3].strip():
        changes["stop"] = {"stop": (text[half : half + 3],)}
    if base.is_greedy:
        # A temperature under rejection would be a promise of another kind.
        del changes["temperature"]
    return changes


def _joined(single: dict[str, dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for name in names:
        joined |= single[name]
    return joined


def _changed(base: SamplingParams, changes: dict[str, Any]) -> SamplingParams:
    return replace(base, **changes)
