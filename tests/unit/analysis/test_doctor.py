"""The doctor's other parts: tables, draft models, shipped folders, the machine, the self-test."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.analysis.doctor.examine import SELF_TEST_CACHE
from outrider.analysis.doctor.files import BlockFiles, Expectation
from outrider.analysis.doctor.findings import Report, report_lines
from outrider.analysis.doctor.machine import Computing, MachineFacts, Memory, check_machine
from outrider.analysis.doctor.probe import Anchor, Answers, Probe, paired_gain, upper_bound
from outrider.analysis.doctor.self_test import confidence_findings, judged
from outrider.analysis.doctor.tensors import check_tensors, looks_random
from outrider.analysis.doctor.vocabulary import check_repeated, check_tokenizer
from outrider.core.outcome import Origin
from outrider.core.request import SamplingParams
from outrider.drafters.ngram_table_file import TABLE_FILE
from outrider.engine.llm import LLM
from outrider.errors import ConfigError, ModelNotFound
from outrider.models.checkpoint import Checkpoint, open_checkpoint
from outrider.models.weights import EMBEDDING
from outrider.tensor.window import RowVerdict
from outrider.testing.tiny import byte_tokenizer, tiny_spec, write_tiny_checkpoint
from outrider.training.ship import Parcel, ship
from outrider.verify import verifier
from tests.doctor_pair import LENGTH, PROMPTS, VOCAB, Drafter
from tests.tables import table_of_texts
from tests.unit.analysis.test_doctor_faults import COMPUTING, MACHINE, examined

SPEC = tiny_spec(vocab_size=VOCAB, num_layers=6)
RECORD = Expectation("record", 2.0, (0.8, 0.8, 0.8))


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target of six layers whose last four do nothing, and the same without those four."""
    folder = tmp_path_factory.mktemp("deep")
    target = write_tiny_checkpoint(folder / "target", SPEC, seed=7)
    draft = write_tiny_checkpoint(folder / "draft", replace(SPEC, num_layers=2), seed=7)
    small, large = (load_file(each / "model.safetensors") for each in (draft, target))
    for name, values in large.items():
        if name in small:
            large[name] = small[name]
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            large[name] = torch.zeros_like(values)
    save_file(large, target / "model.safetensors", {"format": "pt"})
    return target, draft


def load(path: Path) -> LLM:
    return LLM(str(path), backend="torch", dtype="float32", kv_cache_tokens=SELF_TEST_CACHE)


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | fields), "utf-8")


def worse_than_info(report: Report) -> dict[str, str]:
    return {e.id: e.severity for e in report.findings if e.severity != "info"}


def test_a_sound_draft_model_is_healthy(deep: tuple[Path, Path]) -> None:
    """Catches false alarms on a pair that agrees on every token."""
    target, draft = deep
    report = examined(open_checkpoint(target), draft, load(target))
    assert worse_than_info(report) == {}
    test = report.facts["self_test"][0]
    assert test["part"] == "draft-model"
    assert test["conditional_accept_rates"][0] == 1.0


def no_number(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = torch.inf
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def other_tokenizer(folder: Path) -> None:
    text = byte_tokenizer(VOCAB).to_str()
    swapped = text.replace('"e":', '"@":').replace('"t":', '"e":').replace('"@":', '"t":')
    (folder / "tokenizer.json").write_text(swapped, "utf-8")


DRAFT_MODEL_FAULTS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "another tokenizer": ("tokenizer-differs", other_tokenizer),
    "a shorter context": (
        "context-short",
        lambda folder: edit_config(folder, max_position_embeddings=128),
    ),
    "infinite weights": ("tensor-not-finite", no_number),
    "another architecture": (
        "drafter-unreadable",
        lambda folder: edit_config(folder, architectures=["GPT2LMHeadModel"]),
    ),
    "no tokenizer": ("drafter-unreadable", lambda folder: (folder / "tokenizer.json").unlink()),
}


@pytest.mark.parametrize("name", DRAFT_MODEL_FAULTS)
def test_faults_of_draft_models(name: str, deep: tuple[Path, Path], tmp_path: Path) -> None:
    """Catches a draft model of another family or a damaged one that passes."""
    finding, plant = DRAFT_MODEL_FAULTS[name]
    folder = tmp_path / "draft"
    shutil.copytree(deep[1], folder)
    plant(folder)
    assert finding in worse_than_info(examined(open_checkpoint(deep[0]), folder, None))


def test_a_draft_model_as_large_as_its_target(deep: tuple[Path, Path]) -> None:
    """Catches a pair that can only be slower."""
    report = examined(open_checkpoint(deep[0]), deep[0], None)
    assert worse_than_info(report) == {"draft-not-smaller": "warning"}


