"""The sequential part of a block: slot by slot, each conditioned on the token drawn before it.

Only the likeliest tokens of a slot by the block's own logits are looked at. The Markov bias is
added to those alone, and the distribution over them is the drafter's: what is drawn from it is
handed over with exactly it.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outrider.drafters.block.network import BlockNetwork
from outrider.drafters.block.runner import NUM_CANDIDATES, BlockRow
from outrider.errors import RequestFailed
from outrider.sampling.draw import draft_token
from outrider.sampling.warp import Context, warp
from outrider.tensor.shapes import LogitRow, Probs
from outrider.tensor.window import RowProposal


class SlotLoop:
    """Draws the tokens of one block after another."""

    def __init__(
        self,
        network: BlockNetwork,
        vocabulary: Int[Tensor, " draft_vocab"],
        stop_tokens: frozenset[int],
    ) -> None:
        """Use the heads of `network`; `vocabulary` names the target's token of each logit."""
        self._markov, self._confidence = network.markov_head, network.confidence_head
        self._vocabulary = vocabulary
        self._vocab_size = network.config.vocab_size
        self._stop_tokens = stop_tokens

    def draft(
        self,
        row: BlockRow,
        hidden: Float[Tensor, "slots hidden"],
        logits: Float[Tensor, "slots draft_vocab"],
    ) -> RowProposal:
        """Draw up to `row.num_drafts` tokens; fewer after a stop token or where none is left."""
        tokens: list[int] = []
        probs: list[Probs] = []
        confidence: list[float] = []
        markov = self._markov
        state = None if markov is None else markov.initial_state(hidden[:1])
        before = row.sequence.tokens[-1]
        for slot in range(row.num_drafts):
            own, previous = hidden[slot : slot + 1], torch.tensor([before], device=hidden.device)
            places = largest(logits[slot], NUM_CANDIDATES)
            values = logits[slot, places]
            if markov is not None and state is not None:
                latent, state = markov.step(own, previous, state)
                values = values + markov.markov_w2.weight[places].to(latent.dtype) @ latent[0]
            taken = self._take(row, places, values, tokens)
            if taken is None:
                break
            if self._confidence is not None:
                rows = None if markov is None else markov.rows_of(previous)
                confidence.append(float(torch.sigmoid(self._confidence(own, rows))))
            before = taken[0]
            tokens.append(before)
            if taken[1] is not None:
                probs.append(taken[1])
            if before in self._stop_tokens and not row.sequence.params.ignore_eos:
                break
        return RowProposal(
            tuple(tokens),
            torch.stack(probs) if probs else None,
            None if self._confidence is None else tuple(confidence),
        )

    def _take(
        self,
        row: BlockRow,
        places: Int[Tensor, " candidates"],
        values: Float[Tensor, " candidates"],
        drafted: list[int],
    ) -> tuple[int, Probs | None] | None:
        """Warp the candidates as the request wants it and draw; None where nothing can come."""
        sequence = row.sequence
        params = sequence.params
        logits: LogitRow = values.new_full((self._vocab_size,), -torch.inf)
        logits[self._vocabulary[places]] = values
        output = (*sequence.output, *drafted) if params.has_history_warps else ()
        stops = params.stop_token_ids | (frozenset() if params.ignore_eos else self._stop_tokens)
        try:
            masks = sequence.matcher and sequence.matcher.masks(sequence.output, drafted)
            context = Context(sequence.prompt, output, stops, masks[-1] if masks else None)
            warped = warp(logits, params, context)
        except RequestFailed:  # The verifier meets the same mask and reports it.
            return None
        if not bool(torch.isfinite(warped.max())):
            return None
        return draft_token(warped, sequence, len(drafted), row.rule)


def largest(row: Float[Tensor, " draft_vocab"], number: int) -> Int[Tensor, " candidates"]:
    """Places of the largest numbers, ascending; of equal ones the first; never of a NaN."""
    number = min(number, row.numel())
    border = torch.topk(row.nan_to_num(nan=-torch.inf), number).values[-1]
    above = torch.nonzero(row > border).squeeze(1)
    equal = torch.nonzero(row == border).squeeze(1)
    return torch.cat((above, equal[: number - len(above)])).sort().values
