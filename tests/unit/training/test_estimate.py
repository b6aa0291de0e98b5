"""The estimate counts what will be done; only the speeds are measured."""

import dataclasses

import pytest

from outrider.training.capture import training_taps
from outrider.training.conversations import Conversation
from outrider.training.estimate import Estimate, Speeds, estimate
from outrider.training.generate import plan_generation
from outrider.training.settings import GenerateSetting
from tests.unit.training.conftest import LoadLLM

GUESS = Estimate(
    num_documents=10, num_prompt_tokens=1000, num_answer_tokens=2000,
    speeds=Speeds(prompt=500.0, answer=100.0, concurrency=8), seconds=7322.0, token_bytes=10**9,
    feature_bytes=8 * 10**9, recompute_seconds=90.0, free_bytes=20 * 10**9, mode="capture",
)  # fmt: skip


def test_counts_and_bytes(native: LoadLLM) -> None:
    """Catches turns that are read again and not counted, and features of one layer only."""
    llm = native(max_num_seqs=2)
    talks = (Conversation("a", "d", ("one",)), Conversation("b", "d", ("one", "two", "three")))
    setting = GenerateSetting(max_tokens=10, shard_documents=1)
    plan = plan_generation(llm, talks, setting)
    taps = training_taps(2)
    found = estimate(llm, plan, [0, 1], 10, taps=taps, mode="capture", free_bytes=10**9)
    shown = len(llm.chat_prompt([{"role": "user", "content": "one"}]))
    assert found.num_documents == 2
    assert found.num_answer_tokens == 40
    assert found.num_prompt_tokens == shown + (shown + (shown + 10) + (shown + 20))
    written = 2 * shown + 40
    assert found.token_bytes == 5 * written
    assert found.feature_bytes == written * 2 * 2 * 32
    assert found.seconds > 0
    assert found.recompute_seconds == written / found.speeds.prompt
    half = estimate(llm, plan, [1], 10, taps=taps, mode="none", free_bytes=10**9)
    assert half.num_documents == 1


def test_advice_follows_the_disk() -> None:
    """Catches advice that never changes, and a full disk that is only found out hours later."""
    assert GUESS.fits
    assert GUESS.is_capture_cheaper
    text = "\n".join(GUESS.lines())
    assert "at most 2 h 2 min" in text
    assert "captured 8.00 GB once; recomputed 1.5 min in every pass" in text
    assert "cheaper: captured" in text
    assert "warning" not in text
    small = dataclasses.replace(GUESS, free_bytes=5 * 10**9)
    text = "\n".join(small.lines())
    assert "recomputed, the disk is too small" in text
    assert "--features recompute" in text
    other = dataclasses.replace(small, mode="recompute")
    assert other.disk_bytes == 10**9
    assert other.fits
    assert "features" not in "\n".join(dataclasses.replace(small, mode="none").lines())


@pytest.mark.parametrize(("seconds", "said"), [(30.0, "0.5 min"), (3600.0, "1 h 0 min")])
def test_times_are_readable(seconds: float, said: str) -> None:
    """Catches seconds shown as minutes."""
    assert f"at most {said}" in "\n".join(dataclasses.replace(GUESS, seconds=seconds).lines())
