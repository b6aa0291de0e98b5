"""Data on disk, packing, and what is refused before training starts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.errors import ConfigError, CorruptCheckpoint, IncompatibleDraft, ModelNotFound
from outrider.testing.tiny import tiny_spec
from outrider.training.dataset import (
    DocumentReader,
    FeaturedDocument,
    frequent_tokens,
    list_documents,
    list_shards,
    read_manifest,
    token_counts,
)
from outrider.training.packing import anchor_candidates, draw_anchors, pack
from outrider.training.sampler import Cursor, Sampler, SamplerConfig
from outrider.training.setup import NetworkOptions, new_config, require_data_of
from outrider.training.teacher import make_teacher
from tests.block_drafters import VOCAB, random_document, tiny_config, write_shards
from tests.native.machines import require_native


def test_documents_come_back_as_they_were_written(tmp_path: Path) -> None:
    documents = [random_document(12 + seed, 3, seed) for seed in range(5)]
    write_shards(tmp_path, documents, per_shard=2)
    infos = list_documents(list_shards(tmp_path))
    assert [info.id for info in infos] == ["d0", "d1", "d2", "d3", "d4"]
    reader = DocumentReader()
    for info, document in zip(infos, documents, strict=True):
        found = reader.read(info)
        assert torch.equal(found.tokens, document.tokens)
        assert torch.equal(found.loss_mask, document.loss_mask)
        assert torch.equal(found.features, document.features.to(torch.bfloat16))


def test_a_shard_without_its_list_is_still_being_written(tmp_path: Path) -> None:
    write_shards(tmp_path, [random_document(12, 3, 0)] * 4, per_shard=2)
    (tmp_path / "shard-00001.jsonl").unlink()
    assert [path.name for path in list_shards(tmp_path)] == ["shard-00000.safetensors"]


def test_a_list_that_does_not_fit_its_shard_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, [random_document(12, 3, 0)] * 2, per_shard=2)
    (tmp_path / "shard-00000.jsonl").write_text("{}\n")
    with pytest.raises(CorruptCheckpoint, match=r"2 documents, but shard-00000\.jsonl lists 1"):
        list_documents(list_shards(tmp_path))


def test_draft_vocabulary_takes_frequent_tokens_then_low_ids(tmp_path: Path) -> None:
    tokens = torch.tensor([9, 9, 40, 7, 7, 7, 30, 30])
    mask = torch.tensor([0, 1, 1, 1, 1, 1, 1, 1]).bool()
    document = FeaturedDocument(tokens, mask, random_document(8, 0, 0).features)
    write_shards(tmp_path, [document], per_shard=1)
    counts = token_counts(list_shards(tmp_path), VOCAB)
    assert (int(counts[9]), int(counts[7]), int(counts[30])) == (1, 3, 2)
    assert frequent_tokens(counts, 3).tolist() == [7, 9, 30]
    assert frequent_tokens(counts, 7).tolist() == [0, 1, 2, 7, 9, 30, 40]


@pytest.mark.parametrize("layout", ["anchor-first", "anchor-drop"])
def test_labels_teachers_and_previous_tokens_of_every_slot(layout: Any) -> None:
    config = tiny_config(layout=layout)
    first, second = random_document(15, 4, 1), random_document(11, 6, 2)
    anchors = [anchor_candidates(each.loss_mask) for each in (first, second)]
    assert anchors[0].tolist() == list(range(4, 14))
    batch = pack([first, second], anchors, config)
    offset = {0: 0, 1: 15}
    for number, document in enumerate((first, second)):
        segment = batch.segments[number]
        for index, anchor in enumerate(anchors[number].tolist()):
            block = segment.first_block + index
            assert batch.anchors[block] == document.tokens[anchor]
            assert batch.block_positions[block].tolist() == list(range(anchor, anchor + 5))
            assert segment.visible is not None
            assert segment.visible[index] == anchor
            for draft in range(config.num_drafts):
                is_inside = anchor + draft + 1 < len(document.tokens)
                assert bool(batch.is_supervised[block, draft]) == is_inside
                if is_inside:
                    assert batch.labels[block, draft] == document.tokens[anchor + draft + 1]
                    assert batch.previous[block, draft] == document.tokens[anchor + draft]
                    row = batch.judged[batch.teacher[block, draft]]
                    assert row == offset[number] + anchor + draft


def test_a_block_ends_where_another_speaker_begins() -> None:
    document = random_document(12, 2, 1)
    document.loss_mask[6] = False
    batch = pack([document], [torch.tensor([3, 5])], tiny_config())
    assert batch.is_supervised.tolist() == [[True, True, False, False, False], [False] * 5]
    assert 5 not in anchor_candidates(document.loss_mask)


def test_anchors_are_a_share_in_order_without_repeats() -> None:
    document = random_document(104, 4, 1)
    drawn = draw_anchors(document, 0.5, torch.Generator().manual_seed(0))
    assert len(drawn) == 50 == len(drawn.unique())
    assert torch.equal(drawn, drawn.sort().values)
    assert len(draw_anchors(document, 0.0001, torch.Generator())) == 1


def test_an_epoch_holds_every_training_document_once_and_no_held_out_one(tmp_path: Path) -> None:
    documents = [random_document(20, 4, seed) for seed in range(12)]
    write_shards(tmp_path, documents, per_shard=5)
    config = SamplerConfig(blocks_per_step=1, held_out_share=0.3, seed=3)
    sampler = Sampler(tmp_path, config, Cursor())
    held_out = {tuple(document.tokens.tolist()) for document in sampler.held_out(99)}
    assert 0 < len(held_out) < 12
    batches = sampler.batches(tiny_config())
    epochs = [[int(next(batches)[0][0]) for _ in range(12 - len(held_out))] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(12 - len(held_out)))
    assert epochs[0] != epochs[1]


def test_a_sampler_goes_on_at_its_cursor(tmp_path: Path) -> None:
    write_shards(tmp_path, [random_document(20, 4, seed) for seed in range(12)], per_shard=5)
    config = SamplerConfig(blocks_per_step=20, seed=3)
    sampler = Sampler(tmp_path, config, Cursor())
    batches = sampler.batches(tiny_config())
    for _ in range(5):
        next(batches)
    cursor = Cursor(sampler.cursor.epoch, sampler.cursor.position, sampler.cursor.num_shards)
    again = Sampler(tmp_path, config, cursor).batches(tiny_config())
    for _ in range(8):
        (expected_ids, expected), (found_ids, found) = next(batches), next(again)
        assert expected_ids == found_ids
        assert torch.equal(expected.labels, found.labels)


def test_directories_without_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"manifest\.json"):
        read_manifest(tmp_path)
    write_shards(tmp_path, [random_document(12, 3, 0)], per_shard=1)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 2}))
    with pytest.raises(ConfigError, match="has version 2"):
        read_manifest(tmp_path)
    (tmp_path / "shard-00000.jsonl").unlink()
    with pytest.raises(ConfigError, match="0 finished shards"):
        Sampler(tmp_path, SamplerConfig(), Cursor())


def test_data_of_another_target_or_without_its_last_layer_are_refused(tmp_path: Path) -> None:
    spec = tiny_spec(num_layers=4)
    write_shards(tmp_path, [random_document(12, 3, 0)], per_shard=1, target_hash="a" * 64)
    with pytest.raises(IncompatibleDraft, match=r"aaaaaaaaaaaa.*bbbbbbbbbbbb"):
        require_data_of(read_manifest(tmp_path), spec, "b" * 64)
    for taps in ([3], [0, 2], [3, 2]):
        content = json.loads((tmp_path / "manifest.json").read_text())
        (tmp_path / "manifest.json").write_text(json.dumps(content | {"tap_layers": taps}))
        with pytest.raises(ConfigError, match="the last layer, 3"):
            require_data_of(read_manifest(tmp_path), spec, "a" * 64)


def test_a_mask_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, [random_document(12, 3, 0)], per_shard=1)
    with pytest.raises(CorruptCheckpoint, match="mask_token_id is 64, outside"):
        new_config(
            tiny_spec(num_layers=4), read_manifest(tmp_path), "", NetworkOptions(mask_token_id=64)
        )


def test_the_teacher_is_the_softmax_over_all_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(VOCAB, 16, generator=generator)
    head = torch.randn(VOCAB, 16, generator=generator)
    weight = 1 + 0.1 * torch.randn(16, generator=generator)
    ids = torch.tensor([2, 3, 30, 41])
    teacher = make_teacher(embedding, head, weight, 1e-6, ids)
    last = 5 * torch.randn(7, 16, generator=generator)
    normed = last / (last.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    expected = (normed @ head.T).softmax(-1)[:, ids]
    near = torch.tensor([0, 2, 41, 30, 3, 17, 2])
    found = teacher.distributions(last, near, teacher.log_rest(last, near))
    torch.testing.assert_close(found, expected)
    assert teacher.draft_index[ids].tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(teacher.draft_head, head[ids])


def test_the_native_teacher_is_the_torch_teacher() -> None:
    require_native()
    from outrider.native import _native

    generator = torch.Generator().manual_seed(0)
    head = torch.randn(VOCAB, 16, generator=generator).bfloat16()
    teacher = make_teacher(head, head, torch.ones(16), 1e-6, torch.arange(0, 32))
    last = torch.randn(5, 16, generator=generator)
    near = torch.arange(5)
    machine = _native.Machine(2)
    rest = teacher.log_rest(last, near, machine)
    torch.testing.assert_close(rest, teacher.log_rest(last, near), rtol=1e-4, atol=1e-4)
    native = teacher.distributions(last, near, rest, machine)
    torch.testing.assert_close(
        native.float(), teacher.distributions(last, near, rest).float(), rtol=1e-2, atol=1e-4
    )
