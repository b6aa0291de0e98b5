"""A thin, typed face of the C++ decoder: spans in, torch tensors without a copy out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from outrider.native import _native
from outrider.tensor.shapes import Hidden, Logits
from outrider.tensor.span import Span, SpanScores
from outrider.tensor.window import Taps

KvType = Literal["int16", "float32"]

NormedRows = Float[Tensor, "judged hidden"]
Features = Float[Tensor, "tokens features"]

_FloatRows = np.ndarray[Any, np.dtype[np.float32]]
_SpanFields = tuple[Sequence[int], int, Sequence[int], int]

Machine = _native.Machine
Matrix = _native.Matrix
Weights = _native.Weights


@dataclass(frozen=True, slots=True)
class RunnerSetting:
    """What a runner needs besides the weights.

    `frequencies` are angles per position of every pair of dimensions; cosine and sine are
    multiplied by `attention_factor`. Half-precision keys and values are the default of the product;
    float32 ones serve comparisons.
    """

    frequencies: Sequence[float]
    attention_factor: float
    num_blocks: int
    block_size: int
    kv_type: KvType = "int16"


class NativeRunner:
    """One model with a paged KV pool of its own. The caller owns the block tables.

    The bits of a row depend on its tokens and positions alone. Errors of the C++ side arrive as
    ValueError.
    """

    def __init__(self, machine: Machine, weights: Weights, setting: RunnerSetting) -> None:
        """Reserve the KV pool; memory is taken as it is written.

        Raises:
            ValueError: a weight is missing, or the block size is no multiple of 16.
        """
        self.machine = machine
        self._weights = weights
        self._decoder = _native.Decoder(
            machine,
            weights,
            setting.frequencies,
            setting.attention_factor,
            setting.num_blocks,
            setting.block_size,
            setting.kv_type,
        )
        self.kv_bytes = self._decoder.kv_bytes

    def score(self, spans: Sequence[Span], taps: Taps = ()) -> SpanScores:
        """Compute spans in one call: logits of judged rows, features of every row if tapped."""
        result = self._decoder.forward(_fields(spans), taps, "logits")
        logits = _tensor(result.logits)
        assert logits is not None
        return SpanScores(logits, _tensor(result.features))

    def greedy(self, spans: Sequence[Span], taps: Taps = ()) -> tuple[list[int], Features | None]:
        """Like `score`, with the arg-max of each judged row; -1 where logits are not numbers."""
        result = self._decoder.forward(_fields(spans), taps, "ids")
        return result.ids, _tensor(result.features)

    def block(
        self, spans: Sequence[Span], inputs: Hidden | None = None, taps: Taps = ()
    ) -> tuple[NormedRows, Features | None]:
        """Compute blocks whose rows see the cached context and, without a mask, their whole block.

        `inputs` replace the embeddings of the tokens. Returns the judged rows after the final norm,
        ready for `head`, and the features. The keys and values of the block land in the cache, to
        be overwritten by the next.
        """
        rows = None if inputs is None else _array(inputs)
        result = self._decoder.forward(_fields(spans), taps, "hidden", False, rows)  # noqa: FBT003
        normed = _tensor(result.normed)
        assert normed is not None
        return normed, _tensor(result.features)

    def write_context(self, spans: Sequence[Span], rows: Hidden) -> None:
        """Cache the keys and values each layer projects from `rows`, a row per token of the spans.

        The rows enter the projections as they are: no embedding, no norm, no attention.
        """
        self._decoder.write_context(_fields(spans), _array(rows))

    def head(self, normed: NormedRows, part: Matrix | None = None) -> Logits:
        """Score rows after the final norm over the vocabulary or over a part of it."""
        logits = _tensor(self._decoder.head(_array(normed), part))
        assert logits is not None
        return logits

    def head_part(self, token_ids: Sequence[int]) -> Matrix:
        """Copy the head's rows of some tokens, in that order, for `head`."""
        return self._weights.head.select_rows(token_ids)


def _fields(spans: Sequence[Span]) -> list[_SpanFields]:
    return [(span.tokens, span.kv_len, span.block_table, span.num_judged) for span in spans]


def _tensor(rows: _FloatRows | None) -> Tensor | None:
    return None if rows is None else torch.from_numpy(rows)


def _array(rows: Tensor) -> _FloatRows:
    return np.ascontiguousarray(rows.detach().to("cpu", torch.float32).numpy())
