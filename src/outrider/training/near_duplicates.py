"""Texts that say nearly the same, found by hashing (Broder 1997; Indyk and Motwani 1998)."""

import re
import zlib
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

# A pair whose shingles overlap by half shares one of 16 bands of 4 hashes with probability 0.64,
# by 0.7 with 0.99; which of those are duplicates is then decided on the shingles themselves.
_BANDS, _ROWS = 16, 4
_SHINGLE_WORDS = 3
_WORD = re.compile(r"\w+|[^\w\s]")
_PRIME = (1 << 31) - 1

Hashes = NDArray[np.int64]


class NearDuplicates:
    """Texts seen so far; a text is a duplicate if its shingles overlap enough with one of them.

    A shingle is three words in a row, letter case and spacing aside. The overlap is Jaccard's:
    common shingles by all shingles of both.
    """

    def __init__(self, threshold: float) -> None:
        """Call two texts duplicates from this overlap on, at least 0.5."""
        self._threshold = threshold
        numbers = np.random.default_rng(0)  # Any fixed family of hash functions will do.
        self._factors = numbers.integers(1, _PRIME, _BANDS * _ROWS, dtype=np.int64)
        self._offsets = numbers.integers(0, _PRIME, _BANDS * _ROWS, dtype=np.int64)
        self._texts: list[frozenset[int]] = []
        self._bands: dict[bytes, list[int]] = defaultdict(list)

    def is_new(self, text: str) -> bool:
        """Whether no text seen so far is nearly the same."""
        shingles = _shingles(text)
        return not self._has(shingles, self._keys(shingles))

    def add(self, text: str) -> bool:
        """Remember the text, unless it is a duplicate; say whether it was remembered."""
        shingles = _shingles(text)
        keys = self._keys(shingles)
        if self._has(shingles, keys):
            return False
        for key in keys:
            self._bands[key].append(len(self._texts))
        self._texts.append(shingles)
        return True

    def add_all(self, texts: Iterable[str]) -> None:
        """Remember texts."""
        for text in texts:
            self.add(text)

    def _has(self, shingles: frozenset[int], keys: list[bytes]) -> bool:
        candidates = {number for key in keys for number in self._bands.get(key, ())}
        return any(_overlap(shingles, self._texts[n]) >= self._threshold for n in candidates)

    def _keys(self, shingles: frozenset[int]) -> list[bytes]:
        values = np.fromiter(shingles, dtype=np.int64, count=len(shingles))
        hashed = (values[:, None] * self._factors + self._offsets) % _PRIME
        smallest: Hashes = hashed.min(axis=0).reshape(_BANDS, _ROWS)
        return [bytes([band]) + smallest[band].tobytes() for band in range(_BANDS)]


def _shingles(text: str) -> frozenset[int]:
    words = _WORD.findall(text.lower()) or [""]
    last = max(1, len(words) - _SHINGLE_WORDS + 1)
    # Below 2^31, so that a product with a factor stays inside 64 bits.
    return frozenset(
        zlib.crc32(" ".join(words[i : i + _SHINGLE_WORDS]).encode()) % _PRIME for i in range(last)
    )


def _overlap(first: frozenset[int], second: frozenset[int]) -> float:
    common = len(first & second)
    return common / (len(first) + len(second) - common)
