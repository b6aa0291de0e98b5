"""The table drafter proposes what its table says and fits one tokenizer alone."""

from pathlib import Path

import pytest

from outrider.core.ids import RequestId
from outrider.core.request import Request, SamplingParams
from outrider.core.sequence import Sequence
from outrider.drafters.ngram_table import NgramTableDrafter
from outrider.drafters.ngram_table_file import open_table
from outrider.engine.llm import LLM
from outrider.errors import ConfigError, IncompatibleDraft, ModelNotFound
from outrider.models.checkpoint import open_checkpoint
from outrider.tensor.batch import Batch, BatchRow
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.tables import table_of_texts

TEXT = [3, 4, 5, 6, 7, 3, 4, 5, 6, 8]


def row(tokens: list[int], max_draft_len: int) -> BatchRow:
    request = Request(RequestId("r"), tuple(tokens), SamplingParams(), seed=0)
    return BatchRow(Sequence.of(request), len(tokens) - 1, 1, max_draft_len, ())


def test_each_row_is_drafted_from_its_own_end() -> None:
    """Catches a row that drafts without leave, and confidences that are not the table's."""
    drafter = NgramTableDrafter(table_of_texts([TEXT], vocab_size=9), 4, min_survival=0.0)
    proposal = drafter.propose(Batch((row([3, 4], 2), row([3, 4], 0), row([9, 5], 1))), "matching")
    assert [each.tokens for each in proposal.rows] == [(5, 6), (), (6,)]
    first = proposal.rows[0]
    assert first.probs is None
    assert first.sources == ("ngram-table", "ngram-table")
    assert first.confidence is not None
    assert all(0 < chance < 1 for chance in first.confidence)


def test_a_draft_ends_where_it_is_unlikely() -> None:
    """Catches a limit on single chances instead of their product."""
    table = table_of_texts([TEXT], vocab_size=9)
    whole = NgramTableDrafter(table, 4, min_survival=0.0).propose(Batch((row([3], 4),)), "matching")
    confidence = whole.rows[0].confidence
    assert confidence is not None
    assert len(confidence) == 4
    limit = confidence[0] * confidence[1] * 0.999
    cut = NgramTableDrafter(table, 4, min_survival=limit).propose(Batch((row([3], 4),)), "matching")
    assert cut.rows[0].tokens == whole.rows[0].tokens[:2]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two targets with different tokenizers."""
    folder = tmp_path_factory.mktemp("models")
    return (
        write_tiny_checkpoint(folder / "one", tiny_spec(vocab_size=64), seed=1),
        write_tiny_checkpoint(folder / "two", tiny_spec(vocab_size=65), seed=1),
    )


def test_a_table_of_another_tokenizer_is_refused(models: tuple[Path, Path], tmp_path: Path) -> None:
    """Catches ids that mean other words, which would be drafted for ever and never hold."""
    own, other = (open_checkpoint(path) for path in models)
    path = tmp_path / "table.safetensors"
    table_of_texts([TEXT], vocab_size=64, tokenizer=own.tokenizer.fingerprint).save(path)
    assert open_table(str(path), own).header.vocab_size == 64
    with pytest.raises(IncompatibleDraft, match="build one from this target's own text"):
        open_table(str(path), other)


def test_a_table_must_be_named(models: tuple[Path, Path]) -> None:
    """Catches a method that runs without its table and drafts nothing."""
    path = str(models[0])
    with pytest.raises(ConfigError, match="needs a table"):
        LLM(path, dtype="float32", speculative_config={"method": "ngram-table"})
    config = {"method": "ngram-table", "model": "absent.safetensors"}
    with pytest.raises(ModelNotFound, match="there is no n-gram table"):
        LLM(path, dtype="float32", speculative_config=config)
