"""What drafts add beyond the table: learnt, bounded, and looked at again."""

import pytest

from outrider.schedule.surcharge import (
    BARE_EVIDENCE,
    LOOK_EVERY,
    MOST,
    OUTLIER,
    SELDOM_LOOK_EVERY,
    Surcharge,
)

BARE, EXTRA = 10.0, 4.0


def run(
    surcharge: Surcharge,
    steps: int,
    *,
    added: float,
    speed: float = 1.0,
    load: int = 16,
    gain: float = 1.0,
) -> int:
    """Make steps with drafts that add `added`, and bare ones when wanted; count the bare ones."""
    looks = 0
    for _ in range(steps):
        if surcharge.takes_a_look(load):
            looks += 1
            surcharge.hear(load, bare=BARE, extra=0.0, gain=1.0, seconds=speed * BARE)
        else:
            seconds = speed * (BARE + added)
            surcharge.hear(load, bare=BARE, extra=EXTRA, gain=gain, seconds=seconds)
    return looks


def bare(surcharge: Surcharge, steps: int, *, speed: float = 1.0, load: int = 16) -> None:
    for _ in range(steps):
        surcharge.hear(load, bare=BARE, extra=0.0, gain=1.0, seconds=speed * BARE)


@pytest.mark.parametrize("speed", [0.5, 1.0, 3.0])
def test_the_factor_is_what_drafts_add_whatever_the_speed(speed: float) -> None:
    """Catches a machine that is slower for everything being taken for dear drafts."""
    surcharge = Surcharge()
    bare(surcharge, BARE_EVIDENCE, speed=speed)
    run(surcharge, 200, added=1.5 * EXTRA, speed=speed)
    assert surcharge.factor(16) == pytest.approx(1.5, abs=0.06)
    run(surcharge, 200, added=EXTRA, speed=speed)
    assert surcharge.factor(16) == pytest.approx(1.0, abs=0.03)


def test_the_factor_is_bounded() -> None:
    """Catches drafts that are never made again, or held for cheaper than the table says."""
    surcharge = Surcharge()
    bare(surcharge, BARE_EVIDENCE)
    run(surcharge, 100, added=0.1 * EXTRA)
    assert surcharge.factor(16) == 1.0
    run(surcharge, 400, added=9 * EXTRA)
    assert surcharge.factor(16) == MOST


def test_nothing_is_believed_without_bare_steps_of_that_load() -> None:
    """Catches a comparison with steps of another load, or with none."""
    surcharge = Surcharge()
    bare(surcharge, 100, load=4)
    run(surcharge, BARE_EVIDENCE, added=2 * EXTRA)
    assert surcharge.factor(16) == 1.0
    assert surcharge.factor(4) == 1.0


def test_a_delay_counts_little() -> None:
    """Catches one step that other work held up for a second."""
    surcharge = Surcharge()
    bare(surcharge, BARE_EVIDENCE)
    run(surcharge, 100, added=EXTRA)
    surcharge.hear(16, bare=BARE, extra=EXTRA, gain=1.0, seconds=1000.0)
    most = 1 + OUTLIER * (BARE + EXTRA) / (32 * EXTRA)
    assert 1.0 < surcharge.factor(16) < most
    bare(surcharge, 1, speed=1000.0)
    run(surcharge, 64, added=EXTRA)
    assert surcharge.factor(16) == pytest.approx(1.0, abs=0.05)


def test_looks_are_seldom_where_they_cost_much() -> None:
    """Catches a price for plain decoding that is never asked again, or asked at a loss."""
    surcharge = Surcharge()
    assert run(surcharge, 10 * LOOK_EVERY, added=EXTRA) in (9, 10)
    assert run(surcharge, 2 * SELDOM_LOOK_EVERY, added=EXTRA, gain=2.0) <= 3
    assert run(surcharge, 2 * SELDOM_LOOK_EVERY, added=EXTRA, gain=2.0) >= 1


def test_a_look_that_says_nothing_is_not_taken_again_at_once() -> None:
    """Catches drafts that stay away as long as every step reads some prompt."""
    surcharge = Surcharge()
    run(surcharge, LOOK_EVERY, added=EXTRA)
    assert surcharge.takes_a_look(16)
    assert not surcharge.takes_a_look(16)
