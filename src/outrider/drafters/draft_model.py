"""A second, smaller model of the same vocabulary drafts autoregressively, with its own paged KV."""

from dataclasses import dataclass, field

import torch

from outrider.core.ids import RequestId
from outrider.core.outcome import Outcome
from outrider.core.request import VerifyRule
from outrider.core.sequence import Sequence
from outrider.drafters.base import DrafterSetting, SpanScorer
from outrider.drafters.vocabulary import fit_logits, require_same_vocabulary
from outrider.errors import ConfigError, RequestFailed
from outrider.kvcache.blocks import BlockAllocator
from outrider.kvcache.view import CacheView
from outrider.models.checkpoint import open_checkpoint
from outrider.sampling.draw import draft_token
from outrider.sampling.warp import Context, warp
from outrider.tensor.batch import Batch
from outrider.tensor.shapes import Logits
from outrider.tensor.span import Span
from outrider.tensor.window import NO_PROPOSAL, Proposal, RowProposal, Scores, Taps

NAME = "draft-model"
DEFAULT_DRAFT_LEN = 3
CATCH_UP_CHUNK = 512


@dataclass(slots=True)
class _State:
    """One request's cache in the draft model.

    `written` are tokens computed behind `view.kv_len`, true or not: those that turn out to be the
    sequence's own need not be computed again.
    """

    view: CacheView
    written: list[int] = field(default_factory=list)

    def settle(self, tokens: list[int]) -> None:
        """Keep what was written for tokens then committed; the anchor is computed anew."""
        kv_len = self.view.kv_len
        own = tokens[kv_len:-1]
        kept = 0
        while kept < min(len(own), len(self.written)) and own[kept] == self.written[kept]:
            kept += 1
        self.written.clear()
        self.view.advance(tokens, kv_len + kept)


@dataclass(slots=True)
class _Draft:
    """A draft on its way: the batch row it is for and what was drawn so far."""

    row: int
    sequence: Sequence
    state: _State
    most: int
    tokens: list[int] = field(default_factory=list)
    probs: list[torch.Tensor] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    is_open: bool = True

    def proposal(self) -> RowProposal:
        """Hand over what was drawn, with the distributions if it was drawn from any."""
        probs = torch.stack(self.probs) if self.probs else None
        return RowProposal(
            tuple(self.tokens),
            probs,
            confidence=tuple(self.confidence),
            sources=(NAME,) * len(self.tokens),
        )


