"""What is shipped can be found, read and understood, and says nothing of where it was made."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.drafters.block.checkpoint import BlockCheckpoint, load_checkpoint, save_checkpoint
from outrider.drafters.shipped import find_shipped, read_manifest
from outrider.errors import ConfigError, IncompatibleDraft
from outrider.models.checkpoint import Checkpoint, open_checkpoint
from outrider.models.fingerprint import target_hash
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from outrider.training.ship import Parcel, data_facts, ship
from tests.block_drafters import random_network, tiny_config
from tests.tables import table_of_texts

OPTIONS: dict[str, Any] = {"num_speculative_tokens": 4}
RUN = {
    "temperature": 0.0,
    "mean_accept_length": 2.25,
    "mean_accept_length_interval": [2.0, 2.5],
    "mean_accept_length_over_domains": 2.375,
    "conditional_accept_rates": [0.75, None],
    "num_prompts": 9,
    "num_looping": 1,
}
RECORD = {
    "mean_accept_length": 2.25,
    "runs": [
        RUN
        | {
            "domains": {"code": RUN},
            "not_looping": RUN | {"num_prompts": 8},
            "prompts": [{"id": "secret"}],
        }
    ],
    "setting": {"draft_len": 4, "max_tokens": 128},
    "backend": "native",
    "environment": {
        "command": ["outrider", "eval", "/Users/me/data/code.jsonl"],
        "date": "2026-11",
    },
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("target") / "model"
    return open_checkpoint(write_tiny_checkpoint(folder, tiny_spec(vocab_size=258), seed=3))


@pytest.fixture
def network(tmp_path: Path, target: Checkpoint) -> Path:
    config = tiny_config(
        hidden_size=32,
        intermediate_size=64,
        markov_rank=32,
        vocab_size=258,
        draft_vocab_size=None,
        target_hash=target_hash(target),
    )
    save_checkpoint(tmp_path / "best", BlockCheckpoint(random_network(config), None))
    provenance = {
        "data": "/Users/me/data/tiny",
        "data_hash": "beef" * 16,
        "method": "dspark",
        "options": {
            "network": {"num_layers": 1},
            "loop": {"steps": None, "minutes": 3.0, "optim": {"lr": 0.002}},
        },
        "commit": None,
        "results": {"step": 7, "slots": 900, "seconds": 180.0},
    }
    (tmp_path / "best" / "provenance.json").write_text(json.dumps(provenance), "utf-8")
    return tmp_path / "best"


@pytest.fixture
def table(tmp_path: Path, target: Checkpoint) -> Path:
    path = tmp_path / "counted.safetensors"
    texts = [[5, 6, 7, 8] * 4]
    table_of_texts(texts, vocab_size=258, tokenizer=target.tokenizer.fingerprint).save(path)
    return path


def test_the_whole_is_found_and_runs_all_parts(
    tmp_path: Path, target: Checkpoint, network: Path, table: Path
) -> None:
    """Catches a folder that `auto` overlooks, and a config that leaves a part unused."""
    parcel = Parcel(name="tiny", target=target, network=network, options=OPTIONS)
    folder = ship(tmp_path / "drafts", parcel)
    found = find_shipped(target, [tmp_path / "drafts"])
    assert found is not None
    assert found.folder == folder
    assert found.config.method == "dspark"
    assert found.config.model == str(folder / "network")
    ship(tmp_path / "drafts", replace(parcel, network=None, table=table))
    config = read_manifest(folder).config
    packed = str(folder / "ngram-table.safetensors")
    assert (config.method, config.model, config.ngram_table) == ("combined", None, packed)
    ship(tmp_path / "drafts", replace(parcel, table=table))
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    assert manifest["speculative_config"] == {
        "method": "combined",
        "model": "network",
        "network": "dspark",
        "ngram_table": "ngram-table.safetensors",
        "num_speculative_tokens": 4,
    }
    config = read_manifest(folder).config
    assert config.model == str(folder / "network")
    assert config.ngram_table == str(folder / "ngram-table.safetensors")


def test_weights_become_small_and_stay_close(
    tmp_path: Path, target: Checkpoint, network: Path
) -> None:
    """Catches matrices left as they were, and norms or biases that lost precision."""
    parcel = Parcel(name="tiny", target=target, network=network, options=OPTIONS)
    folder = ship(tmp_path / "drafts", parcel)
    before, after = load_checkpoint(network), load_checkpoint(folder / "network")
    assert after.config == before.config
    for name, values in before.network.state_dict().items():
        small = after.network.state_dict()[name]
        assert torch.allclose(values, small, atol=0.01 * float(values.abs().max())), name
        if values.ndim == 1:
            assert torch.equal(values, small), name
    sizes = [(each / "model.safetensors").stat().st_size for each in (network, folder / "network")]
    assert sizes[1] < 0.7 * sizes[0]


def test_no_path_of_the_machine_is_shipped(
    tmp_path: Path, target: Checkpoint, network: Path, table: Path
) -> None:
    """Catches the folders of whoever trained it, and prompts' ids that fill the figures."""
    parcel = Parcel(
        name="tiny", target=target, network=network, table=table, options=OPTIONS, record=RECORD
    )
    folder = ship(tmp_path / "drafts", parcel)
    for path in folder.rglob("*"):
        if path.suffix in (".json", ".md"):
            text = path.read_text("utf-8")
            assert "/Users" not in text, path
            assert "secret" not in text, path
    figures = json.loads((folder / "eval.json").read_text("utf-8"))
    assert figures["environment"]["command"] == ["outrider", "eval", "code.jsonl"]


