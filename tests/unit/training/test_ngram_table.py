"""The table against its formula written out with dictionaries."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.ngram_table_file import NgramTable
from outrider.errors import ConfigError
from outrider.training.documents import Document
from outrider.training.ngram_table import TableRecipe, build_table

VOCAB = 5
STEP = 1 / 255 + 1e-9
Context = tuple[int, ...]


def document(number: int, tokens: list[int], num_prompt: int = 1) -> Document:
    mask = (np.arange(len(tokens)) >= num_prompt).astype(np.uint8)
    return Document(str(number), np.array(tokens, dtype=np.int32), mask)


def built(documents: list[Document], recipe: TableRecipe) -> NgramTable:
    return build_table(documents, recipe, vocab_size=VOCAB, tokenizer="f00d", target="tiny")


class Oracle:
    """Counts of every context, and the interpolated probability by its recursion."""

    def __init__(self, documents: list[Document], recipe: TableRecipe) -> None:
        self.counts: dict[Context, Counter[int]] = defaultdict(Counter)
        self.doubt = recipe.doubt
        for each in documents:
            tokens = each.tokens.tolist()
            for place in range(1, len(tokens)):
                if each.loss_mask[place]:
                    for order in range(min(recipe.max_order, place) + 1):
                        self.counts[tuple(tokens[place - order : place])][tokens[place]] += 1

    def chance(self, context: Context, token: int) -> float:
        counts = self.counts[context]
        if not context:
            return counts[token] / counts.total()
        weight = self.doubt * len(counts)
        shorter = self.chance(context[1:], token)
        return (counts[token] + weight * shorter) / (counts.total() + weight)

    def best(self, context: Context) -> float:
        return max(self.chance(context, token) for token in range(VOCAB))


texts = st.lists(
    st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=12), min_size=1, max_size=6
)


@given(texts, st.integers(1, 3), st.sampled_from([0.5, 2.0]), st.integers(1, 4))
def test_every_context_has_its_likeliest_token(
    listed: list[list[int]], num_prompt: int, doubt: float, max_order: int
) -> None:
    """Catches contexts across documents, prompts that count, and a wrong recursion."""
    documents = [document(i, tokens, num_prompt) for i, tokens in enumerate(listed)]
    recipe = TableRecipe(max_order=max_order, doubt=doubt, min_gain=0.0)
    if not any(len(tokens) > num_prompt for tokens in listed):
        with pytest.raises(ConfigError, match="no token is marked"):
            built(documents, recipe)
        return
    table, oracle = built(documents, recipe), Oracle(documents, recipe)
    contexts = [context for context in oracle.counts if context]
    assert len(table) == len(contexts)
    for context in contexts:
        guess = table.guess(context)
        assert guess is not None
        assert guess.order == len(context)
        assert guess.chance == pytest.approx(oracle.best(context), abs=STEP)
        assert oracle.chance(context, guess.token) == pytest.approx(oracle.best(context))


@given(texts, st.sampled_from([0.05, 0.3, 1.0]))
def test_pruning_changes_no_token(listed: list[list[int]], min_gain: float) -> None:
    """Catches an entry that was dropped although its fallback says something else."""
    documents = [document(i, tokens) for i, tokens in enumerate(listed)]
    whole = built(documents, TableRecipe(min_gain=0.0))
    pruned = built(documents, TableRecipe(min_gain=min_gain))
    assert len(pruned) <= len(whole)
    for tokens in listed:
        for place in range(1, len(tokens)):
            before, after = whole.guess(tokens[:place]), pruned.guess(tokens[:place])
            assert before is not None
            assert after is not None
            assert after.token == before.token
            assert abs(after.chance - before.chance) < min_gain + STEP


def test_rare_contexts_can_be_left_out() -> None:
    """Catches a limit that also takes single tokens, the last resort of every look-up."""
    documents = [document(0, [0, 1, 2, 0, 1, 2, 3, 4])]
    table = built(documents, TableRecipe(max_order=2, min_gain=0.0, min_count=2))
    assert table.guess([0, 1]).order == 2  # type: ignore[union-attr]
    assert table.guess([2, 3]).order == 1  # type: ignore[union-attr]


def test_text_of_another_model_is_refused() -> None:
    """Catches ids beyond the vocabulary, which would be drafted and rejected for ever."""
    with pytest.raises(ConfigError, match="token 9 is outside"):
        built([document(0, [1, 9])], TableRecipe())
    with pytest.raises(ConfigError, match="token -1 is outside"):
        built([document(0, [1, -1])], TableRecipe())
    with pytest.raises(ConfigError, match="no document"):
        built([], TableRecipe())


def test_recipes_out_of_range_are_refused() -> None:
    """Catches a table of no order at all."""
    with pytest.raises(ConfigError, match="max_order is 0"):
        TableRecipe(max_order=0)
    with pytest.raises(ConfigError, match="doubt is 0"):
        TableRecipe(doubt=0.0)