class DraftModelDrafter:
    """Catches up with each sequence from its tokens alone; drafts all rows of a batch together."""

    taps: Taps = ()

    def __init__(
        self,
        model: SpanScorer,
        allocator: BlockAllocator,
        max_draft_len: int,
        *,
        target_vocab_size: int,
        stop_tokens: frozenset[int] = frozenset(),
    ) -> None:
        """Draft with `model`, whose pool's blocks `allocator` owns; end drafts at `stop_tokens`."""
        self.max_draft_len = max_draft_len
        self._model = model
        self._allocator = allocator
        self._vocab_size = target_vocab_size
        self._stop_tokens = stop_tokens
        self._states: dict[RequestId, _State] = {}

    def propose(self, batch: Batch, rule: VerifyRule) -> Proposal:
        """Run the draft model once per draft token over all rows that want one more."""
        drafts = self._open(batch)
        logits = self._catch_up(drafts)
        active = drafts
        while active:
            for draft, row in zip(active, logits, strict=True):
                self._draw(draft, row, draft.sequence.params.verify_rule or rule)
            active = [draft for draft in active if draft.is_open]
            if active:
                logits = self._score([(draft, draft.tokens[-1:]) for draft in active])
        rows = [NO_PROPOSAL] * len(batch)
        for draft in drafts:
            rows[draft.row] = draft.proposal()
        return Proposal(tuple(rows))

    def observe(self, outcome: Outcome, scores: Scores) -> None:
        """Learn nothing: the next proposal compares its cache with the sequence."""

    def forget(self, request_id: RequestId) -> None:
        """Give the request's blocks back."""
        state = self._states.pop(request_id, None)
        if state is not None:
            state.view.release()

    def _open(self, batch: Batch) -> list[_Draft]:
        """Start a draft for each row that may have one and fits the draft model's cache."""
        drafts = []
        present = {row.sequence.id for row in batch}
        for index, row in enumerate(batch):
            sequence = row.sequence
            most = min(row.max_draft_len, self._model.spec.max_context_len - len(sequence))
            if most <= 0:
                continue
            state = self._states.get(sequence.id)
            if state is None:
                state = self._states[sequence.id] = _State(CacheView(self._allocator))
            state.settle(sequence.tokens)
            if self._make_room(state, len(sequence) - state.view.kv_len + most, present):
                drafts.append(_Draft(index, sequence, state, most))
        return drafts

    def _make_room(self, state: _State, num_tokens: int, present: set[RequestId]) -> bool:
        """Get blocks, if need be from requests that are not running; they can catch up again."""
        if state.view.extend(num_tokens):
            return True
        for request_id, other in self._states.items():
            if request_id not in present:
                other.written.clear()
                other.view.release()
        return state.view.extend(num_tokens)

    def _catch_up(self, drafts: list[_Draft]) -> Logits:
        """Compute what is missing up to each anchor; give the logits behind the anchors."""
        missing = [d.sequence.tokens[d.state.view.kv_len :] for d in drafts]
        while any(len(tokens) > CATCH_UP_CHUNK for tokens in missing):
            ahead = [
                (draft, tokens[:CATCH_UP_CHUNK])
                for draft, tokens in zip(drafts, missing, strict=True)
                if len(tokens) > CATCH_UP_CHUNK
            ]
            self._score(ahead[:1])
            index = drafts.index(ahead[0][0])
            missing[index] = missing[index][CATCH_UP_CHUNK:]
        return self._score(list(zip(drafts, missing, strict=True)))

    def _score(self, parts: list[tuple[_Draft, list[int]]]) -> Logits:
        """Compute tokens behind what each draft has written; one row of logits per draft."""
        if not parts:
            return torch.empty(0, self._vocab_size)
        spans = [
            Span(
                tokens=tokens,
                kv_len=draft.state.view.kv_len + len(draft.state.written),
                block_table=draft.state.view.blocks,
                num_judged=1,
            )
            for draft, tokens in parts
        ]
        logits = self._model.score_spans(spans).logits
        for draft, tokens in parts:
            draft.state.written.extend(tokens)
        return fit_logits(logits, self._vocab_size)

    def _draw(self, draft: _Draft, logits: torch.Tensor, rule: VerifyRule) -> None:
        """Draw the next token as the verify rule wants it; end the draft where that makes sense."""
        sequence = draft.sequence
        if not bool(torch.isfinite(logits.max())):
            draft.is_open = False
            return
        history = (*sequence.output, *draft.tokens) if sequence.params.has_history_warps else ()
        masks = sequence.matcher and sequence.matcher.masks(sequence.output, draft.tokens)
        context = Context(sequence.prompt, history, self._stop_tokens, masks[-1] if masks else None)
        try:
            warped = warp(logits, sequence.params, context)
        except RequestFailed:  # The verifier meets the same mask and reports it.
            draft.is_open = False
            return
        if not bool(torch.isfinite(warped.max())):  # The grammar allows nothing more.
            draft.is_open = False
            return
        token, probs = draft_token(warped, sequence, len(draft.tokens), rule)
        draft.tokens.append(token)
        # Of the likeliest token and not of the drawn one: under rejection, what a length policy
        # reads must not tell what was drawn.
        draft.confidence.append(float(torch.softmax(logits, -1).max()))
        if probs is not None:
            draft.probs.append(probs)
        draft.is_open = len(draft.tokens) < draft.most and token not in self._stop_tokens


def build(setting: DrafterSetting) -> DraftModelDrafter:
    """Load the draft model named in the speculative config.

    Raises:
        ConfigError: No model is named.
        IncompatibleDraft: Its vocabulary is not the target's.
    """
    options = setting.options
    if options.model is None:
        raise ConfigError(
            "method 'draft-model' needs a model; add \"model\": a name, directory or GGUF file"
        )
    checkpoint = open_checkpoint(options.model)
    require_same_vocabulary(setting.checkpoint, checkpoint)
    return DraftModelDrafter(
        setting.load(checkpoint),
        BlockAllocator(setting.num_kv_blocks, setting.block_size),
        options.num_speculative_tokens or DEFAULT_DRAFT_LEN,
        target_vocab_size=setting.checkpoint.spec.vocab_size,
        stop_tokens=setting.checkpoint.spec.stop_token_ids,
    )
