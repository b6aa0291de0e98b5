"""Stand-ins that let the real engine run on a log: time comes from a step cost table.

The engine, its admission, drafters, length policies and commits are those that serve; only the
target and the clock are not. The target says what the log says, whatever was drafted, and moves the
clock by what the table says of the window; drafting moves it likewise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import torch

from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome
from outrider.core.request import SamplingParams, VerifyRule
from outrider.drafters.base import Drafter
from outrider.models.spec import ModelSpec, RopeSpec
from outrider.sampling.rows import RowRun, RowSampler
from outrider.schedule.cost import StepCost
from outrider.tensor.batch import Batch
from outrider.tensor.shapes import Logits
from outrider.tensor.window import Proposal, Scores, Taps, VerifyWindow

NO_TOKEN: Final = -3
"""What the target says behind the end of a log; no drafter says it."""


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A prompt and what the target answered, in tokens.

    `max_tokens` is more than the output has if a stop token, the last one, ended it. `tail` is what
    the target would have said behind the end, as far as that is known.
    """

    id: str
    domain: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    max_tokens: int
    tail: tuple[int, ...] = ()

    @property
    def params(self) -> SamplingParams:
        """Options under which the engine says exactly this output."""
        stop: frozenset[int] = frozenset()
        most = len(self.output)
        if self.max_tokens > most and self.output[-1] not in self.output[:-1]:
            stop, most = frozenset({self.output[-1]}), self.max_tokens
        return SamplingParams(temperature=0.0, max_tokens=most, stop_token_ids=stop)


class VirtualClock:
    """Seconds that pass when somebody says so."""

    def __init__(self) -> None:
        """Start at 0."""
        self.now = 0.0

    def __call__(self) -> float:
        """Read the clock."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class _Said:
    """Takes the one column of the target's scores for its tokens."""

    def can_draw(self, params: SamplingParams) -> bool:
        return params.is_greedy

    def draw(self, logits: Logits, runs: Sequence[RowRun]) -> list[int]:
        tokens = logits[:, 0].tolist()
        return [
            int(token)
            for run in runs
            for token in tokens[run.first_row : run.first_row + run.num_rows]
        ]


class LogTarget:
    """Says the logged output of each request and takes the time that the table gives a window."""

    can_roll_back: ClassVar[bool] = True

    def __init__(self, cost: StepCost, clock: VirtualClock, vocab_size: int, context: int) -> None:
        """Serve sequences of up to `context` tokens; `outputs` is filled by the caller."""
        self.sampler: RowSampler = _Said()
        self.spec = _spec(vocab_size, context)
        self.outputs: dict[RequestId, tuple[int, ...]] = {}
        self.most_rows = 0
        """Of a step that read no prompt."""
        self._cost = cost
        self._clock = clock

    def score(self, window: VerifyWindow, taps: Taps = ()) -> Scores:
        """Give, for each judged row, the tokens that the log has from its anchor on."""
        assert not taps, "a log has no features"
        tokens: list[int] = []
        first_row: list[int] = []
        num_judged = num_known = seen = 0
        for row, draft in zip(window.batch, window.drafts, strict=True):
            num_known += row.num_known
            seen += row.num_known * (2 * row.kv_len + row.num_known)
            first_row.append(len(tokens) if row.is_judged else -1)
            if row.is_judged:
                num_judged += 1
                start, count = row.sequence.num_output, len(draft.tokens) + 1
                said = self.outputs[row.sequence.id][start : start + count]
                tokens.extend(said)
                tokens.extend([NO_TOKEN] * (count - len(said)))
        if num_known == num_judged:
            self.most_rows = max(self.most_rows, window.num_tokens)
        context = seen / (2 * num_known)
        self._clock.advance(self._cost.step(window.num_tokens, num_judged, context))
        column = torch.tensor(tokens, dtype=torch.float64)[:, None]
        return Scores(column, tuple(first_row), None, ())


class PricedDrafter:
    """A drafter whose proposals take the time that the table says."""

    def __init__(self, drafter: Drafter, cost: StepCost, clock: VirtualClock) -> None:
        """Wrap `drafter`, whose cost `cost` knows."""
        self.max_draft_len = drafter.max_draft_len
        self.taps: Taps = ()
        self._drafter = drafter
        self._cost = cost
        self._clock = clock

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:
        """See `Drafter`."""
        num_asked = sum(row.max_draft_len > 0 for row in batch)
        self._clock.advance(self._cost.drafting(num_asked))
        return self._drafter.propose(batch, rule)

    def observe(self, outcome: Outcome, scores: Scores) -> None:
        """See `Drafter`."""
        self._drafter.observe(outcome, scores)

    def forget(self, request_id: RequestId) -> None:
        """See `Drafter`."""
        self._drafter.forget(request_id)


def _spec(vocab_size: int, context: int) -> ModelSpec:
    """Give the least of a model that an engine looks at: vocabulary and context."""
    return ModelSpec(
        architecture="llama",
        vocab_size=vocab_size,
        hidden_size=2,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        intermediate_size=1,
        norm_eps=1e-6,
        rope=RopeSpec(theta=10000.0, max_position=context),
        qkv_bias=False,
        qk_norm=False,
        tied_head=True,
        max_context_len=context,
        stop_token_ids=frozenset(),
        bos_token_id=None,
    )
