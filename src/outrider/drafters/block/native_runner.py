"""A block drafter on the native runner: one call from features to tokens and confidences."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.drafters.block.checkpoint import BlockCheckpoint
from outrider.drafters.block.native_weights import DEFAULT_KIND, native_layers, native_parts
from outrider.drafters.block.runner import BlockRow, NewContext
from outrider.models.layers import inverse_frequencies
from outrider.models.spec import RopeSpec
from outrider.native.block import BlockDraft, ContextSpan, DraftCall, DraftRule, NativeBlocks
from outrider.native.runner import KvType, Machine, RunnerSetting, Weights
from outrider.native.sampling import warp_rule
from outrider.sampling.noise import Purpose, uniform
from outrider.sampling.warp import Context
from outrider.tensor.window import NO_PROPOSAL, RowProposal

MOST_ROWS = 64
"""Requests of one call; each has blocks of its own for slots beyond its table."""

_SEED_BITS = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class NativeHost:
    """What a block drafter shares with its target on the native runner."""

    machine: Machine
    weights: Weights
    stop_tokens: frozenset[int]


class NativeBlockRunner:
    """The network in the kernels' layout, with a paged pool of context keys and values.

    Its numbers differ from the torch runner's by the rounding of weights and activations, so on
    close calls it draws other drafts; that costs acceptance, never a wrong token.
    """

    def __init__(
        self,
        checkpoint: BlockCheckpoint,
        host: NativeHost,
        *,
        num_blocks: int,
        block_size: int,
        kind: str = DEFAULT_KIND,
        kv_type: KvType = "int16",
    ) -> None:
        """Quantise the weights to `kind` and reserve the pool.

        Raises:
            ValueError: the drafter does not fit the target, or `block_size` is no multiple of 16.
        """
        config = checkpoint.config
        self._config = config
        self._host = host
        self._num_blocks, self._block_size = num_blocks, block_size
        self._spare = -(-config.block_size // block_size)
        rope = RopeSpec(theta=config.rope_theta, max_position=config.max_context_len)
        setting = RunnerSetting(
            frequencies=inverse_frequencies(rope, config.head_dim).tolist(),
            attention_factor=1.0,
            num_blocks=num_blocks + MOST_ROWS * self._spare,
            block_size=block_size,
            kv_type=kv_type,
        )
        self._blocks = NativeBlocks(
            host.machine,
            native_layers(checkpoint.network, host.weights, kind),
            native_parts(checkpoint, host.weights, kind),
            setting,
        )

    def draft(self, new: Sequence[NewContext], rows: Sequence[BlockRow]) -> list[RowProposal]:
        """See `BlockRunner`."""
        spans = [ContextSpan(each.kv_len, len(each.features), each.block_table) for each in new]
        features = torch.cat([each.features for each in new]) if new else None
        proposals: list[RowProposal] = []
        for first in range(0, max(len(rows), 1), MOST_ROWS):
            part = rows[first : first + MOST_ROWS]
            calls = [self._call(index, row) for index, row in enumerate(part)]
            drafts = self._blocks.draft(spans, features, [call for call in calls if call])
            spans, features = [], None
            found = iter(drafts)
            proposals += [
                self._proposal(row, next(found)) if call else NO_PROPOSAL
                for row, call in zip(part, calls, strict=True)
            ]
        return proposals

    def _call(self, index: int, row: BlockRow) -> DraftCall | None:
        """What to draft; None where the request's own token mask fails, which is the verifier's."""
        needed = -(-(row.kv_len + self._config.block_size) // self._block_size)
        first = self._num_blocks + index * self._spare
        table = [*row.block_table[:needed], *range(first, first + self._spare)][:needed]
        rule = self._rule(row)
        if rule is None:
            return None
        # Later slots would need the mask of tokens that are not drawn yet.
        num_drafts = 1 if row.sequence.params.token_mask is not None else row.num_drafts
        return DraftCall(row.sequence.tokens[-1], row.kv_len, table, num_drafts, rule)

    def _rule(self, row: BlockRow) -> DraftRule | None:
        sequence, params = row.sequence, row.sequence.params
        stops = self._host.stop_tokens if not params.ignore_eos else frozenset[int]()
        output = tuple(sequence.output) if params.has_history_warps else ()
        rule = DraftRule()
        try:
            rule.warp = warp_rule(
                params, Context(sequence.prompt, output, params.stop_token_ids | stops)
            )
        except Exception:  # noqa: BLE001 - whatever a user's mask raises; the verifier reports it.
            return None
        allowed = rule.warp.allowed if params.token_mask is not None else None
        if any(not 0 <= token < self._config.vocab_size for token in allowed or ()):
            return None
        rule.presence_penalty = params.presence_penalty
        rule.frequency_penalty = params.frequency_penalty
        rule.num_held = max(0, params.min_tokens - sequence.num_output)
        rule.seed, rule.position = sequence.request.seed & _SEED_BITS, sequence.num_output
        if row.rule == "rejection" and not params.is_greedy:
            rule.uniforms = [
                uniform(sequence.request.seed, Purpose.DRAFT, sequence.num_rounds, slot)
                for slot in range(row.num_drafts)
            ]
        return rule

    def _proposal(self, row: BlockRow, draft: BlockDraft) -> RowProposal:
        """End the draft at a stop token; spread what was drawn from over the vocabulary."""
        tokens = draft.tokens
        if not row.sequence.params.ignore_eos:
            stop = next((i for i, t in enumerate(tokens) if t in self._host.stop_tokens), None)
            tokens = tokens if stop is None else tokens[: stop + 1]
        length = len(tokens)
        confidence = tuple(draft.confidence[:length]) if self._config.has_confidence_head else None
        return RowProposal(tuple(tokens), self._dense(draft, length), confidence)

    def _dense(self, draft: BlockDraft, length: int) -> Tensor | None:
        if not draft.probs or not length:
            return None
        probs = torch.zeros(length, self._config.vocab_size, dtype=torch.float64)
        for slot, (ids, own) in enumerate(zip(draft.ids[:length], draft.probs, strict=False)):
            probs[slot, torch.tensor(ids)] = torch.tensor(own, dtype=torch.float64)
        return probs
