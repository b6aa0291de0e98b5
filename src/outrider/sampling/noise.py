"""Counter-based noise: a pure function of (seed, purpose, counter, token), never of call order.

Matching keys its noise by output position: the target's token at position t is then a fixed
function of the logits, so drafts and lengths cannot change it, and a drafter that uses the same
noise agrees with the target more often than an independent draw would. Rejection keys its noise by
the request's round and slot: there the length policy may read the past, and a position that is
drafted again must not meet the noise that rejected it.
"""

import math
from enum import IntEnum

import torch
from jaxtyping import Float, Int
from torch import Tensor

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_UNIT = 2.0**-53

# Noise of at least _FAR needs a word of at least _FAR_WORD; one word in 20,000 is.
_FAR = 10.0
_FAR_WORD = int(math.exp(-math.exp(-_FAR)) * 2**53) - 2


class Purpose(IntEnum):
    """What a random number is for; different purposes never share a number."""

    MATCH = 1
    DRAFT = 2
    ACCEPT = 3
    ADD = 4
    SEED = 5


def mix(*words: int) -> int:
    """Hash integers to 64 bits (the SplitMix64 finaliser, chained)."""
    state = 0
    for word in words:
        state = (state + (word & _MASK64) + _GOLDEN) & _MASK64
        state = ((state ^ (state >> 30)) * _MIX1) & _MASK64
        state = ((state ^ (state >> 27)) * _MIX2) & _MASK64
        state ^= state >> 31
    return state


def uniform(seed: int, purpose: Purpose, *counters: int) -> float:
    """Draw a number in [0, 1) with 53 random bits."""
    return (mix(seed, purpose, *counters) >> 11) * _UNIT


def gumbel(
    seed: int, purpose: Purpose, counter: int, tokens: Int[Tensor, " candidates"]
) -> Float[Tensor, " candidates"]:
    """Give standard Gumbel noise, one float64 per token id.

    argmax(log-probabilities + noise) is a draw from the distribution (Gumbel-max). The value of a
    token depends on its id alone, not on which other tokens are asked for.
    """
    return _to_gumbel(_words(seed, purpose, counter, tokens))


def gumbel_argmax(
    scores: Float[Tensor, " candidates"],
    seed: int,
    purpose: Purpose,
    counter: int,
    tokens: Int[Tensor, " candidates"],
) -> Int[Tensor, ""]:
    """Give the index of the largest score + noise, the first of equals.

    Equal to `(scores + gumbel(…)).argmax()` and faster: a candidate far below the best score can
    only win with a rare noise, which shows in its random word without taking two logarithms.
    """
    words = _words(seed, purpose, counter, tokens)
    best = scores.argmax()
    bound = scores[best] + _to_gumbel(words[best]) - _FAR
    contenders = torch.nonzero((scores >= bound) | (words >= _FAR_WORD)).squeeze(1)
    noisy = scores[contenders] + _to_gumbel(words[contenders])
    return contenders[noisy.argmax()]


def _words(seed: int, purpose: Purpose, counter: int, tokens: Tensor) -> Tensor:
    """Hash each token under the key of this counter to 53 bits."""
    key = mix(seed, purpose, counter)
    state = tokens.to(torch.int64) * _signed(_GOLDEN) + _signed(key)
    state = (state ^ _shift(state, 30)) * _signed(_MIX1)
    state = (state ^ _shift(state, 27)) * _signed(_MIX2)
    return _shift(state ^ _shift(state, 31), 11)


def _to_gumbel(words: Tensor) -> Tensor:
    """Map 53-bit words to Gumbel noise, increasing in the word."""
    # Half a unit keeps the uniform inside (0, 1): both logarithms stay finite.
    uniforms = (words.to(torch.float64) + 0.5) * _UNIT
    return -torch.log(-torch.log(uniforms))


def _signed(word: int) -> int:
    """Read 64 bits as a signed integer, the only 64-bit type torch multiplies."""
    return word - (1 << 64) if word >> 63 else word


def _shift(state: Tensor, bits: int) -> Tensor:
    """Shift right without the sign; torch's own shift is arithmetic."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)
