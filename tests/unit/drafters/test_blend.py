"""Text and table in one draft: who is believed, and what is learnt from it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.blend import SUFFIX, TABLE, Blend, Corrections, Pick, Text, logit
from outrider.drafters.suffix_automaton import SuffixAutomaton
from tests.tables import table_of_texts

VOCAB = 30


def drafted(blend: Blend, tokens: list[int], most: int, min_survival: float = 0.0) -> list[Pick]:
    text = Text()
    text.catch_up(tokens)
    place = blend.place(text, tokens)
    return blend.draft(text, place, most, is_greedy=True, min_survival=min_survival)


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 6))
def test_without_a_table_it_is_the_suffix_match(tokens: list[int], most: int) -> None:
    """Catches a seat that is lost between two draft tokens."""
    automaton = SuffixAutomaton()
    automaton.extend(tokens)
    match = automaton.continuation(most, min_match_len=1)
    picks = drafted(Blend(None, Corrections()), tokens, most)
    assert tuple(pick.token for pick in picks) == match.tokens
    for pick, confidence in zip(picks, match.confidence, strict=True):
        assert pick.chance == pytest.approx(confidence, abs=0.006)
        assert pick.source == SUFFIX


def test_a_draft_goes_from_one_source_to_the_other() -> None:
    """Catches sources that lose their place when another one drafts."""
    table = table_of_texts([[20, 21, 22, 23, 9, 10, 24, 25]] * 40, vocab_size=VOCAB)
    blend = Blend(table, Corrections())
    # The text repeats itself up to 20, from there on the table knows better.
    picks = drafted(blend, [1, 2, 3, 20, 1, 2], 7)
    assert [pick.token for pick in picks] == [3, 20, 21, 22, 23, 9, 10]
    assert [pick.source for pick in picks] == [SUFFIX] * 2 + [TABLE] * 5
    # And back: 25 has no successor in the table.
    picks = drafted(blend, [25, 1, 2, 3, 24], 4)
    assert [pick.token for pick in picks] == [25, 1, 2, 3]
    assert [pick.source for pick in picks] == [TABLE] + [SUFFIX] * 3


def test_agreement_and_contradiction_move_the_chances() -> None:
    """Catches a sign: agreement makes a token likelier, a long match another one doubtful."""
    table = table_of_texts([[5, 6], [5, 6], [5, 7]], vocab_size=VOCAB)
    alone = drafted(Blend(table, Corrections()), [5], 1)[0]
    own = drafted(Blend(None, Corrections()), [5, 6, 5], 1)[0]
    agreed = drafted(Blend(table, Corrections()), [5, 6, 5], 1)[0]
    assert alone.source == TABLE
    assert (alone.token, own.token, agreed.token) == (6, 6, 6)
    assert agreed.chance > max(alone.chance, own.chance)
    # The more of its own text a request repeats, the less a table that says otherwise counts.
    start = [1, 2, 3, 4, 5, 9]
    picks = [drafted(Blend(table, Corrections()), [*start, *start[k:5]], 1)[0] for k in range(5)]
    assert picks[0].token == 9
    assert picks[-1].token == 6


def test_a_draft_ends_where_it_is_unlikely() -> None:
    """Catches a survival that begins anew with every source."""
    table = table_of_texts([[20, 21, 22, 23]] * 9, vocab_size=VOCAB)
    blend = Blend(table, Corrections())
    whole = drafted(blend, [20], 3)
    limit = math.prod(pick.chance for pick in whole[:2]) * 0.999
    assert drafted(blend, [20], 3, min_survival=limit) == whole[:2]


def learnt(hits: int, misses: int) -> float:
    """The chance of a token stated at one half, after so many of its kind held or did not."""
    corrections = Corrections()
    for hit in [True] * hits + [False] * misses:
        pick = corrections.pick(1, SUFFIX, 0.0, (SUFFIX, 1))
        corrections.learn([pick], int(hit), 1)
    return corrections.pick(1, SUFFIX, 0.0, (SUFFIX, 1)).chance


def test_corrections_follow_what_happened() -> None:
    """Catches a sign, a rate of zero, or a correction without a bound."""
    assert learnt(0, 0) == 0.5
    assert 0.5 < learnt(10, 0) < learnt(100, 0) < 1
    assert 0.5 > learnt(0, 10) > learnt(0, 100) > 0
    assert learnt(10_000, 0) <= 1 / (1 + math.exp(-3)) + 1e-9
    assert learnt(200, 5) < learnt(200, 0)


def test_only_judged_tokens_teach() -> None:
    """Catches tokens behind a rejected one, or cut by the length policy, that count as wrong."""
    for accepted, verified, taught in ((0, 4, 1), (2, 4, 3), (4, 4, 4), (1, 1, 1), (0, 0, 0)):
        corrections = Corrections()
        picks = [corrections.pick(7, TABLE, 0.0, (TABLE, slot)) for slot in range(4)]
        corrections.learn(picks, accepted, verified)
        moved = [corrections.pick(7, TABLE, 0.0, (TABLE, slot)).chance for slot in range(4)]
        expected = [math.copysign(1, slot < accepted or -1) for slot in range(taught)]
        assert [math.copysign(1, chance - 0.5) for chance in moved[:taught]] == expected
        assert moved[taught:] == [0.5] * (4 - taught)


def test_certainty_has_finite_odds() -> None:
    """Catches an infinity that no correction could move."""
    assert logit(1.0) == -logit(0.0) == pytest.approx(math.log(199))
    assert logit(0.5) == 0
