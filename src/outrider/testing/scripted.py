"""Drafters and length policies that do what a test tells them, and an engine made of such parts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome
from outrider.core.request import Request, SamplingParams, VerifyRule
from outrider.core.sequence import Sequence as Tokens
from outrider.drafters.base import Drafter
from outrider.engine.commit import StopRules
from outrider.engine.detokenize import TextDecoder
from outrider.engine.engine import Engine, EngineParts
from outrider.engine.grammar import GrammarCompiler
from outrider.kvcache.blocks import BlockAllocator
from outrider.sampling.draw import draft_token
from outrider.sampling.noise import mix
from outrider.sampling.warp import Context, warp
from outrider.schedule.admission import Limits
from outrider.schedule.confidence import Estimator
from outrider.schedule.cost import StepCost
from outrider.schedule.lengths import BatchShape, Fixed, LengthPolicy
from outrider.schedule.search import Survival
from outrider.target.base import Target
from outrider.tensor.batch import Batch, BatchRow
from outrider.tensor.window import NO_PROPOSAL, Proposal, RowProposal, Scores, Taps
from outrider.verify.verifier import RuleVerifier


class RowDrafter:
    """A drafter that drafts each row on its own: `draft` gets the row and the rule it is under."""

    taps: Taps = ()

    def __init__(
        self, max_draft_len: int, draft: Callable[[BatchRow, VerifyRule], RowProposal]
    ) -> None:
        """Draft with `draft`, asked only for rows that may have drafts."""
        self.max_draft_len = max_draft_len
        self._draft = draft

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:
        """See `Drafter`."""
        return Proposal(
            tuple(
                self._draft(row, row.sequence.params.verify_rule or rule).first(row.max_draft_len)
                if row.max_draft_len
                else NO_PROPOSAL
                for row in batch
            )
        )

    def observe(self, outcome: Outcome, scores: Scores) -> None:
        """Learn nothing."""

    def forget(self, request_id: RequestId) -> None:
        """Remember nothing."""


def random_drafter(max_draft_len: int, vocab_size: int, seed: int = 0) -> Drafter:
    """Any tokens, any number of them, none included; a function of the seed and the text so far."""

    def draft(row: BatchRow, rule: VerifyRule) -> RowProposal:  # noqa: ARG001
        state = mix(seed, len(row.sequence), *row.sequence.tokens[-4:])
        length = mix(state) % (max_draft_len + 1)
        return RowProposal(tuple(mix(state, slot) % vocab_size for slot in range(length)))

    return RowDrafter(max_draft_len, draft)


def told_drafter(
    max_draft_len: int,
    outputs: Mapping[RequestId, Sequence[int]],
    vocab_size: int,
    is_right: Callable[[int], bool] = lambda position: True,  # noqa: ARG005
) -> Drafter:
    """Is told each request's output, and says it, or something else where `is_right` is false."""

    def draft(row: BatchRow, rule: VerifyRule) -> RowProposal:  # noqa: ARG001
        start = row.sequence.num_output
        coming = outputs[row.sequence.id][start : start + max_draft_len]
        return RowProposal(
            tuple(
                token if is_right(start + slot) else (token + 1) % vocab_size
                for slot, token in enumerate(coming)
            )
        )

    return RowDrafter(max_draft_len, draft)


def table_drafter(
    max_draft_len: int,
    table: Callable[[tuple[int, ...]], torch.Tensor],
    *,
    knows_grammar: bool = True,
) -> Drafter:
    """Draws from a table of log-probabilities, and under rejection hands over what it drew from.

    One that does not know the grammar drafts tokens that it refuses.
    """

    def draft(row: BatchRow, rule: VerifyRule) -> RowProposal:
        sequence = row.sequence
        tokens: list[int] = []
        probs = []
        for slot in range(row.max_draft_len):
            masks = sequence.matcher and sequence.matcher.masks(sequence.output, tokens)
            allowed = masks[-1] if masks and knows_grammar else None
            context = Context(sequence.prompt, (*sequence.output, *tokens), allowed=allowed)
            warped = warp(table((*sequence.tokens, *tokens)), sequence.params, context)
            if not bool((warped > -torch.inf).any()):
                break
            token, drawn_from = draft_token(warped, sequence, slot, rule)
            tokens.append(token)
            if drawn_from is not None:
                probs.append(drawn_from)
        return RowProposal(tuple(tokens), torch.stack(probs) if probs else None)

    return RowDrafter(max_draft_len, draft)


