"""Hashing finds what comparing every pair finds."""

from itertools import pairwise
from random import Random

from outrider.training.near_duplicates import NearDuplicates, _overlap, _shingles

WORDS = ("the", "of", "a", "farmer", "train", "has", "apples", "bought", "red", "how", "many")


def variants(num: int, seed: int) -> list[str]:
    """Random sentences, each followed by one with a few words changed."""
    random = Random(seed)
    texts: list[str] = []
    for _ in range(num):
        words = [random.choice(WORDS) for _ in range(random.randint(6, 30))]
        texts.append(" ".join(words))
        for _ in range(random.randint(0, 4)):
            words[random.randrange(len(words))] = random.choice(WORDS)
        texts.append(" ".join(words))
    return texts


def test_what_is_kept_has_no_near_duplicates_and_little_else_is_dropped() -> None:
    """Catches bands that miss pairs (one in a hundred may be), and drops without a reason."""
    threshold = 0.7
    seen = NearDuplicates(threshold)
    kept: list[frozenset[int]] = []
    missed = dropped = 0
    for text in variants(300, seed=1):
        shingles = _shingles(text)
        is_duplicate = any(_overlap(shingles, one) >= threshold for one in kept)
        was_new = seen.is_new(text)
        added = seen.add(text)
        assert was_new == added
        if added:
            kept.append(shingles)
            missed += is_duplicate
        else:
            dropped += 1
            assert is_duplicate
    assert dropped > 50
    assert missed <= dropped / 20


def test_case_and_spacing_do_not_count() -> None:
    """Catches a comparison of characters."""
    seen = NearDuplicates(0.6)
    assert seen.add("Write a short story about  a Cat.")
    assert not seen.add("write a short story\nabout a cat.")
    assert seen.add("Write a poem about the sea.")
    assert seen.add("")
    assert not seen.add("")


def test_overlap_is_jaccards() -> None:
    """Catches a ratio to one side only."""
    first, second = _shingles("a b c d e"), _shingles("a b c d f g")
    assert len(first) == 3
    assert len(second) == 4
    assert _overlap(first, second) == 2 / 5
    for one, other in pairwise(variants(10, seed=2)):
        pair = _shingles(one), _shingles(other)
        assert _overlap(*pair) == _overlap(*reversed(pair))
