"""The engine: a queue of requests and one step that serves them. Synchronous, one thread.

Knows token ids only; text is made beside the commit, prompts are tokenized by `engine.llm`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from outrider.core.acceptance import Acceptance
from outrider.core.ids import RequestId
from outrider.core.matcher import TokenMatcher
from outrider.core.outcome import Finish, FinishReason, Outcome
from outrider.core.request import Request, SamplingParams
from outrider.core.sequence import Sequence
from outrider.core.step_cost import Clock
from outrider.core.trace import StepTimes
from outrider.drafters.base import Drafter
from outrider.engine.commit import StopRules, commit
from outrider.engine.described import bare_shape, described, round_of
from outrider.engine.detokenize import TextDecoder, TextStream
from outrider.engine.features import FeatureRecorder
from outrider.engine.grammar import GrammarCompiler
from outrider.engine.reader import TextReader
from outrider.engine.report import Delta, StepReport
from outrider.engine.watch import Watch
from outrider.errors import CapacityError, ConfigError, RequestRejected
from outrider.kvcache.blocks import BlockAllocator
from outrider.sampling.warp import check_token_ids
from outrider.schedule.admission import Admission, Limits
from outrider.schedule.confidence import Estimator
from outrider.schedule.cost import StepCost
from outrider.schedule.lengths import LengthPolicy
from outrider.schedule.planner import Plan, Planner
from outrider.target.base import Target
from outrider.tensor.batch import Batch
from outrider.tensor.shapes import Hidden
from outrider.tensor.window import Proposal, Taps, VerifyWindow
from outrider.verify.pruning import prune
from outrider.verify.verifier import RuleVerifier


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """Everything an engine is made of; put together by `engine.resolve` or by a test.

    `cost` and `estimator` are for policies that weigh; without them drafts are made whenever they
    may be. `on_step` hears every report.
    """

    target: Target
    drafter: Drafter | None
    lengths: LengthPolicy
    verifier: RuleVerifier
    allocator: BlockAllocator
    limits: Limits
    rules: StopRules
    decoder: TextDecoder | None = None
    reader: TextReader | None = None
    grammars: GrammarCompiler | None = None
    recorder: FeatureRecorder | None = None
    is_checked: bool = False
    cost: StepCost | None = None
    estimator: Estimator | None = None
    clock: Clock = time.perf_counter
    on_step: Callable[[StepReport], None] | None = None


ANTICIPATING = (
    "this length policy may look at a draft before deciding to verify it, which biases rejection "
    "sampling; use verify rule 'matching' or another length policy"
)


def _refuse_lossy(parts: EngineParts) -> None:
    if parts.drafter is not None and not parts.target.can_roll_back:
        raise ConfigError(
            f"{type(parts.target).__name__} cannot forget rejected drafts, so nothing can be "
            "drafted for it; leave the speculative config out"
        )
    if parts.verifier.rule == "rejection" and parts.lengths.anticipating:
        raise ConfigError(ANTICIPATING)


def _taps(parts: EngineParts) -> Taps:
    """Which features the target gives: the drafter's or the recorder's, who must agree."""
    wanted = {each.taps for each in (parts.drafter, parts.recorder) if each is not None}
    wanted.discard(())
    if len(wanted) > 1:
        raise ConfigError(
            f"the drafter reads layers {parts.drafter and parts.drafter.taps}, feature_taps are "
            f"{parts.recorder and parts.recorder.taps}; name the same layers, or do not draft"
        )
    return wanted.pop() if wanted else ()


class Engine:
    """Serves requests step by step."""

    def __init__(self, parts: EngineParts) -> None:
        """Take the parts; nothing is loaded here.

        Raises:
            ConfigError: The target cannot forget rejected drafts, or the length policy looks at
                drafts that rejection sampling must not know.
        """
        _refuse_lossy(parts)
        self._parts = parts
        self._target, self._drafter = parts.target, parts.drafter
        self._recorder = parts.recorder
        self._taps = _taps(parts)
        self._planner = Planner(parts.lengths, cost=parts.cost, estimator=parts.estimator)
        self._admission = Admission(parts.allocator, parts.limits, self._draft_len_of)
        self._streams: dict[RequestId, TextStream] = {}
        self._sequences: dict[RequestId, Sequence] = {}
        self.acceptance = Acceptance()

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._sequences)

    @property
    def num_preemptions(self) -> int:
        """How often a request lost its blocks to an older one."""
        return self._admission.num_preemptions

    @property
    def num_running(self) -> int:
        """Requests that hold KV blocks."""
        return self._admission.num_running

    @property
    def num_waiting(self) -> int:
        """Requests that hold no KV blocks yet, preempted ones included."""
        return self._admission.num_waiting

    @property
    def cost(self) -> StepCost | None:
        """What steps cost here; None under a policy that does not weigh."""
        return self._parts.cost

    @property
    def cache(self) -> BlockAllocator:
        """Who owns which KV block; to be read only."""
        return self._parts.allocator

    @property
    def max_context_len(self) -> int:
        """Most tokens of a sequence, prompt and output together."""
        return self._parts.limits.max_context_len

    @property
    def max_draft_len(self) -> int:
        """Most tokens its drafter proposes at a time; 0 without one."""
        return 0 if self._drafter is None else self._drafter.max_draft_len

    def add(self, request: Request) -> Sequence:
        """Queue a request; the returned sequence fills as steps are made.

        Raises:
            RequestRejected: The prompt or an option cannot be served by this engine.
            CapacityError: The KV cache could never hold the request.
        """
        if request.id in self._sequences:
            raise RequestRejected(
                f"request id {request.id!r} is in use; give every request its own"
            )
        self.check(request)
        sequence = Sequence.of(request)
        sequence.matcher = self.matcher_of(request.params)
        self._sequences[request.id] = sequence
        self._admission.add(sequence)
        if self._parts.decoder is not None:
            self._streams[request.id] = TextStream(
                self._parts.decoder,
                request.prompt,
                stop=request.params.stop,
                skip_special_tokens=request.params.skip_special_tokens,
            )
        return sequence

    def check(self, request: Request) -> None:
        """Refuse what this engine cannot serve; reads nothing that a step changes.

        Raises:
            RequestRejected: The prompt or an option cannot be served by this engine.
            CapacityError: The KV cache could never hold the request.
        """
        spec, limits = self._target.spec, self._parts.limits
        if not request.prompt:
            raise RequestRejected("the prompt is empty; it needs at least one token")
        for token in request.prompt:
            if not 0 <= token < spec.vocab_size:
                raise RequestRejected(
                    f"prompt token {token} is outside the vocabulary of {spec.vocab_size} ids"
                )
        check_token_ids(request.params, spec.vocab_size)
        self.matcher_of(request.params)
        if request.params.verify_rule == "rejection" and self._parts.lengths.anticipating:
            raise RequestRejected(ANTICIPATING)
        length = len(request.prompt)
        if length >= limits.max_context_len:
            raise RequestRejected(
                f"the prompt has {length} tokens, but the context holds {limits.max_context_len} "
                "and needs one for the answer; shorten the prompt"
            )
        allocator = self._parts.allocator
        longest = min(length + request.params.max_tokens, limits.max_context_len)
        needed = -(-longest // allocator.block_size)
        if needed > allocator.num_blocks:
            raise CapacityError(
                f"the request may grow to {longest} tokens = {needed} KV blocks, but the cache has "
                f"{allocator.num_blocks}; lower max_tokens or raise kv_cache_tokens"
            )

    def abort(self, request_id: RequestId) -> None:
        """End a request at once; harmless when it is not there."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            sequence.finish = Finish(FinishReason.ABORT)
            self._drop(sequence)

    def fail(self, request_id: RequestId, reason: str) -> Delta | None:
        """End a request with an error and give what is left to tell; None if it is not there."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        sequence.finish = sequence.finish or Finish(FinishReason.ERROR, reason)
        delta = self._delta(sequence)
        self._drop(sequence)
        return delta

    def start_over(self) -> list[RequestId]:
        """Bring the engine back into order after `step` raised; give who was in that step.

        Their KV blocks and what drafters knew of them are gone, their tokens stay: they are read
        again. What the broken step committed is told by their next delta; who ended in it is gone.
        """
        suspects = self._admission.preempt_all()
        for request_id in suspects:
            if self._drafter is not None:
                self._drafter.forget(request_id)
            sequence = self._sequences[request_id]
            if sequence.finish is not None:
                self._drop(sequence)
        return suspects

    def step(self, alone: RequestId | None = None) -> StepReport:
        """One round: guess, decide how much to check, check it once, commit what held.

        With `alone`, of that request only; nothing else may be running then.
        """
        watch = Watch(self._parts.clock)
        self._planner.begin_step(self._num_requests())
        admission = self._admission
        batch = admission.next_batch() if alone is None else admission.next_alone(alone)
        if not batch:
            return StepReport()
        watch.lap()
        drafted = self._propose(batch)
        proposal = prune(batch, drafted)
        rule, reader = self._parts.verifier.rule, self._parts.reader
        plan = self._planner.plan(described(batch, proposal, rule, watch.lap(), reader))
        window = VerifyWindow.build(
            batch, proposal, plan.lengths, [len(row.tokens) for row in drafted.rows]
        )
        watch.lap()
        scores = self._target.score(window, self._taps)
        forward_seconds = watch.lap()
        verdict = self._parts.verifier.judge(window, scores)
        outcome = commit(
            window, scores, verdict, self._admission.views, self._streams, self._parts.rules
        )
        if self._drafter is not None:
            self._drafter.observe(outcome, scores)
        if self._recorder is not None:
            self._recorder.observe(batch, outcome, scores)
        self._planner.learn(plan, [row.accepted for row in outcome.rows])
        times = watch.times(plan, forward_seconds, self._planner.drift.gap)
        self._planner.hear(plan, times.total)
        return self._deliver(window, plan, outcome, times)

    def _num_requests(self) -> int:
        """Requests that this step may serve."""
        return min(self.num_running + self.num_waiting, self._parts.limits.max_num_seqs)

    def matcher_of(self, params: SamplingParams) -> TokenMatcher | None:
        """Make what holds an output to its form; None for no form.

        Raises:
            RequestRejected: The form cannot be held to.
        """
        form = params.structured_outputs
        if form is None:
            return None
        if self._parts.grammars is None:
            raise RequestRejected(
                "this engine knows no text, so it cannot hold to structured_outputs"
            )
        return self._parts.grammars.matcher(form)

    def _propose(self, batch: Batch) -> Proposal:
        if self._drafter is None or not any(row.max_draft_len for row in batch):
            return Proposal.nothing(batch)
        price = self._planner.price(bare_shape(batch))
        return self._drafter.propose(replace(batch, price=price), self._parts.verifier.rule)

    def _draft_len_of(self, sequence: Sequence) -> int:
        if self._drafter is None or not self._planner.may_draft(sequence.id):
            return 0
        own = sequence.params.max_draft_len
        return self._drafter.max_draft_len if own is None else min(own, self._drafter.max_draft_len)

    def _deliver(
        self, window: VerifyWindow, plan: Plan, outcome: Outcome, times: StepTimes
    ) -> StepReport:
        deltas, rounds = [], []
        step = Acceptance()
        for row, draft, planned, survival, done in zip(
            window.batch, window.drafts, plan.step.rows, plan.survival, outcome.rows, strict=True
        ):
            sequence = row.sequence
            if done.committed:
                rounds.append(round_of(sequence, draft, planned.said, survival, done))
                step.record(
                    drafted=done.drafted,
                    verified=done.verified,
                    accepted=done.accepted,
                    delivered=len(done.committed),
                    sources=draft.sources,
                )
            if done.committed or done.is_finished:
                deltas.append(self._delta(sequence))
            if done.is_finished:
                self._drop(sequence)
        self.acceptance.add(step)
        if self._parts.is_checked:
            self._check()
        report = StepReport(
            num_requests=len(window.batch),
            num_tokens=window.num_tokens,
            num_preemptions=self.num_preemptions,
            acceptance=step,
            deltas=tuple(deltas),
            rounds=tuple(rounds),
            context_len=plan.step.shape.context_len,
            times=times,
        )
        if self._parts.on_step is not None:
            self._parts.on_step(report)
        return report

    def _delta(self, sequence: Sequence) -> Delta:
        """Give what the request gained since the last report that told of it."""
        start, sequence.num_reported = sequence.num_reported, sequence.num_output
        return Delta(
            request_id=sequence.id,
            tokens=tuple(sequence.tokens[sequence.num_prompt + start :]),
            text=self._new_text(sequence),
            origins=tuple(sequence.origins[start:]),
            sources=tuple(sequence.sources[start:]),
            logprobs=tuple(sequence.logprobs[start:]),
            finish=sequence.finish,
            features=self._features(sequence),
        )

    def _new_text(self, sequence: Sequence) -> str:
        stream = self._streams.get(sequence.id)
        if stream is None:
            return ""
        is_whole = sequence.finish is not None and sequence.finish.reason is not FinishReason.ERROR
        text = stream.finish() if is_whole else stream.take()
        sequence.text = stream.text
        return text

    def _features(self, sequence: Sequence) -> Hidden | None:
        if self._recorder is None or sequence.finish is None:
            return None
        return self._recorder.take(sequence.id)

    def _drop(self, sequence: Sequence) -> None:
        self._admission.remove(sequence)
        self._sequences.pop(sequence.id, None)
        self._streams.pop(sequence.id, None)
        self._planner.forget(sequence.id)
        if self._drafter is not None:
            self._drafter.forget(sequence.id)
        if self._recorder is not None:
            self._recorder.take(sequence.id)

    def _check(self) -> None:
        """Assert the position picture and the books of the KV cache."""
        self._parts.allocator.check_integrity()
        views: Mapping[RequestId, object] = self._admission.views
        assert set(views) <= set(self._sequences), "a view outlived its request"
        for request_id, view in self._admission.views.items():
            sequence = self._sequences[request_id]
            assert view.kv_len <= len(sequence) - 1, "the anchor must not be cached"
            assert len(view.blocks) * view.allocator.block_size >= view.kv_len
