"""A drafter with a cache of its own: what it says it drew from is what it drew from."""

from collections.abc import Sequence

import pytest
import torch

from outrider.core.request import SamplingParams
from outrider.core.sequence import Sequence as Tokens
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.kvcache.blocks import BlockAllocator
from outrider.sampling.warp import Context
from outrider.tensor.window import RowProposal, RowVerdict
from outrider.testing.scripted import TinyEngine, requests_of, run_all, tiny_engine
from outrider.testing.tiny import tiny_spec
from outrider.verify import verifier
from outrider.verify.matching import WarpedPositions
from outrider.verify.rejection import reject_rows
from tests.backends import BACKENDS, Tiny, backend_of
from tests.plain_warp import plainly

VOCAB = 10
SPEC = tiny_spec(vocab_size=VOCAB, max_context_len=64, stop_token_ids=frozenset())
TARGET, DRAFT = Tiny(SPEC, seed=1), Tiny(SPEC, seed=2)
# Blocks of the target and of the draft model that are too few for all requests at once.
TIGHT_BLOCKS = {"torch": (12, 14), "native": (5, 5)}
PROMPTS = [(2, 3, 4), (5,), (2, 3, 4, 5, 6, 7, 8, 9, 2), (7, 7), (3, 9, 3), (4, 4, 4, 4, 4)]
PARAMS = SamplingParams(max_tokens=14, temperature=1.2, frequency_penalty=0.6, top_k=7)


def softmax_of(row: Sequence[float]) -> torch.Tensor:
    return torch.softmax(torch.tensor(row, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("draft_room", ["roomy", "tight"])
@pytest.mark.parametrize("room", ["calm", "preempting"])
@pytest.mark.parametrize("name", BACKENDS)
def test_the_distributions_of_a_draft_are_its_own(
    name: str, room: str, draft_room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a draft cache that keeps rejected tokens, or a position that is off: a wrong q.

    Whatever q is, rejection is lossless only if the token was drawn from it; and it accepts much
    only if q is the draft model's real opinion. Each one is computed anew without any cache.
    """
    backend = backend_of(name)
    block = backend.block_size
    tight = TIGHT_BLOCKS[name]
    num_blocks = 64 if room == "calm" else tight[0]
    draft_blocks = 64 if draft_room == "roomy" else tight[1]
    target = backend.target(TARGET, num_blocks)
    drafter = DraftModelDrafter(
        backend.target(DRAFT, draft_blocks),
        BlockAllocator(draft_blocks, block),
        3,
        target_vocab_size=VOCAB,
    )
    opinion = backend.next_logits(DRAFT)
    num_checked = 0

    def checking(positions: WarpedPositions, draft: RowProposal, sequence: Tokens) -> RowVerdict:
        nonlocal num_checked
        for slot in range(len(draft.tokens)):
            past = (*sequence.output, *draft.tokens[:slot])
            logits = opinion((*sequence.prompt, *past)).tolist()
            own = softmax_of(plainly(logits, PARAMS, Context(sequence.prompt, past)))
            assert draft.probs is not None
            torch.testing.assert_close(draft.probs[slot], own, rtol=0, atol=backend.tolerance)
            # The confidence knows the past and not the token that was drawn.
            assert draft.confidence is not None
            likeliest = float(softmax_of(logits).max())
            assert draft.confidence[slot] == pytest.approx(likeliest, abs=backend.tolerance)
            num_checked += 1
        return reject_rows(positions, draft, sequence)

    monkeypatch.setattr(verifier, "reject_rows", checking)
    options = TinyEngine(rule="rejection", num_blocks=num_blocks, block_size=block)
    engine = tiny_engine(target, drafter, options)
    sequences = run_all(engine, requests_of(PROMPTS, PARAMS))
    assert all(each.num_output == PARAMS.max_tokens for each in sequences)
    assert num_checked == engine.acceptance.verified > 20
    assert engine.acceptance.accepted > 0
    assert (engine.num_preemptions > 0) == (room == "preempting")
