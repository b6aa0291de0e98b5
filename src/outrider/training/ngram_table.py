"""Builds an n-gram table from text the target wrote: count, smooth, choose, prune.

Probability of a token w after a context of n tokens, interpolated as by Witten and Bell (1991):

    P_n(w) = (count(context, w) + weight · P_{n-1}(w)) / (count(context) + weight)

where the weight is `doubt · distinct`, `distinct` being how many different tokens followed the
context, and P_{n-1} belongs to the context that is one token shorter. The table holds for each
context the token with the highest P_n. An entry that says what the next shorter entry says anyway,
with nearly the same chance, is left out: the look-up falls back to the shorter one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.drafters.ngram_table_file import (
    MOST_TOKENS,
    START,
    NgramTable,
    TableHeader,
    extend_hashes,
)
from outrider.errors import ConfigError
from outrider.training.documents import Document

Keys = NDArray[np.uint64]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecipe:
    """How a table is built. The defaults were chosen on held-out text of the default model."""

    max_order: int = 4
    """Longest context, in tokens."""
    doubt: float = 4.0
    """Weight of the shorter context per distinct next token."""
    min_count: int = 1
    """Occurrences from which a context of two or more tokens is held."""
    min_gain: float = 0.15
    """An entry that says what the shorter context says is held from this difference in chance."""
    min_chance: float = 0.0
    """Entries less certain than this are left out."""

    def __post_init__(self) -> None:
        """Refuse what makes no table."""
        if not 1 <= self.max_order <= MOST_ORDERS:
            raise ConfigError(
                f"max_order is {self.max_order}, but contexts have 1 to {MOST_ORDERS} tokens"
            )
        if self.doubt <= 0:
            raise ConfigError(f"doubt is {self.doubt}, but it must be above 0")


MOST_ORDERS = 8


@dataclass(slots=True)
class _Order:
    """Statistics of all contexts of one length.

    `context_of` and `pair_of` say for each counted position which context precedes it and which
    (context, next token) it is. Arrays by pair: `chance`; by context: `key`, `top`, `top_chance`,
    `count`.
    """

    context_of: Ints
    pair_of: Ints
    chance: Floats
    key: Keys
    count: Ints
    top: Ints
    top_chance: Floats


def build_table(
    documents: Iterable[Document],
    recipe: TableRecipe,
    *,
    vocab_size: int,
    tokenizer: str,
    target: str,
) -> NgramTable:
    """Count every token the target wrote, after up to `max_order` tokens of the same document.

    Args:
        documents: what to count.
        recipe: how.
        vocab_size: ids of the target.
        tokenizer: fingerprint of its tokenizer.
        target: its name, for people.

    Raises:
        ConfigError: The target wrote nothing, or a token is outside its vocabulary.
    """
    texts = list(documents)
    tokens, places, reach = _positions(texts, vocab_size)
    next_tokens = tokens[places]
    unigrams = np.bincount(next_tokens, minlength=vocab_size) / len(next_tokens)
    shorter: _Order | None = None
    held: _Held | None = None
    keys = np.full(len(places), START, dtype=np.uint64)
    kept = _Kept([], [], [])
    for order in range(1, recipe.max_order + 1):
        inside = reach >= order
        behind = tokens[np.where(inside, places - order, 0)].astype(np.uint64)
        # A context that would reach beyond its document keeps the key of the shorter one.
        keys = np.where(inside, extend_hashes(keys, behind), keys)
        stats = _count(keys, next_tokens, recipe.doubt, shorter, unigrams)
        held = _hold(stats, order, recipe, shorter, held, kept)
        shorter = stats
    header = TableHeader(
        max_order=recipe.max_order,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        target=target,
        num_tokens=len(places),
        num_documents=len(texts),
    )
    return NgramTable.build(header, *kept.joined())


@dataclass(slots=True)
class _Kept:
    """Entries of the table so far, one array per order."""

    keys: list[Keys]
    tokens: list[Ints]
    chances: list[Floats]

    def joined(self) -> tuple[Keys, Ints, Floats]:
        return (
            np.concatenate(self.keys),
            np.concatenate(self.tokens),
            np.concatenate(self.chances),
        )


@dataclass(slots=True)
class _Held:
    """What a look-up of each context of one length finds: a token (-1: nothing) and its chance."""

    token: Ints
    chance: Floats


def _positions(texts: Sequence[Document], vocab_size: int) -> tuple[Ints, Ints, Ints]:
    """All tokens, where the counted ones are, and how many tokens precede each in its document."""
    if not texts:
        raise ConfigError("there is no document to count; name a data set with text of the target")
    tokens = np.concatenate([document.tokens for document in texts]).astype(np.int64)
    mask = np.concatenate([document.loss_mask for document in texts]).astype(bool)
    reach = np.concatenate([np.arange(len(document.tokens)) for document in texts])
    places = np.flatnonzero(mask & (reach > 0))
    if not len(places):
        raise ConfigError("no token is marked as written by the target; check the loss masks")
    largest = int(tokens.max())
    if largest >= min(vocab_size, MOST_TOKENS) or int(tokens.min()) < 0:
        raise ConfigError(
            f"token {largest if largest >= vocab_size else int(tokens.min())} is outside the "
            f"target's vocabulary of {vocab_size} ids; was this text written by another model?"
        )
    return tokens, places, reach[places]


def _count(
    keys: Keys, next_tokens: Ints, doubt: float, shorter: _Order | None, unigrams: Floats
) -> _Order:
    """Count contexts and pairs of one length and smooth them with the next shorter one."""
    key, first, context_of, count = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    joint = context_of * (int(next_tokens.max()) + 1) + next_tokens
    _, pair_first, pair_of, pair_count = np.unique(
        joint, return_index=True, return_inverse=True, return_counts=True
    )
    owner = context_of[pair_first]
    distinct = np.bincount(owner, minlength=len(key))
    if shorter is None:
        lower = unigrams[next_tokens[pair_first]]
        favourite = np.full(len(key), unigrams.argmax())
        favourite_chance = unigrams[favourite]
    else:
        lower = shorter.chance[shorter.pair_of[pair_first]]
        above = shorter.context_of[first]
        favourite, favourite_chance = shorter.top[above], shorter.top_chance[above]
    weight = doubt * distinct
    chance = (pair_count + weight[owner] * lower) / (count + weight)[owner]
    best = _first_of_each(owner, np.lexsort((-chance, owner)))
    top, top_chance = next_tokens[pair_first[best]], chance[best]
    # The shorter context's favourite may never have followed here and still be likelier.
    other = weight / (count + weight) * favourite_chance
    top = np.where(other > top_chance, favourite, top)
    top_chance = np.maximum(other, top_chance)
    return _Order(context_of, pair_of, chance, key, count, top, top_chance)


def _first_of_each(owner: Ints, order: Ints) -> Ints:
    """Of pairs sorted by `order`, the first one of each owner."""
    sorted_owner = owner[order]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = sorted_owner[1:] != sorted_owner[:-1]
    return order[is_first]


def _hold(
    stats: _Order,
    order: int,
    recipe: TableRecipe,
    shorter: _Order | None,
    found: _Held | None,
    kept: _Kept,
) -> _Held:
    """Add the entries worth holding to `kept`; say what a look-up of each context finds then."""
    fallback = _Held(np.full(len(stats.key), -1), np.zeros(len(stats.key)))
    if shorter is not None and found is not None:
        position = np.zeros(len(stats.key), dtype=np.int64)
        position[stats.context_of] = np.arange(len(stats.context_of))
        above = shorter.context_of[position]
        fallback = _Held(found.token[above], found.chance[above])
    says_new = (stats.top != fallback.token) | (
        np.abs(stats.top_chance - fallback.chance) >= recipe.min_gain
    )
    is_known = np.zeros(len(stats.key), dtype=bool)
    if shorter is not None:  # contexts cut short by the document's begin are the shorter ones
        is_known = np.isin(stats.key, shorter.key)
    enough = (stats.count >= recipe.min_count) | (order == 1)
    holds = says_new & enough & ~is_known & (stats.top_chance >= recipe.min_chance)
    kept.keys.append(stats.key[holds])
    kept.tokens.append(stats.top[holds])
    kept.chances.append(stats.top_chance[holds])
    return _Held(
        np.where(holds, stats.top, fallback.token),
        np.where(holds, stats.top_chance, fallback.chance),
    )