def test_a_draft_model_that_is_always_wrong(deep: tuple[Path, Path], tmp_path: Path) -> None:
    """Catches weights that only acceptance gives away: a sign that was lost on the way."""
    folder = tmp_path / "draft"
    shutil.copytree(deep[1], folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] *= -1
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    found = worse_than_info(examined(open_checkpoint(deep[0]), folder, load(deep[0])))
    assert found == {"drafts-nothing": "error"}


def test_a_tokenizer_larger_than_its_model(deep: tuple[Path, Path], tmp_path: Path) -> None:
    """Catches ids without a row, and padding taken for a fault."""
    folder = tmp_path / "target"
    shutil.copytree(deep[0], folder)
    byte_tokenizer(VOCAB + 3).save(str(folder / "tokenizer.json"))
    assert [e.id for e in check_tokenizer(open_checkpoint(folder))] == ["tokenizer-larger"]
    byte_tokenizer(VOCAB - 3).save(str(folder / "tokenizer.json"))
    assert [e.id for e in check_tokenizer(open_checkpoint(folder))] == ["vocab-padding"]


@pytest.fixture(scope="session")
def shipped(trained_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained drafter with a table of the target's answers, packed as for shipping."""
    model, network = trained_pair
    target = open_checkpoint(model)
    llm = load(model)
    params = SamplingParams(temperature=0, max_tokens=LENGTH)
    answers = llm.generate([row.text for row in PROMPTS], params)
    texts = [[*a.prompt_token_ids, *a.outputs[0].token_ids] for a in answers]
    folder = tmp_path_factory.mktemp("shipped")
    table = folder / TABLE_FILE
    table_of_texts(texts, vocab_size=VOCAB, tokenizer=target.tokenizer.fingerprint).save(table)
    parcel = Parcel(name="tiny", target=target, network=network, table=table, options={})
    return ship(folder, parcel)


def test_a_shipped_folder_is_healthy(shipped: Path, trained_pair: tuple[Path, Path]) -> None:
    """Catches parts that are not looked at, and false alarms on a sound folder."""
    report = examined(open_checkpoint(trained_pair[0]), shipped, load(trained_pair[0]))
    assert worse_than_info(report) == {}
    assert [test["part"] for test in report.facts["self_test"]] == ["network", "combined"]
    assert "combined" in "\n".join(report_lines(report))


def other_table(folder: Path) -> None:
    table_of_texts([[1, 2, 3, 1, 2, 3]], vocab_size=VOCAB).save(folder / TABLE_FILE)


def broken_table(folder: Path) -> None:
    path = folder / TABLE_FILE
    path.write_bytes(path.read_bytes()[:-8])


def manifest(folder: Path, **fields: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | fields), "utf-8")


SHIPPED_FAULTS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "table of another tokenizer": ("table-tokenizer", other_table),
    "damaged table": ("table-unreadable", broken_table),
    "made for another target": ("target-hash", lambda f: manifest(f, target_hash="00ff")),
    "manifest of another version": ("drafter-unreadable", lambda f: manifest(f, version=9)),
    "network left out": ("drafter-unreadable", lambda f: shutil.rmtree(f / "network")),
    "layer ids off by one in the network": (
        "taps-shifted",
        lambda f: edit_config(f / "network", target_layer_ids=[2, 4]),
    ),
}


