"""Measures what a step costs here: the table behind the throughput policy.

The forward is timed alone, over windows of every size at two context lengths, in sweeps over all
sizes, so that what drifts on a machine hits all of them. What a step costs besides is timed on an
engine that serves real requests and drafts for them, but verifies none of the drafts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from outrider.core.ids import BlockId, RequestId
from outrider.core.outcome import Outcome
from outrider.core.price import FREE
from outrider.core.request import Request, SamplingParams, VerifyRule
from outrider.core.step_cost import (
    BatchTimings,
    Clock,
    MeasuredOn,
    StepCostTable,
    Timing,
)
from outrider.drafters.base import Drafter
from outrider.engine.backend import LoadedModel, ScoringTarget
from outrider.engine.commit import StopRules
from outrider.engine.engine import Engine, EngineParts
from outrider.kvcache.blocks import BlockAllocator
from outrider.schedule.admission import Limits
from outrider.schedule.lengths import Off
from outrider.tensor.batch import Batch
from outrider.tensor.span import Span
from outrider.tensor.window import Proposal, Scores
from outrider.verify.verifier import RuleVerifier

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)
FEWEST_ROWS = 32
ROWS_PER_REQUEST = 4
CONTEXTS = (64, 512)
FEWEST_SWEEPS, MOST_SWEEPS = 5, 11
HOST_STEPS, HOST_WARM_UP = 8, 2
HOST_PROMPT = (11, 12, 13, 14, 15, 11, 12, 13)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSetting:
    """What is measured and how long it may take."""

    measured_on: MeasuredOn
    max_num_seqs: int
    max_context_len: int
    block_size: int
    max_num_batched_tokens: int
    seconds: float = 3.0
    """For the sweeps; at least `FEWEST_SWEEPS` are made whatever they take."""

    @property
    def rows(self) -> tuple[int, ...]:
        """Window sizes, up to what a full batch may want to verify."""
        most = max(FEWEST_ROWS, ROWS_PER_REQUEST * self.max_num_seqs)
        most = min(most, self.max_num_batched_tokens, self.max_context_len)
        return tuple(rows for rows in ROWS if rows <= most)

    @property
    def contexts(self) -> tuple[int, ...]:
        """Context lengths in whole blocks, that leave room for the largest window."""
        room = self.max_context_len - self.rows[-1]
        whole = {min(context, room) // self.block_size * self.block_size for context in CONTEXTS}
        return tuple(sorted(whole))

    @property
    def batches(self) -> tuple[int, ...]:
        """Numbers of requests: powers of two and the largest."""
        powers = [1 << n for n in range(self.max_num_seqs.bit_length())]
        return tuple(sorted({*(n for n in powers if n <= self.max_num_seqs), self.max_num_seqs}))


def measure(
    model: LoadedModel,
    drafter: Drafter | None,
    drafter_name: str,
    setting: ProfileSetting,
    clock: Clock,
) -> StepCostTable:
    """Measure a whole table; `drafter_name` is the key of its drafting costs."""
    host, drafting = measure_host(model, drafter, setting, clock)
    return StepCostTable(
        measured_on=setting.measured_on,
        rows=setting.rows,
        contexts=setting.contexts,
        forward=_measure_forward(model, () if drafter is None else drafter.taps, setting, clock),
        host=host,
        drafting={drafter_name: drafting} if drafter is not None else {},
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _measure_forward(
    model: LoadedModel, taps: tuple[int, ...], setting: ProfileSetting, clock: Clock
) -> tuple[tuple[Timing, ...], ...]:
    stage = _Stage(model, setting)
    points = [(context, rows) for context in setting.contexts for rows in setting.rows]
    samples: dict[tuple[int, int], list[float]] = {point: [] for point in points}
    for rows in setting.rows:
        stage.target.score_spans(stage.spans(rows, setting.contexts[0]), taps)
    begun = clock()
    for sweep in range(MOST_SWEEPS):
        if sweep >= FEWEST_SWEEPS and clock() - begun > setting.seconds * sweep / (sweep + 1):
            break
        for context, rows in points:
            spans = stage.spans(rows, context)
            started = clock()
            stage.target.score_spans(spans, taps)
            samples[context, rows].append(clock() - started)
    return tuple(
        tuple(Timing.of(samples[context, rows]) for rows in setting.rows)
        for context in setting.contexts
    )


class _Stage:
    """A KV cache in which all requests share one context and own the blocks behind it."""

    def __init__(self, model: LoadedModel, setting: ProfileSetting) -> None:
        size = setting.block_size
        self._size = size
        self._seats = setting.max_num_seqs
        self._shared = [BlockId(block) for block in range(setting.contexts[-1] // size)]
        # The largest window of a single request, or a block for each of many.
        own = -(-setting.rows[-1] // size) + self._seats
        self._own = [BlockId(len(self._shared) + block) for block in range(own)]
        self.target: ScoringTarget = model.new_target(len(self._shared) + own, size)
        for start in range(0, setting.contexts[-1], setting.rows[-1]):
            tokens = list(_tokens(min(setting.rows[-1], setting.contexts[-1] - start)))
            self.target.score_spans([Span(tokens, start, self._shared, num_judged=1)])

    def spans(self, rows: int, context: int) -> list[Span]:
        """Spread `rows` over as many requests as there are seats, at least one row each."""
        num_spans = min(rows, self._seats)
        spans, free = [], iter(self._own)
        for index in range(num_spans):
            length = rows // num_spans + (index < rows % num_spans)
            blocks = [next(free) for _ in range(-(-length // self._size))]
            table = [*self._shared[: context // self._size], *blocks]
            spans.append(Span(list(_tokens(length)), context, table, num_judged=length))
        return spans


def _tokens(length: int) -> Iterator[int]:
    return (3 + index % 50 for index in range(length))


@dataclass(slots=True)
class _Samples:
    host: list[float] = field(default_factory=list)
    drafting: list[float] = field(default_factory=list)


def measure_host(
    model: LoadedModel, drafter: Drafter | None, setting: ProfileSetting, clock: Clock
) -> tuple[BatchTimings, BatchTimings]:
    """Time what a step takes besides its forward, and of that the drafting, by requests."""
    host, drafting = [], []
    for num_requests in setting.batches:
        samples = _host_samples(model, drafter, num_requests, setting, clock)
        host.append((num_requests, Timing.of(samples.host)))
        drafting.append((num_requests, Timing.of(samples.drafting)))
    return tuple(host), tuple(drafting)


class _Spendthrift:
    """A drafter that does all it can for each draft: drafts are free to it."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.max_draft_len = drafter.max_draft_len
        self.taps = drafter.taps

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:
        """Draft at no price."""
        return self._drafter.propose(replace(batch, price=FREE), rule)

    def observe(self, outcome: Outcome, scores: Scores) -> None:
        """Pass it on."""
        self._drafter.observe(outcome, scores)

    def forget(self, request_id: RequestId) -> None:
        """Pass it on."""
        self._drafter.forget(request_id)


