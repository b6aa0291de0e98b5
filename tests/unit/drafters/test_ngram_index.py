"""The n-gram index against a scan of the whole text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.drafters.ngram_index import Match, NgramIndex
from outrider.errors import ConfigError

SMALL_TEXTS = st.lists(st.integers(0, 2), max_size=60)
ODD_TEXTS = st.lists(st.sampled_from([0, -1, 1, 2**32, 2**32 + 1, 2**63]), max_size=40)
LENGTHS = st.tuples(st.integers(1, 4), st.integers(0, 4)).map(lambda pair: (pair[0], sum(pair)))


def scanned(text: list[int], min_len: int, max_len: int, max_tokens: int) -> Match:
    """Try every length and every earlier end; copy token by token."""
    for length in range(min(max_len, len(text)), min_len - 1, -1):
        suffix = text[len(text) - length :]
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == suffix:
                copied = list(text)
                for i in range(max_tokens):
                    copied.append(copied[end + i])
                drafted = tuple(copied[len(text) :])
                return Match(drafted, length) if drafted else Match()
    return Match()


def index_of(text: list[int], min_len: int = 2, max_len: int = 4) -> NgramIndex:
    index = NgramIndex(min_len, max_len)
    index.extend(text)
    return index


@settings(deadline=None, max_examples=200)
@given(SMALL_TEXTS | ODD_TEXTS, LENGTHS, st.integers(0, 9))
def test_equals_a_scan_after_every_token(
    text: list[int], lengths: tuple[int, int], max_tokens: int
) -> None:
    """Catches: a match with itself, the first instead of the last occurrence, a shorter match
    where a longer one exists, two n-grams under one key, a copy that stops at the text's end."""
    index = NgramIndex(*lengths)
    for end in range(len(text) + 1):
        index.extend(text[end - 1 : end] if end else [])
        assert index.continuation(max_tokens) == scanned(text[:end], *lengths, max_tokens)


@settings(deadline=None)
@given(SMALL_TEXTS, st.integers(0, 60))
def test_chunks_make_no_difference(text: list[int], cut: int) -> None:
    """Catches: state that is reset, or not carried over, between two calls of extend."""
    whole, chunked = index_of(text), index_of(text[:cut])
    chunked.extend(text[cut:])
    assert chunked.continuation(8) == whole.continuation(8)
    assert len(chunked) == len(text)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6, unique=True), st.integers(1, 30))
def test_a_loop_fills_the_draft(period: list[int], max_tokens: int) -> None:
    """Catches: a draft cut short where the copy meets the end of the text."""
    match = index_of(period * 3).continuation(max_tokens)
    assert match.tokens == tuple(period[i % len(period)] for i in range(max_tokens))


@settings(deadline=None)
@given(SMALL_TEXTS, LENGTHS)
def test_memory_is_linear(text: list[int], lengths: tuple[int, int]) -> None:
    """Catches: entries kept per occurrence instead of per n-gram, or beyond max_len."""
    index = index_of(text, *lengths)
    distinct = {
        tuple(text[i : i + n]) for n in range(1, lengths[1] + 1) for i in range(len(text) - n + 1)
    }
    assert index.num_entries == len(distinct) <= lengths[1] * len(text)


@pytest.mark.parametrize("text", [[], [5], [5, 6], [1, 2, 3, 4]])
def test_nothing_repeated_gives_nothing(text: list[int]) -> None:
    """Catches: the suffix found at its own place, and indexing errors on tiny texts."""
    assert index_of(text, 1, 4).continuation(8) == Match()


def test_a_later_occurrence_wins() -> None:
    """Catches: drafting from the oldest occurrence: (1, 2) was followed by 3 first, by 4 last."""
    assert index_of([1, 2, 3, 1, 2, 4, 9, 1, 2]).continuation(2) == Match((4, 9), 2)


@pytest.mark.parametrize(("min_len", "max_len"), [(0, 3), (3, 2), (-1, -1)])
def test_impossible_lengths_are_refused(min_len: int, max_len: int) -> None:
    """Catches: lengths that silently never match, or that match the empty suffix everywhere."""
    with pytest.raises(ConfigError, match=f"{min_len} to {max_len}"):
        NgramIndex(min_len, max_len)