def test_the_card_says_what_a_reader_asks(
    tmp_path: Path, target: Checkpoint, network: Path, table: Path
) -> None:
    """Catches a card without data, recipe, time, figures or licence."""
    data = tmp_path / "data"
    data.mkdir()
    lines = ['{"prompt_len": 3, "len": 13}', '{"prompt_len": 2, "len": 7}']
    (data / "shard-00000.jsonl").write_text("\n".join(lines), "utf-8")
    parcel = Parcel(
        name="tiny", target=target, network=network, table=table, options=OPTIONS, data=data,
        notes=("prompts of its own",),
    )  # fmt: skip
    folder = ship(tmp_path / "drafts", parcel)
    assert "Not measured yet" in (folder / "MODEL_CARD.md").read_text("utf-8")
    assert not (folder / "eval.json").exists()
    (folder / "calibration.json").write_text("{}", "utf-8")
    ship(tmp_path / "drafts", replace(parcel, record=RECORD))
    assert not (folder / "calibration.json").exists()
    fitted = tmp_path / "fitted.json"
    fitted.write_text('{"method": "logistic", "temperatures": {"greedy": 0.0, "m": 0.8}}', "utf-8")
    ship(tmp_path / "drafts", replace(parcel, record=RECORD, calibration=fitted))
    assert json.loads((folder / "calibration.json").read_text("utf-8"))["method"] == "logistic"
    card = (folder / "MODEL_CARD.md").read_text("utf-8")
    for words in (
        "2 documents, 20 tokens, 15 tokens written by the target; hash `beefbeefbeef`",
        "`dspark`: minutes 3.0, lr 0.002 |",
        "| calibration | logistic; fitted to greedy and temperature 0.8 |",
        "3 minutes, 7 steps, 900 draft positions seen",
        "stored as q8_0",
        "tokens of 1 documents",
        "Apache-2.0",
        "| note | prompts of its own |",
        "| code | 9 | 2.25 | 2.00 to 2.50 | 0.75 - |",
        "| without looping outputs | 8 |",
    ):
        assert words in card, (words, card)


def test_a_table_in_use_survives_the_next_shipping(
    tmp_path: Path, target: Checkpoint, table: Path
) -> None:
    """Catches a table rewritten under an engine that has mapped it."""
    parcel = Parcel(name="tiny", target=target, table=table, options=OPTIONS)
    path = ship(tmp_path / "drafts", parcel) / "ngram-table.safetensors"
    with path.open("rb") as in_use:
        ship(tmp_path / "drafts", parcel)
        assert path.stat().st_ino != os.fstat(in_use.fileno()).st_ino


def test_a_damaged_data_set_is_named(tmp_path: Path) -> None:
    """Catches counts made of half a data set."""
    (tmp_path / "shard-00000.jsonl").write_text('{"prompt_len": 3, "len": 13}\n{}', "utf-8")
    with pytest.raises(ConfigError, match=r"shard-00000.jsonl, line 2"):
        data_facts(tmp_path)


def test_what_does_not_fit_is_not_shipped(
    tmp_path: Path, target: Checkpoint, network: Path
) -> None:
    """Catches a drafter shipped for a target it was not trained for."""
    other = open_checkpoint(write_tiny_checkpoint(tmp_path / "o", tiny_spec(vocab_size=258), 4))
    with pytest.raises(IncompatibleDraft, match="trained for the target"):
        ship(tmp_path, Parcel(name="x", target=other, network=network, options={}))
    with pytest.raises(ConfigError, match="nothing to ship"):
        ship(tmp_path, Parcel(name="x", target=target, options={}))
    parcel = Parcel(name="x", target=target, network=network, options={}, record={"speedup": 1})
    with pytest.raises(ConfigError, match="no record of `outrider eval`"):
        ship(tmp_path, parcel)