def _host_samples(
    model: LoadedModel,
    drafter: Drafter | None,
    num_requests: int,
    setting: ProfileSetting,
    clock: Clock,
) -> _Samples:
    draft_len = 0 if drafter is None else drafter.max_draft_len
    drafter = None if drafter is None else _Spendthrift(drafter)
    length = len(HOST_PROMPT) + HOST_WARM_UP + HOST_STEPS + draft_len + 2
    blocks = num_requests * -(-length // setting.block_size)
    target = model.new_target(blocks, setting.block_size)
    window = num_requests * (len(HOST_PROMPT) + draft_len)
    engine = Engine(
        EngineParts(
            target=target,
            drafter=drafter,
            lengths=Off(),
            verifier=RuleVerifier("matching", frozenset(), target.sampler),
            allocator=BlockAllocator(blocks, setting.block_size, prefix_caching=False),
            limits=Limits(num_requests, window, target.spec.max_context_len),
            rules=StopRules(frozenset(), target.spec.max_context_len),
            clock=clock,
        )
    )
    requests = _requests(num_requests, HOST_WARM_UP + HOST_STEPS + draft_len + 2)
    for request in requests:
        engine.add(request)
    samples = _Samples()
    for number in range(1 + HOST_WARM_UP + HOST_STEPS):
        times = engine.step().times
        # The first step reads the prompts.
        if number > HOST_WARM_UP:
            samples.host.append(times.total - times.forward - times.draft)
            samples.drafting.append(times.draft)
    for request in requests:
        engine.abort(request.id)
    return samples


def _requests(num_requests: int, max_tokens: int) -> Sequence[Request]:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return [
        Request(RequestId(f"profile-{number}"), HOST_PROMPT, params, seed=number)
        for number in range(num_requests)
    ]
