"""N-gram tables for tests of drafters."""

from collections.abc import Sequence

import numpy as np

from outrider.drafters.ngram_table_file import NgramTable
from outrider.training.documents import Document
from outrider.training.ngram_table import TableRecipe, build_table


def table_of_texts(
    texts: Sequence[Sequence[int]], *, vocab_size: int, tokenizer: str = "f00d"
) -> NgramTable:
    """Count texts of which the target wrote every token."""
    documents = [
        Document(str(number), np.array(text, dtype=np.int32), np.ones(len(text), dtype=np.uint8))
        for number, text in enumerate(texts)
    ]
    return build_table(
        documents, TableRecipe(), vocab_size=vocab_size, tokenizer=tokenizer, target="test"
    )