@pytest.mark.parametrize("name", SHIPPED_FAULTS)
def test_faults_of_shipped_folders(
    name: str, shipped: Path, trained_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Catches a part of a shipped folder that is trusted."""
    finding, plant = SHIPPED_FAULTS[name]
    folder = tmp_path / "tiny"
    shutil.copytree(shipped, folder)
    plant(folder)
    llm = load(trained_pair[0]) if finding == "taps-shifted" else None
    report = examined(open_checkpoint(trained_pair[0]), folder, llm)
    assert worse_than_info(report)[finding] == "error"


def test_a_table_alone(shipped: Path, trained_pair: tuple[Path, Path]) -> None:
    """Catches a file that is not recognised, and an alarm on a table that drafts well."""
    target = open_checkpoint(trained_pair[0])
    report = examined(target, shipped / TABLE_FILE, load(trained_pair[0]))
    assert worse_than_info(report) == {}
    assert report.facts["method"] == "ngram-table"


def test_what_is_no_drafter_is_bad_usage(trained_pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Catches a wrong path reported as a finding."""
    target = open_checkpoint(trained_pair[0])
    with pytest.raises(ConfigError, match="holds no drafter"):
        examined(target, tmp_path, None)
    with pytest.raises(ModelNotFound):
        examined(target, tmp_path / "nowhere", None)


def test_a_draft_longer_than_a_block(trained_pair: tuple[Path, Path]) -> None:
    """Catches a length the engine will refuse."""
    target = open_checkpoint(trained_pair[0])
    report = examined(target, trained_pair[1], None, draft_len=9)
    assert worse_than_info(report) == {"draft-len": "error"}


def test_an_engine_that_accepts_everything_is_noticed(
    trained_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a self-test that does not compare with the plain output."""
    monkeypatch.setattr(
        verifier,
        "match_ids",
        lambda targets, drafts: RowVerdict(len(drafts), targets[-1], Origin.BONUS),
    )
    target = open_checkpoint(trained_pair[0])
    assert "output-differs" in examined(target, trained_pair[1], load(trained_pair[0])).ids


def test_a_target_that_fails_is_reported(
    trained_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a traceback where a finding belongs."""

    def fail(*_: object, **__: object) -> None:
        raise ConfigError("no memory")

    target = open_checkpoint(trained_pair[0])
    llm = load(trained_pair[0])
    monkeypatch.setattr(LLM, "sibling", fail)
    found = worse_than_info(examined(target, trained_pair[1], llm))
    assert found == {"self-test-failed": "error"}


def test_a_drafter_that_cannot_run_is_not_run(
    trained_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Catches a self-test of something else than what was asked for."""
    drafter = Drafter(trained_pair[1], tmp_path / "drafter")
    drafter.set(hidden_size=48)
    report = examined(open_checkpoint(trained_pair[0]), drafter.folder, load(trained_pair[0]))
    assert "self-test-skipped" in report.ids
    assert "self_test" not in report.facts


def answers_of(rights: list[int], compared: int = 3, confidence: float | None = None) -> Answers:
    result = Answers()
    for position, right in enumerate(rights):
        result.add((0, position), Anchor(compared, right, confidence))
    return result


@pytest.mark.parametrize(
    ("rights", "record", "finding"),
    [
        ([3] * 60, RECORD, None),
        ([0, 3] * 50, RECORD, None),
        ([0, 0, 0, 0, 3] * 20, RECORD, "acceptance-low"),
        ([1, 1, 1, 1, 3] * 20, RECORD, "position-collapse"),
        ([1, 1, 1, 1, 3] * 20, None, None),
        ([0] * 300, None, "drafts-nothing"),
        ([0] * 20, RECORD, "self-test-short"),
    ],
)
def test_rates_are_held_against_the_record(
    rights: list[int], record: Expectation | None, finding: str | None
) -> None:
    """Catches an alarm at half of the record or above, and a collapse that passes."""
    assert [each.id for each in judged(answers_of(rights), record)] == [finding] * bool(finding)


def test_confidence_is_held_against_what_is_right() -> None:
    """Catches a confidence head that is believed though it is far off."""
    assert [e.id for e in confidence_findings(answers_of([0, 1] * 40, confidence=0.95))] == [
        "confidence-off"
    ]
    assert confidence_findings(answers_of([0, 1] * 40, confidence=0.6)) == []
    assert confidence_findings(answers_of([0, 1] * 40)) == []


def test_rounds_are_walked_as_decoding_would_make_them(trained_pair: tuple[Path, Path]) -> None:
    """Catches rounds that overlap: the probe's mean length is that of real decoding."""
    report = examined(open_checkpoint(trained_pair[0]), trained_pair[1], load(trained_pair[0]))
    probed, real = report.facts["self_test"]
    assert probed["mean_accept_length"] == pytest.approx(real["mean_accept_length"], abs=0.15)


def test_paired_gains_and_bounds() -> None:
    """Catches pairs of different positions, and a bound that is no bound."""
    base = {1: 0.5, 2: 0.5, 3: 0.5, 9: 9.0}
    mean, errors = paired_gain(base, {1: 0.6, 2: 0.7, 3: 0.8, 8: -9.0})
    assert mean == pytest.approx(0.2)
    assert errors == pytest.approx(0.2 / (0.1 / 3**0.5))
    assert paired_gain(base, base) == (0.0, 0.0)
    assert paired_gain({1: 0.0, 2: 0.0}, {1: 1.0, 2: 1.0}) == (1.0, float("inf"))
    assert paired_gain({1: 0.0}, {1: 1.0}) == (0.0, 0.0)
    assert upper_bound(0, 0, 3.0) == 1.0
    assert 0.5 < upper_bound(50, 100, 3.0) < 0.66


class Certain:
    """A drafter that is asked for a distribution and gives half to token 5, half to token 9."""

    taps = ()
    max_draft_len = 2


def test_an_overlap_is_the_chance_of_acceptance() -> None:
    """Catches Σ min(p, q) over other positions or other numbers."""
    probe = Probe({"one": Certain()}, "one", 8)  # type: ignore[dict-item]
    drafted = torch.tensor([0.5, 0.0, 0.5])
    probe._pending = {"one": {"r": (4, drafted)}}  # type: ignore[dict-item]
    probe._compare("r", torch.tensor([0.2, 0.2, 0.6]).log())  # type: ignore[arg-type]
    assert probe.overlaps["one"]["r", 4] == pytest.approx(0.2 + 0.5)  # type: ignore[index]


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
def test_random_matrices_are_told_from_trained_ones(kind: str) -> None:
    """Catches a matrix of fresh numbers that passes, or one with structure that does not."""
    generator = torch.Generator().manual_seed(4)
    shape = (512, 96)
    if kind == "gaussian":
        drawn = 0.02 * torch.randn(shape, generator=generator)
    else:
        drawn = 0.1 * (torch.rand(shape, generator=generator) - 0.5)
    assert looks_random(drawn)
    assert looks_random(drawn.T)
    direction = torch.randn(shape[0], 1, generator=generator)
    trained = drawn + 0.3 * drawn.std() * direction * torch.ones(1, shape[1])
    assert not looks_random(trained)
    assert not looks_random(torch.eye(96))
    assert not looks_random(torch.zeros(96, 96))
    assert not looks_random(drawn[:, :32])


def test_a_random_matrix_is_reported() -> None:
    """Catches a head that the configuration has and the conversion lost."""
    generator = torch.Generator().manual_seed(4)
    drawn = {"markov_head.markov_w2.weight": torch.randn(256, 64, generator=generator)}
    files = BlockFiles(Path(), "outrider", {}, {}, drawn, None)
    assert [each.id for each in check_tensors(files, None)] == ["tensor-random"]


def test_an_output_matrix_that_is_the_embedding(tmp_path: Path) -> None:
    """Catches a converter that tied what the target keeps apart."""
    spec = tiny_spec(vocab_size=VOCAB, tied_head=False)
    folder = write_tiny_checkpoint(tmp_path / "target", spec, seed=3)
    target = open_checkpoint(folder)
    tensors = load_file(folder / "model.safetensors")
    fields = {"vocab_size": VOCAB}

    def found(head: Tensor) -> list[str]:
        files = BlockFiles(Path(), "DeepSpec", {}, fields, {"lm_head.weight": head}, None)
        return [each.id for each in check_repeated(files, target)]

    assert found(tensors[EMBEDDING]) == ["head-tied"]
    assert found(tensors["lm_head.weight"].to(torch.bfloat16)) == []
    assert found(tensors["lm_head.weight"].roll(1, 0)) == ["head-differs"]


MACHINES: dict[str, tuple[MachineFacts, Computing, list[str]]] = {
    "sound": (MACHINE, COMPUTING, []),
    "torch stands in": (MACHINE, replace(COMPUTING, is_fallback=True), ["native-missing"]),
    "portable code": (
        replace(MACHINE, instruction_sets=("portable",)),
        replace(COMPUTING, backend="native", dtype="exact"),
        ["instruction-set"],
    ),
    "threads": (MACHINE, replace(COMPUTING, threads=3), ["threads"]),
    "too little memory": (replace(MACHINE, total_bytes=999), COMPUTING, ["memory-total"]),
    "memory in use": (replace(MACHINE, free_bytes=999), COMPUTING, ["memory-free"]),
    "memory not told": (replace(MACHINE, free_bytes=None, total_bytes=None), COMPUTING, []),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_machine(name: str) -> None:
    """Catches a machine that cannot run the pair, and alarms on one that can."""
    facts, computing, expected = MACHINES[name]
    found = check_machine(facts, computing, Memory({"weights": 900, "cache": 100}))
    assert [each.id for each in found] == expected


def test_this_machine_is_described() -> None:
    """Catches facts that are not those of this process."""
    facts = MachineFacts.here()
    assert facts.cores >= 1
    if facts.free_bytes is not None and facts.total_bytes is not None:
        assert 0 < facts.free_bytes <= facts.total_bytes


def test_the_memory_of_a_pair(trained_pair: tuple[Path, Path]) -> None:
    """Catches parts that are left out of the estimate."""
    target: Checkpoint = open_checkpoint(trained_pair[0])
    parts = examined(target, trained_pair[1], None).facts["memory"]["parts"]
    tensors = load_file(trained_pair[0] / "model.safetensors").values()
    assert parts["target weights"] == 4 * sum(tensor.numel() for tensor in tensors)
    assert parts["target KV cache"] == 1024 * 6 * 2 * 2 * 8 * 4
    network = load_file(trained_pair[1] / "model.safetensors")
    matrices = sum(t.numel() for n, t in network.items() if t.ndim == 2 and "confidence" not in n)
    assert parts["drafter weights"] == 4 * matrices
    assert parts["drafter context"] == 1024 * 2 * 2 * 2 * 8 * 4
