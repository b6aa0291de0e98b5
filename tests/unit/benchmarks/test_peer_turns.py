"""Turns of two engines: kept, resumed, compared."""

import re
from pathlib import Path

import pytest

from benchmarks.peer_turns import Departure, Log, PromptTurns, Speeds, Turn, report, side_record

SIDES = {
    "outrider plain": 2.0,
    "outrider auto": 1.0,
    "llama.cpp plain": 4.0,
    "llama.cpp lookup": 3.0,
}


def prompt(number: int, domain: str = "code", **seconds: float) -> PromptTurns:
    """Eleven tokens by every side, ten of which are decoded in the side's seconds."""
    taken = SIDES | {name.replace("_", " "): value for name, value in seconds.items()}
    turns = {
        name: Turn(list(range(11)), 1.0, taken[name], 5, 10, 5, 0.1 if "llama" in name else None)
        for name in SIDES
    }
    return PromptTurns(f"p{number}", domain, 20, turns, same_ids=True, left_plain={})


def test_speeds_with_and_without_reading() -> None:
    """Catches a first token that is counted without the time it took."""
    prompts = [prompt(0), prompt(1)]
    decoding = Speeds.of(prompts, with_reading=False)
    assert decoding.speed("outrider auto") == pytest.approx(10)
    assert decoding.best_of_theirs == "llama.cpp lookup"
    assert decoding.ratio("outrider auto") == pytest.approx((3, 3, 3))
    whole = Speeds.of(prompts, with_reading=True)
    assert whole.speed("outrider auto") == pytest.approx(5.5)
    assert whole.ratio("outrider auto") == pytest.approx((2, 2, 2))


def test_the_best_of_theirs_is_chosen_anew_in_every_resample() -> None:
    """Catches an interval that holds the peer to a way that another draw of prompts disfavours."""
    one = prompt(0)
    turns = one.turns | {"llama.cpp plain": Turn(list(range(11)), 1.0, 1.0, 10, 0, 0)}
    other = PromptTurns("p1", "code", 20, turns, same_ids=True, left_plain={})
    speeds = Speeds.of([one, other], with_reading=False)
    # Both prompts: 20 tokens in 4 + 1 seconds plain; the first twice: lookup's 3; the second
    # twice: plain's 1, as fast as Outrider.
    assert speeds.best_of_theirs == "llama.cpp plain"
    assert speeds.ratio("outrider auto") == pytest.approx((2.5, 1, 3))


def test_sums_are_divided_not_ratios_averaged() -> None:
    """Catches a mean of prompts' speeds, in which a short prompt weighs as much as a long one."""
    turns = {name: Turn([0, 1], 1.0, 1.0, 1, 0, 0) for name in SIDES}
    short = PromptTurns("p1", "code", 20, turns, same_ids=True, left_plain={})
    speeds = Speeds.of([prompt(0), short], with_reading=False)
    assert speeds.speed("outrider plain") == pytest.approx(11 / 3)


def test_a_side_record_says_what_left_plain() -> None:
    """Catches a departure that is hidden, or counters that are mixed up."""
    left = {"llama.cpp lookup": Departure(7, 0.01)}
    odd = PromptTurns("odd", "code", 20, prompt(0).turns, same_ids=True, left_plain=left)
    record = side_record([prompt(0), odd], "llama.cpp lookup")
    assert record["num_as_plain"] == 1
    assert record["left_plain"] == {"odd": {"position": 7, "margin": 0.01}}
    assert record["tokens_per_round"] == pytest.approx(2)
    assert record["acceptance_rate"] == pytest.approx(0.5)
    assert record["share_outside_forwards"] == pytest.approx(0.2 / 6)
    assert side_record([prompt(0)], "outrider auto")["share_outside_forwards"] is None


def test_a_log_goes_on(tmp_path: Path) -> None:
    """Catches turns that are lost or changed on disk, or mixed with those of other options."""
    path = tmp_path / "turns.jsonl"
    log = Log(path, {"threads": 2})
    log.begin({"code": {"lookup": {"length": 3}}})
    left = {"llama.cpp lookup": Departure(7, None)}
    made = PromptTurns("p0", "code", 20, prompt(0).turns, same_ids=True, left_plain=left)
    log.add(made)
    again = Log(path, {"threads": 2})
    assert again.done == {"p0": made}
    assert again.ways_of("code") == again.ways_of("another") == {"lookup": {"length": 3}}
    with pytest.raises(SystemExit, match="other options"):
        Log(path, {"threads": 1})


def test_the_report_covers_every_domain(capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a table that leaves a domain, a side or the total out."""
    prompts = [prompt(0), prompt(1), prompt(2, "edit"), prompt(3, "edit")]
    record = report(prompts, {"code": {}})
    shown = capsys.readouterr().out
    assert set(record["compared"]) == {"code", "edit", "all"}
    assert record["compared"]["all"]["num_prompts"] == 4
    assert record["num_same_ids"] == 4
    assert all(side in shown for side in SIDES)
    assert re.search(r"outrider auto / best of llama.cpp +3.00 \(3.00, 3.00\)", shown)
