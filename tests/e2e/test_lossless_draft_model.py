"""A drafter with a cache of its own: what it says it drew from is what it drew from."""

from collections.abc import Sequence

import pytest
import torch

from outrider.core.request import SamplingParams
from outrider.core.sequence import Sequence as Tokens
from outrider.drafters.draft_model import DraftModelDrafter
from outrider.kvcache.blocks import BlockAllocator
from outrider.sampling.warp import Context
from outrider.target.torch_target import TorchTarget
from outrider.tensor.window import RowProposal, RowVerdict
from outrider.testing.scripted import TinyEngine, requests_of, run_all, tiny_engine
from outrider.testing.tiny import tiny_decoder, tiny_spec
from outrider.verify import verifier
from outrider.verify.matching import WarpedPositions
from outrider.verify.rejection import reject_rows
from tests import oracle
from tests.plain_warp import plainly

VOCAB, BLOCK = 10, 4
SPEC = tiny_spec(vocab_size=VOCAB, max_context_len=64, stop_token_ids=frozenset())
PROMPTS = [(2, 3, 4), (5,), (2, 3, 4, 5, 6, 7, 8, 9, 2), (7, 7), (3, 9, 3), (4, 4, 4, 4, 4)]
PARAMS = SamplingParams(max_tokens=14, temperature=1.2, frequency_penalty=0.6, top_k=7)


def softmax_of(row: Sequence[float]) -> torch.Tensor:
    return torch.softmax(torch.tensor(row, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("draft_blocks", [64, 14], ids=["roomy", "tight"])
@pytest.mark.parametrize("num_blocks", [64, 12], ids=["calm", "preempting"])
def test_the_distributions_of_a_draft_are_its_own(
    num_blocks: int, draft_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a draft cache that keeps rejected tokens, or a position that is off: a wrong q.

    Whatever q is, rejection is lossless only if the token was drawn from it; and it accepts much
    only if q is the draft model's real opinion. Each one is computed anew without any cache.
    """
    target = TorchTarget(tiny_decoder(SPEC, seed=1), num_blocks=num_blocks, block_size=BLOCK)
    draft_decoder = tiny_decoder(SPEC, seed=2)
    model = TorchTarget(draft_decoder, num_blocks=draft_blocks, block_size=BLOCK)
    drafter = DraftModelDrafter(
        model, BlockAllocator(draft_blocks, BLOCK), 3, target_vocab_size=VOCAB
    )
    opinion = oracle.of_decoder(draft_decoder)
    num_checked = 0

    def checking(positions: WarpedPositions, draft: RowProposal, sequence: Tokens) -> RowVerdict:
        nonlocal num_checked
        for slot in range(len(draft.tokens)):
            past = (*sequence.output, *draft.tokens[:slot])
            logits = opinion((*sequence.prompt, *past)).tolist()
            own = softmax_of(plainly(logits, PARAMS, Context(sequence.prompt, past)))
            assert draft.probs is not None
            torch.testing.assert_close(draft.probs[slot], own, rtol=0, atol=1e-9)
            # The confidence knows the past and not the token that was drawn.
            assert draft.confidence is not None
            assert draft.confidence[slot] == pytest.approx(float(softmax_of(logits).max()))
            num_checked += 1
        return reject_rows(positions, draft, sequence)

    monkeypatch.setattr(verifier, "reject_rows", checking)
    options = TinyEngine(rule="rejection", num_blocks=num_blocks, block_size=BLOCK)
    engine = tiny_engine(target, drafter, options)
    sequences = run_all(engine, requests_of(PROMPTS, PARAMS))
    assert all(each.num_output == PARAMS.max_tokens for each in sequences)
    assert num_checked == engine.acceptance.verified > 20
    assert engine.acceptance.accepted > 0
    assert (engine.num_preemptions > 0) == (num_blocks == 12)
