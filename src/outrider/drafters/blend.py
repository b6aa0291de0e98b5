"""Weighs what several sources say: one draft out of a suffix match and an n-gram table.

At each draft position every source names a token for the text so far, drafted tokens included, and
the one with the better chance is taken; all sources then go on from there. A draft can so begin in
the request's own text and end in the table, or the other way round. What a source says of itself is
corrected by what became of its earlier tokens.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from outrider.drafters.ngram_table_file import Guess, NgramTable
from outrider.drafters.suffix_automaton import NextToken, Seat, SuffixAutomaton

SUFFIX: Final = "suffix"
TABLE: Final = "ngram-table"
MOST_CERTAIN: Final = 0.995

# Log-odds of a source's token, by what the other source says. Fitted by logistic regression on
# held-out text of the default model; what another model needs instead is learnt online.
AGREED: Final = 1.75
AGREED_BY_TABLE: Final = 0.65
OPPOSED: Final = 0.35
OPPOSED_BY_LEN: Final = 0.95

RATE: Final = 0.03
"""Step of the corrections per judged token."""
MOST_CORRECTION: Final = 3.0
"""Log-odds beyond which no correction grows."""

Key = tuple[Any, ...]
"""What tokens are corrected together."""


class Pick(NamedTuple):
    """A draft token, where it comes from, and the chance that it holds if all before it do.

    `stated` are the log-odds of that before the correction that `key` stands for.
    """

    token: int
    source: str
    chance: float
    stated: float
    key: Key


class Corrections:
    """Log-odds added to the chances of a source, learnt online from what became of its tokens.

    After each token that was judged, the correction of its key moves by `rate` times the error of
    the corrected chance: logistic regression with an offset alone, by stochastic gradient descent.
    Old experience fades, so the correction follows a change of text.
    """

    def __init__(self, rate: float = RATE, most: float = MOST_CORRECTION) -> None:
        """Start without any correction; none ever grows beyond `most`."""
        self._rate, self._most = rate, most
        self._offsets: dict[Key, float] = {}

    def pick(self, token: int, source: str, stated: float, key: Key) -> Pick:
        """Make a pick of a token whose source gives it the log-odds `stated`."""
        return Pick(token, source, self._chance(key, stated), stated, key)

    def learn(self, picks: Iterable[Pick], accepted: int, verified: int) -> None:
        """Learn from a draft: the tokens up to the first rejected one were judged."""
        for position, pick in enumerate(picks):
            if position > accepted or position >= verified:
                return
            error = (position < accepted) - self._chance(pick.key, pick.stated)
            moved = self._offsets.get(pick.key, 0.0) + self._rate * error
            self._offsets[pick.key] = max(-self._most, min(self._most, moved))

    def _chance(self, key: Key, stated: float) -> float:
        return 1 / (1 + math.exp(-stated - self._offsets.get(key, 0.0)))


def expected_tokens(chances: Iterable[float]) -> float:
    """How many draft tokens hold on average: the sum of their survivals."""
    expected, survival = 0.0, 1.0
    for chance in chances:
        survival *= chance
        expected += survival
    return expected


@dataclass(slots=True)
class Text:
    """One request's tokens as its sources see them."""

    own: SuffixAutomaton = field(default_factory=SuffixAutomaton)

    def catch_up(self, tokens: Sequence[int]) -> None:
        """Read what was committed since the last draft."""
        self.own.extend(tokens[len(self.own) :])


@dataclass(slots=True)
class Place:
    """A point behind the text and some draft tokens, as each source sees it."""

    seat: Seat
    recent: list[int]


class Blend:
    """Drafts from a request's own text and, if there is one, a table."""

    def __init__(self, table: NgramTable | None, corrections: Corrections) -> None:
        """Correct what the sources say by `corrections`."""
        self._table = table
        self._corrections = corrections
        self._order = table.header.max_order if table is not None else 1

    def place(self, text: Text, tokens: Sequence[int]) -> Place:
        """The end of a text that has caught up with `tokens`."""
        return Place(text.own.tip, list(tokens[-self._order :]))

    def move(self, text: Text, place: Place, token: int) -> Place:
        """Go on by one token, whoever said it."""
        return Place(text.own.follow(place.seat, (token,)), [*place.recent, token][-self._order :])

    def pick(self, text: Text, place: Place, *, is_greedy: bool) -> Pick | None:
        """The likeliest next token that a source knows; None if none knows any."""
        match = text.own.next_token(place.seat)
        guess = self._table.guess(place.recent) if self._table is not None else None
        if match is None:
            return None if guess is None else self._of_table(guess, None, is_greedy=is_greedy)
        own = self._of_text(match, guess, is_greedy=is_greedy)
        if guess is None or guess.token == match.token:
            return own
        other = self._of_table(guess, match, is_greedy=is_greedy)
        return own if own.chance >= other.chance else other

    def draft(
        self,
        text: Text,
        place: Place,
        most: int,
        *,
        is_greedy: bool,
        survival: float = 1.0,
        min_survival: float = 0.0,
    ) -> list[Pick]:
        """Draft up to `most` tokens, as long as the survival stays above `min_survival`."""
        picks: list[Pick] = []
        while len(picks) < most:
            pick = self.pick(text, place, is_greedy=is_greedy)
            if pick is None:
                break
            survival *= pick.chance
            if survival < min_survival:
                break
            picks.append(pick)
            place = self.move(text, place, pick.token)
        return picks

    def _of_text(self, match: NextToken, guess: Guess | None, *, is_greedy: bool) -> Pick:
        stated = logit(match.confidence)
        agrees = guess is not None and guess.token == match.token
        if guess is not None and agrees:
            stated += AGREED + AGREED_BY_TABLE * logit(guess.chance)
        key = (SUFFIX, match.context_len.bit_length(), agrees, is_greedy)
        return self._corrections.pick(match.token, SUFFIX, stated, key)

    def _of_table(self, guess: Guess, match: NextToken | None, *, is_greedy: bool) -> Pick:
        """The table's token where the text has none or another one."""
        stated = logit(guess.chance)
        if match is not None:
            stated -= OPPOSED + OPPOSED_BY_LEN * math.log(match.context_len)
        key = (TABLE, guess.order, match is None, is_greedy)
        return self._corrections.pick(guess.token, TABLE, stated, key)


def logit(chance: float) -> float:
    """Log-odds of a chance; certainty counts as 199 to 1."""
    if chance > MOST_CERTAIN:
        chance = MOST_CERTAIN
    elif chance < 1 - MOST_CERTAIN:
        chance = 1 - MOST_CERTAIN
    return math.log(chance / (1 - chance))
