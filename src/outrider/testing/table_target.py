"""A target that is an explicit table of probabilities, over a memory that shows every mistake.

Instead of keys and values each slot of the paged memory holds a token id, and a row's distribution
is looked up by the prefix *read back from the slots*. A wrong block table or a roll-back that keeps
too much or too little therefore changes what comes out. Each slot also holds a digest of everything
before it, as keys and values do: a prefix hit on a block of another prefix is noticed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

import torch
from torch import Tensor

from outrider.errors import ConfigError
from outrider.models.spec import ModelSpec
from outrider.sampling.noise import Purpose, mix, uniform
from outrider.sampling.rows import ArgmaxSampler, RowSampler
from outrider.target.layout import spans_of
from outrider.tensor.shapes import LogitRow
from outrider.tensor.span import Span
from outrider.tensor.window import Scores, Taps, VerifyWindow
from outrider.testing.tiny import tiny_spec

Table = Callable[[tuple[int, ...]], LogitRow]
"""From all tokens up to and including a position to the log-probabilities of the next one."""

EMPTY_SLOT: Final = -1


class SeededTable:
    """A distribution for every prefix, drawn from a seed.

    It depends on the `recent` last tokens, None for all of them. `sharpness` spreads the logits:
    near 0 all tokens are alike, above 3 one token mostly wins.
    """

    def __init__(
        self, vocab_size: int, seed: int, *, recent: int | None = None, sharpness: float = 2.0
    ) -> None:
        """Draw nothing yet: a prefix gets its row when it is first asked for."""
        self.vocab_size = vocab_size
        self._recent = recent
        self._row = lru_cache(maxsize=None)(_drawn_row)
        self._key = (vocab_size, seed, sharpness)

    def __call__(self, prefix: tuple[int, ...]) -> LogitRow:
        """Give the float64 log-probabilities after `prefix`."""
        recent = prefix if self._recent is None else prefix[len(prefix) - self._recent :]
        return self._row(recent, *self._key)


def _drawn_row(recent: tuple[int, ...], vocab_size: int, seed: int, sharpness: float) -> LogitRow:
    draws = [
        uniform(seed, Purpose.SEED, len(recent), *recent, token) for token in range(vocab_size)
    ]
    logits = torch.tensor(draws, dtype=torch.float64) * (2 * sharpness)
    return torch.log_softmax(logits, dim=-1)


@dataclass(frozen=True, slots=True)
class ScoredWindow:
    """What one call computed: rows of the window, and those of them that were judged."""

    num_tokens: int
    num_judged: int


class TableTarget:
    """See the module. `windows` has one record per call, for tests that count forwards."""

    can_roll_back: ClassVar[bool] = True

    def __init__(
        self,
        table: Table,
        vocab_size: int,
        *,
        num_blocks: int,
        block_size: int,
        max_context_len: int = 512,
        stop_token_ids: frozenset[int] = frozenset(),
        sampler: RowSampler | None = None,
    ) -> None:
        """Serve `table` with a memory of `num_blocks` blocks; None for `sampler` is arg-max."""
        self.sampler = sampler or ArgmaxSampler()
        self.spec: ModelSpec = tiny_spec(
            vocab_size=vocab_size, max_context_len=max_context_len, stop_token_ids=stop_token_ids
        )
        self.block_size = block_size
        self.windows: list[ScoredWindow] = []
        self._table = table
        self._memory = [EMPTY_SLOT] * (num_blocks * block_size)
        self._digests = [0] * (num_blocks * block_size)

    def score(self, window: VerifyWindow, taps: Taps = ()) -> Scores:
        """Write the window's tokens into their slots, then look every judged row up.

        Raises:
            ConfigError: Features are tapped; a table has none.
        """
        if taps:
            raise ConfigError(f"layers {taps} are tapped, but a table target has no layers")
        spans = spans_of(window)
        contexts = [self._slots(span) for span in spans]
        self._write(spans, contexts)
        rows: list[Tensor] = []
        first_row, first_token, num_tokens = [], [], 0
        for span, slots in zip(spans, contexts, strict=True):
            first_token.append(num_tokens)
            first_row.append(len(rows) if span.num_judged else -1)
            num_tokens += len(span.tokens)
            prefix = self._read(slots)
            first_judged = span.context_len - span.num_judged
            rows.extend(
                self._table(prefix[: position + 1])
                for position in range(first_judged, span.context_len)
            )
        self.windows.append(ScoredWindow(num_tokens, len(rows)))
        empty = torch.empty(0, self.spec.vocab_size, dtype=torch.float64)
        logits = torch.stack(rows) if rows else empty
        return Scores(logits, tuple(first_row), None, tuple(first_token))

    def _slots(self, span: Span) -> list[int]:
        """Slots of the span's whole context, in order; the block table must be a real one."""
        table, size = span.block_table, self.block_size
        assert len(set(table)) == len(table), f"block table {table} names a block twice"
        assert len(table) * size >= span.context_len, f"{table} cannot hold {span.context_len}"
        return [table[i // size] * size + i % size for i in range(span.context_len)]

    def _write(self, spans: Sequence[Span], contexts: Sequence[list[int]]) -> None:
        written: set[int] = set()
        for span, slots in zip(spans, contexts, strict=True):
            digest = self._digests[slots[span.kv_len - 1]] if span.kv_len else 0
            for token, slot in zip(span.tokens, slots[span.kv_len :], strict=True):
                assert slot not in written, f"slot {slot} is written twice in one window"
                written.add(slot)
                digest = mix(digest, token)
                self._memory[slot], self._digests[slot] = token, digest
        for span, slots in zip(spans, contexts, strict=True):
            own = set(slots[: span.kv_len])
            assert not own & written, "a window writes into a prefix that is read as cached"

    def _read(self, slots: Sequence[int]) -> tuple[int, ...]:
        """Tokens of the slots, which must have been written one after the other."""
        digest = 0
        for slot in slots:
            assert self._memory[slot] != EMPTY_SLOT, f"slot {slot} was never written"
            digest = mix(digest, self._memory[slot])
            assert digest == self._digests[slot], f"slot {slot} belongs to another prefix"
        return tuple(self._memory[slot] for slot in slots)
