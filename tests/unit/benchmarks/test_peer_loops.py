"""The loops that llama.cpp is measured with, around models that are a line of arithmetic."""

from collections.abc import Callable, Sequence

import pytest

from benchmarks.peer_loops import (
    Decoded,
    Drafter,
    DraftModel,
    NgramCache,
    NgramSimple,
    NoDrafts,
    common_length,
    decode,
)

PROMPT = [1, 2, 3, 4, 5, 1, 2, 3]
FIRST = 4
Rule = Callable[[list[int]], int]


class Arithmetic:
    """A model whose arg-max is a function of all tokens; it refuses rows that leave a gap."""

    def __init__(self, rule: Rule, probability: float = 1.0) -> None:
        self.cache: list[int] = []
        self.rows: list[int] = []
        self._rule, self._probability = rule, probability

    def forward(self, tokens: Sequence[int], start: int, judged: int) -> list[int]:
        assert start == len(self.cache), "a gap, or rows that are there already"
        assert 1 <= judged <= len(tokens)
        self.cache += tokens
        self.rows.append(len(tokens))
        ends = range(len(self.cache) - judged + 1, len(self.cache) + 1)
        return [self._rule(self.cache[:end]) for end in ends]

    def top_probability(self) -> float:
        return self._probability

    def forget(self, start: int) -> None:
        del self.cache[start:]


def wave(tokens: list[int]) -> int:
    """Goes round in fives, but for a step aside now and then."""
    return 9 if sum(tokens) % 11 == 0 else tokens[-1] % 5 + 1


def rounds_in_fives(tokens: list[int]) -> int:
    return tokens[-1] % 5 + 1


def run(
    drafter: Drafter, *, rule: Rule = wave, stops: frozenset[int] = frozenset(), most: int = 40
) -> tuple[Decoded, Arithmetic]:
    target = Arithmetic(rule)
    target.forward(PROMPT, 0, 1)
    made = decode(target, drafter, PROMPT, FIRST, stops, most)
    assert target.cache == PROMPT
    return made, target


def draft_model(rule: Rule, length: int, least: float = 0.0, sure: float = 1.0) -> DraftModel:
    drafter = DraftModel(Arithmetic(rule, sure), length, least)
    drafter.read(PROMPT)
    return drafter


def drafters() -> dict[str, Drafter]:
    return {
        "a model that errs": draft_model(rounds_in_fives, 3),
        "a model that is right": draft_model(wave, 5),
        "a model that is never right": draft_model(lambda _: 77, 2),
        "a model that is never sure": draft_model(wave, 4, least=0.75, sure=0.5),
        "ngram-simple": NgramSimple(2, 4),
        "lookup": NgramCache(6),
    }


@pytest.mark.parametrize("name", drafters())
@pytest.mark.parametrize("stops", [frozenset[int](), frozenset({9})])
@pytest.mark.parametrize("most", [1, 2, 3, 40])
def test_drafts_change_no_token(name: str, stops: frozenset[int], most: int) -> None:
    """Catches a cache that is not rolled back, a window off by one, a stop or a limit overrun."""
    plain, _ = run(NoDrafts(), stops=stops, most=most)
    made, _ = run(drafters()[name], stops=stops, most=most)
    assert made.tokens == plain.tokens
    assert len(plain.tokens) <= most
    assert not set(plain.tokens[:-1]) & stops


def test_plain_decoding_computes_a_row_per_token() -> None:
    """Catches a peer that is made to work for nothing."""
    made, target = run(NoDrafts())
    assert target.rows == [len(PROMPT), *[1] * 39]
    assert (made.rounds, made.drafted, made.accepted) == (39, 0, 0)


def test_right_drafts_are_all_kept() -> None:
    """Catches a loop that throws the bonus token away, or a draft model that reads twice."""
    drafter = draft_model(wave, 5)
    made, target = run(drafter, most=37)
    assert made.rounds == 6
    assert made.drafted == made.accepted == 30
    assert target.rows[1:] == [6] * 6
    model = drafter.model
    assert isinstance(model, Arithmetic)
    # After a full acceptance the last draft token and the bonus are still to be computed.
    assert model.rows[1:7] == [1, 1, 1, 1, 1, 2]


def test_an_unsure_draft_model_ends_its_draft() -> None:
    """Catches a threshold that is not looked at, or drafts the token it doubts."""
    made, target = run(draft_model(wave, 4, least=0.75, sure=0.74))
    assert made.drafted == 0
    assert set(target.rows[1:]) == {1}
    assert run(draft_model(wave, 4, least=0.75, sure=0.75))[0].drafted > 0


def test_ngram_simple_copies_what_came_last() -> None:
    """Catches a search from the front, or one that finds the end itself."""
    tokens = [7, 1, 2, 5, 5, 1, 2, 6, 6, 1, 2]
    assert NgramSimple(2, 3).draft(tokens, 9) == [6, 6, 1]
    assert NgramSimple(2, 3).draft(tokens, 2) == [6, 6]
    assert NgramSimple(3, 3).draft(tokens, 9) == []
    # The match ends one token before the end: less than an n-gram follows.
    assert NgramSimple(2, 3).draft([3, 1, 1, 1], 9) == []


def test_lookup_wants_short_ngrams_to_be_seen_more_often() -> None:
    """Catches thresholds that are mixed up between sizes."""
    assert NgramCache(3).draft([1, 2, 3, 9, 1, 2], 9) == []
    assert NgramCache(1).draft([5, 1, 2, 3, 9, 5, 1, 2], 9) == [3]
    # One token: seen twice, and two of three times the same, but not two of four.
    assert NgramCache(1).draft([2, 3, 2, 3, 8, 2], 9) == [3]
    assert NgramCache(1).draft([2, 3, 2, 3, 2, 4, 8, 2], 9) == [3]
    assert NgramCache(1).draft([2, 3, 2, 3, 2, 4, 2, 4, 8, 2], 9) == []


def test_lookup_learns_as_tokens_come() -> None:
    """Catches a cache that is filled from the prompt alone, or counts a token twice."""
    drafter = NgramCache(2)
    assert drafter.draft([1, 2, 3], 9) == []
    assert drafter.draft([1, 2, 3, 4, 1, 2, 3], 9) == [4, 1]
    assert drafter.draft([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1) == [4]


def test_common_length() -> None:
    """Catches a count that stops at the shorter list's end or goes past it."""
    assert common_length([1, 2, 3], [1, 2, 4]) == 2
    assert common_length([1, 2], [1, 2, 4]) == 2
    assert common_length([], [1]) == 0
