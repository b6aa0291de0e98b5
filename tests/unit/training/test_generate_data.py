"""Documents are what the target read and wrote, and a run can be stopped and gone on with."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from outrider.engine.llm import LLM
from outrider.errors import ConfigError
from outrider.testing.tiny import EOS_ID
from outrider.training.capture import capture
from outrider.training.conversations import Conversation
from outrider.training.generate import Generation, GenerationProgress, plan_generation
from outrider.training.settings import GenerateSetting
from outrider.training.shards import DataDirectory, DataManifest
from tests.unit.training.conftest import MARKED_TEMPLATE, LoadLLM, tokenizer

TAPS = (0, 1)
PROMPTS = tuple(Conversation(f"p{n}", "d", (f"question number {n}",)) for n in range(11))
SETTING = GenerateSetting(max_tokens=20, shard_documents=4, min_answer_tokens=1, seed=3)


def make(
    llm: LLM,
    path: Path,
    conversations: tuple[Conversation, ...] = PROMPTS,
    setting: GenerateSetting = SETTING,
) -> Generation:
    manifest = DataManifest(
        target="tiny", target_hash="x", tap_layers=TAPS, hidden_size=32, vocab_size=258,
        features=bool(llm.config.feature_taps), options={},
    )  # fmt: skip
    plan = plan_generation(llm, conversations, setting)
    return Generation(llm, plan, setting, DataDirectory(path, manifest))


def recording(native: LoadLLM, **options: Any) -> LLM:
    return native(feature_taps=TAPS, prefix_caching=False, max_num_seqs=3, **options)


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted(path.iterdir())}


def documents(path: Path) -> list[tuple[list[int], list[int], Tensor]]:
    found = []
    for shard in sorted(path.glob("*.safetensors")):
        tensors = load_file(shard)
        starts = tensors["doc_starts"].tolist()
        for first, last in pairwise(starts):
            tokens, mask = tensors["tokens"][first:last], tensors["loss_mask"][first:last]
            found.append((tokens.tolist(), mask.tolist(), tensors["features"][first:last]))
    return found


def test_documents_are_the_targets_answers_with_exact_masks(
    native: LoadLLM, tmp_path: Path
) -> None:
    """Catches a mask that is off by one, and features of another document."""
    llm = recording(native)
    generation = make(llm, tmp_path)
    planned = {
        document.about.id: (list(document.tokens), document.params)
        for document in generation._plan.documents
    }
    summary = generation.run()
    lines = [line for number in range(3) for line in generation.directory.about(number)]
    assert [line["id"] for line in lines] == list(planned)
    assert summary["num_documents"] == len(PROMPTS)
    for line, (tokens, mask, features) in zip(lines, documents(tmp_path), strict=True):
        prompt, params = planned[line["id"]]
        question = next(one for one in PROMPTS if one.id == line["id"]).turns[0]
        assert prompt == llm.chat_prompt([{"role": "user", "content": question}])
        answer = llm.generate([prompt], params)[0].outputs[0].token_ids
        kept = len(tokens) - len(prompt)
        assert tokens == [*prompt, *answer[:kept]]
        assert kept == len(answer) or line["cut"]
        assert mask == [0] * len(prompt) + [1] * kept
        assert line["prompt_len"] == len(prompt)
        (expected,) = capture(llm, [tokens], TAPS)
        computed = len(tokens) - (0 if line["cut"] else 1)
        assert torch.equal(features[:computed], expected[:computed])
        assert line["cut"] or not features[-1].any()


def test_the_mix_of_greedy_and_sampled_is_the_stated_one(native: LoadLLM, tmp_path: Path) -> None:
    """Catches a share that is only roughly kept, or kept by whole shards."""
    many = tuple(Conversation(f"p{n}", "d", (f"q{n}",)) for n in range(40))
    setting = GenerateSetting(max_tokens=4, greedy_share=0.3, shard_documents=10)
    generation = make(native(), tmp_path, many, setting)
    for shard in generation._plan.shards:
        assert sum(document.params.is_greedy for document in shard) == 3
    assert len({document.params.seed for document in generation._plan.documents}) == 40
    with pytest.raises(ConfigError, match=r"greedy_share is 1\.5"):
        GenerateSetting(greedy_share=1.5)


def test_an_interrupted_run_is_gone_on_with_to_the_same_bits(
    native: LoadLLM, tmp_path: Path
) -> None:
    """Catches answers that depend on what else is running, and shards that are made twice."""
    make(recording(native), tmp_path / "whole").run()
    whole = contents(tmp_path / "whole")

    def stop(progress: GenerationProgress) -> None:
        if progress.num_finished_shards == 1:
            raise KeyboardInterrupt

    first = make(recording(native), tmp_path / "parts")
    with pytest.raises(KeyboardInterrupt):
        first.run(stop)
    assert not first.llm.engine.has_work
    begun = contents(tmp_path / "parts")
    assert len(begun) == 3
    assert begun.items() < whole.items()
    second = make(recording(native, max_num_batched_tokens=32), tmp_path / "parts")
    assert len(second.pending) == 2
    seen: list[GenerationProgress] = []
    second.run(seen.append)
    assert contents(tmp_path / "parts") == whole
    assert len(seen) == second.num_documents
    assert make(recording(native), tmp_path / "parts").pending == []


def test_other_prompts_or_options_are_refused(native: LoadLLM, tmp_path: Path) -> None:
    """Catches shards of two runs side by side."""
    llm = recording(native)
    make(llm, tmp_path).run()
    with pytest.raises(ConfigError, match="made from other prompts"):
        make(llm, tmp_path, PROMPTS[1:])
    with pytest.raises(ConfigError, match="made from other prompts"):
        make(llm, tmp_path, setting=GenerateSetting(max_tokens=21, shard_documents=4))


TALK = Conversation(
    "talk", "chat", ("first question", "and then", "at last"), ("kept one", "kept two"), "be kind"
)


def test_a_conversation_is_regenerated_turn_by_turn(native: LoadLLM, tmp_path: Path) -> None:
    """Catches text tokenized again, answers without loss, and features of an earlier turn."""
    llm = recording(native)
    setting = GenerateSetting(max_tokens=7, greedy_share=0, min_answer_tokens=1)
    generation = make(llm, tmp_path, (TALK,), setting)
    (planned,) = generation._plan.documents
    params = planned.params
    assert generation.run()["num_answer_tokens"] == 21
    ((tokens, mask, features),) = documents(tmp_path)
    expected = llm.chat_prompt(TALK.opening())
    expected_mask: list[int] = []
    for turn in (*TALK.turns[1:], None):
        expected_mask += [0] * (len(expected) - len(expected_mask)) + [1] * 7
        expected += llm.generate([expected], params)[0].outputs[0].token_ids
        if turn is not None:
            expected += llm.tokenizer.encode(f"\nuser: {turn}\nassistant: ")
    assert tokens == expected
    assert mask == expected_mask
    (captured,) = capture(llm, [tokens], TAPS)
    assert torch.equal(features[:-1], captured[:-1])


def test_a_kept_history_carries_no_loss(native: LoadLLM, tmp_path: Path) -> None:
    """Catches the file's answers being taken for the target's."""
    llm = recording(native)
    setting = GenerateSetting(max_tokens=7, history="keep", min_answer_tokens=1)
    make(llm, tmp_path, (TALK,), setting).run()
    ((tokens, mask, _),) = documents(tmp_path)
    shown = llm.chat_prompt(TALK.messages())
    assert tokens[: len(shown)] == shown
    assert "kept two" in llm.tokenizer.decode(shown)
    assert mask == [0] * len(shown) + [1] * 7


def test_a_conversation_ends_where_the_context_does(native: LoadLLM, tmp_path: Path) -> None:
    """Catches a turn that does not fit being sent, or the whole conversation being lost."""
    llm = recording(native, max_context_len=120)
    long = Conversation("long", "chat", ("hi", "x" * 90, "never"))
    setting = GenerateSetting(max_tokens=16, min_answer_tokens=1)
    summary = make(llm, tmp_path, (long,), setting).run()
    assert summary["num_out_of_room"] == 1
    assert summary["num_answer_tokens"] == 16


def test_the_end_of_a_turn_is_not_written_twice(native: LoadLLM, tmp_path: Path) -> None:
    """Catches two end tokens between turns, which no target ever saw."""
    llm = native()
    llm.tokenizer = tokenizer(MARKED_TEMPLATE)
    generation = make(llm, tmp_path, (TALK,))
    (document,) = generation._plan.documents
    between = llm.tokenizer.encode(document.follow_ups[0])
    assert between[0] == EOS_ID
    prompt = document.tokens
    document.tokens = [*prompt, 50, EOS_ID]
    assert generation._continued(document) == [*prompt, 50, *between]
    document.tokens = [*prompt, 50]
    assert generation._continued(document) == [*prompt, 50, *between]


def test_what_cannot_be_used_is_counted(native: LoadLLM, tmp_path: Path) -> None:
    """Catches prompts that silently disappear."""
    llm = native(max_context_len=64)
    long = Conversation("long", "d", ("y" * 60,))
    near = Conversation("near", "d", ("Do not train on me.",))
    plan = plan_generation(llm, (*PROMPTS, long, near), SETTING, ["do not train on me"])
    assert plan.skipped == {"too long": 1, "excluded": 1}
    with pytest.raises(ConfigError, match=r"none of 1 conversations .*1 too long"):
        plan_generation(llm, (long,), SETTING)
    short = GenerateSetting(max_tokens=4, min_answer_tokens=8)
    summary = make(llm, tmp_path, PROMPTS[:2], short).run()
    assert summary["skipped"] == {"short answer": 2}
    assert summary["num_documents"] == 0


def test_raw_prompts_are_continued_as_they_are(native: LoadLLM) -> None:
    """Catches a template around text for a base model."""
    llm = native()
    plan = plan_generation(llm, PROMPTS[:1], GenerateSetting(max_tokens=4, is_raw=True))
    assert plan.documents[0].tokens == llm.tokenizer.encode(PROMPTS[0].turns[0])


def test_loops_are_cut_with_their_features(
    native: LoadLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches features that are cut at another token. Every answer counts as a loop from 10 on."""
    monkeypatch.setattr(
        "outrider.training.generate.length_without_loop", lambda tokens: min(len(tokens), 10)
    )
    llm = recording(native)
    summary = make(llm, tmp_path, PROMPTS[:4]).run()
    assert summary["num_cut"] >= 3
    for tokens, mask, features in documents(tmp_path):
        if sum(mask) == 10:
            (expected,) = capture(llm, [tokens], TAPS)
            assert torch.equal(features, expected)
        assert sum(mask) <= 10
