"""Features of given documents, by reading them: one forward over all tokens, nothing generated."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from outrider.core.ids import BlockId
from outrider.engine.llm import LLM
from outrider.errors import ConfigError
from outrider.tensor.shapes import Hidden
from outrider.tensor.span import Span
from outrider.tensor.window import Taps

DEFAULT_BATCH_TOKENS = 2048
_DEFAULT_FEATURE_LAYERS = 4


def training_taps(num_layers: int, feature_layers: Sequence[int] | None = None) -> Taps:
    """Choose the layers of a data set: those the drafter reads, then the last one.

    The outputs of the last layer give the teacher's distribution. By default the drafter reads four
    layers (fewer of a small target), spaced evenly from the second to the last but one.

    Raises:
        ConfigError: A layer is not one of the target's, or is the last one.
    """
    last = num_layers - 1
    if feature_layers is None:
        most = max(last - 1, 0)
        first = min(1, most)
        count = min(_DEFAULT_FEATURE_LAYERS, most - first + 1)
        spaced = torch.linspace(first, most, count).round().int().tolist()
        return (*spaced, last)
    for layer in feature_layers:
        if not -1 <= layer < last:
            raise ConfigError(
                f"layer {layer} cannot be tapped: this target's layers go from 0 to {last}, -1 is "
                f"the embedding, and layer {last} is always kept for the teacher"
            )
    if not feature_layers or len(set(feature_layers)) < len(feature_layers):
        raise ConfigError(f"taps are {list(feature_layers)}; name each layer once, at least one")
    return (*feature_layers, last)


def capture(
    llm: LLM,
    documents: Sequence[Sequence[int]],
    taps: Taps,
    *,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
) -> Iterator[Hidden]:
    """Compute the outputs of the tapped layers: [tokens, layers * hidden] in bfloat16 per document.

    Whole documents share a forward of up to `batch_tokens` tokens; a longer one is read in pieces.
    On the native backend the bits are those that generating the document gave.

    Raises:
        ValueError: A document is empty.
    """
    if not documents:
        return
    if not all(documents):
        raise ValueError("a document is empty; features need at least one token")
    block_size = llm.config.block_size
    longest = max(map(len, documents))
    capacity = max(batch_tokens, longest) + block_size * min(len(documents), batch_tokens)
    target = llm.new_target(capacity)
    for batch in _batches(documents, batch_tokens):
        tables = _tables([len(document) for document in batch], block_size)
        features = []
        for spans in _forwards(batch, tables, batch_tokens):
            scored = target.score_spans(spans, taps).features
            assert scored is not None, "the target was not asked for features"
            features.append(scored.to(torch.bfloat16))
        yield from torch.cat(features).split([len(document) for document in batch])


def reading(llm: LLM, taps: Taps) -> Callable[[Tensor], Hidden]:
    """Make a function that computes one document's features as a shard would keep them.

    The row of the last token is zero: it is a label, which the target never read.
    """

    def features_of(tokens: Tensor) -> Hidden:
        [features] = capture(llm, [tokens.tolist()], taps)
        features[-1] = 0
        return features

    return features_of


def _batches(
    documents: Sequence[Sequence[int]], batch_tokens: int
) -> Iterator[list[Sequence[int]]]:
    batch: list[Sequence[int]] = []
    for document in documents:
        if batch and sum(map(len, batch)) + len(document) > batch_tokens:
            yield batch
            batch = []
        batch.append(document)
    yield batch


def _tables(lengths: Sequence[int], block_size: int) -> list[list[BlockId]]:
    """KV blocks of its own for each document, from the first block on."""
    tables: list[list[BlockId]] = []
    used = 0
    for length in lengths:
        count = -(-length // block_size)
        tables.append([BlockId(used + i) for i in range(count)])
        used += count
    return tables


def _forwards(
    batch: Sequence[Sequence[int]], tables: Sequence[Sequence[BlockId]], size: int
) -> list[list[Span]]:
    """All documents at once, or one document in pieces that follow each other."""
    if len(batch) > 1:
        both = zip(batch, tables, strict=True)
        return [[Span(tokens, 0, table, num_judged=1) for tokens, table in both]]
    return [
        [Span(batch[0][start : start + size], start, tables[0], num_judged=1)]
        for start in range(0, len(batch[0]), size)
    ]