def ragged(inner: Drafter, seed: int = 0) -> Drafter:
    """Cut every proposal of a stateless drafter to a length that depends on nothing drafted."""

    def draft(row: BatchRow, rule: VerifyRule) -> RowProposal:
        length = mix(seed, row.sequence.num_rounds, len(row.sequence)) % (inner.max_draft_len + 1)
        return inner.propose(Batch((row,)), rule).rows[0].first(length)

    return RowDrafter(inner.max_draft_len, draft)


@dataclass(slots=True)
class ScriptedLengths:
    """Plays lengths in turn, one per row with drafts, round and round, as far as drafts go."""

    anticipating: ClassVar[bool] = False

    script: Sequence[int]
    _played: int = field(default=0)

    def plan(self, survival: Sequence[Survival], shape: BatchShape) -> list[int]:  # noqa: ARG002
        """See `LengthPolicy`."""
        lengths = []
        for row in survival:
            if row:
                lengths.append(min(len(row), self.script[self._played % len(self.script)]))
                self._played += 1
            else:
                lengths.append(0)
        return lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyEngine:
    """What `tiny_engine` may be told; the defaults never stand in the way of a request."""

    rule: VerifyRule = "matching"
    lengths: LengthPolicy = field(default_factory=lambda: Fixed(1 << 30))
    num_blocks: int = 256
    block_size: int = 4
    prefix_caching: bool = True
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_context_len: int | None = None
    decoder: TextDecoder | None = None
    grammars: GrammarCompiler | None = None
    cost: StepCost | None = None
    estimator: Estimator | None = None


def tiny_engine(
    target: Target, drafter: Drafter | None = None, options: TinyEngine | None = None
) -> Engine:
    """Put an engine together whose invariants are asserted after every step.

    The target must have a KV pool, or a memory, of the same `num_blocks` and `block_size`.
    """
    options = options or TinyEngine()
    context = options.max_context_len or min(
        target.spec.max_context_len, options.num_blocks * options.block_size
    )
    return Engine(
        EngineParts(
            target=target,
            drafter=drafter,
            lengths=options.lengths,
            verifier=RuleVerifier(options.rule, target.spec.stop_token_ids, target.sampler),
            allocator=BlockAllocator(
                options.num_blocks, options.block_size, prefix_caching=options.prefix_caching
            ),
            limits=Limits(options.max_num_seqs, options.max_num_batched_tokens, context),
            rules=StopRules(target.spec.stop_token_ids, context),
            decoder=options.decoder,
            grammars=options.grammars,
            is_checked=True,
            cost=options.cost,
            estimator=options.estimator,
        )
    )


def requests_of(
    prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
) -> list[Request]:
    """Number prompts into requests; request i has seed i, unless its parameters name one."""
    listed = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    return [
        Request(
            id=RequestId(f"r{index}"),
            prompt=tuple(prompt),
            params=own,
            seed=index if own.seed is None else own.seed,
        )
        for index, (prompt, own) in enumerate(zip(prompts, listed, strict=True))
    ]


def run_all(engine: Engine, requests: Sequence[Request]) -> list[Tokens]:
    """Queue the requests, step until nothing is left, and return their sequences."""
    sequences = [engine.add(request) for request in requests]
    while engine.has_work:
        report = engine.step()
        assert report.num_requests, "a step served nobody although there is work"
    return sequences
