"""Block drafters: what one says it drew from is its own opinion, whatever its context saw."""

from collections.abc import Sequence

import pytest
import torch

from outrider.core.request import SamplingParams
from outrider.core.sequence import Sequence as Tokens
from outrider.drafters.block.config import BlockConfig
from outrider.drafters.block.drafter import BlockDrafter
from outrider.drafters.block.network import BlockNetwork, Segment
from outrider.drafters.block.torch_runner import TorchBlockRunner
from outrider.models.attention import FullCausal
from outrider.models.decoder import Decoder
from outrider.sampling.warp import Context
from outrider.target.torch_target import TorchTarget
from outrider.tensor.window import RowProposal, RowVerdict
from outrider.testing.scripted import TinyEngine, requests_of, run_all, tiny_engine
from outrider.testing.tiny import tiny_decoder, tiny_spec
from outrider.testing.tiny_block import tiny_block, tiny_block_config
from outrider.verify import verifier
from outrider.verify.matching import WarpedPositions
from outrider.verify.rejection import reject_rows
from tests.plain_warp import plainly
from tests.unchecked import unchecked

VOCAB, BLOCK = 10, 4
SPEC = tiny_spec(vocab_size=VOCAB, max_context_len=64, stop_token_ids=frozenset())
PROMPTS = [(2, 3, 4), (5,), (2, 3, 4, 5, 6, 7, 8, 9, 2), (7, 7), (3, 9, 3), (4, 4, 4, 4, 4)]
PARAMS = SamplingParams(max_tokens=14, temperature=1.2, frequency_penalty=0.6, top_k=7)
CONFIGS = {
    "anchor-first": tiny_block_config(SPEC),
    "anchor-drop": tiny_block_config(SPEC, layout="anchor-drop", markov_type="rnn"),
}


@torch.inference_mode()
def opinion(
    network: BlockNetwork, target: Decoder, tokens: Sequence[int], drafted: Sequence[int]
) -> list[list[float]]:
    """Logits of every slot that drew a token of `drafted`, from one forward without any cache."""
    config = network.config
    place = len(tokens) - 1
    features = torch.empty(0, config.hidden_size * len(config.target_layer_ids)).double()
    if place:
        _, tapped = target(
            torch.tensor(tokens[:-1]),
            torch.arange(place),
            FullCausal([place]),
            config.target_layer_ids,
        )
        assert tapped is not None
        features = tapped
    context = network.context_keys_values(network.fuse(features), torch.arange(place))
    block = torch.full((1, config.block_size), config.mask_token_id)
    block[0, 0] = tokens[-1]
    hidden = network(
        target.embedding(block),
        place + torch.arange(config.block_size)[None],
        context,
        [Segment(0, place, 0, 1)],
    )[0, config.slots_dropped :]
    logits = target.logits(hidden)[: len(drafted)]
    assert network.markov_head is not None
    before = torch.tensor([[tokens[-1], *drafted[:-1]]])
    latent = network.markov_head.features(hidden[None, : len(drafted)], before)[0]
    biased: list[list[float]] = (logits + latent @ network.markov_head.markov_w2.weight.T).tolist()
    return biased


@pytest.mark.parametrize("num_blocks", [64, 12], ids=["calm", "preempting"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@unchecked()
def test_the_distributions_of_a_draft_are_its_own(
    config: BlockConfig, num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches context of a rejected token, of another request or position: a wrong q.

    Whatever q is, rejection is lossless only if the token was drawn from it; and it accepts much
    only if q is the drafter's real opinion. Each one is computed anew from the whole text.
    """
    decoder = tiny_decoder(SPEC, seed=1)
    checkpoint = tiny_block(config, seed=4)
    target = TorchTarget(decoder, num_blocks=num_blocks, block_size=BLOCK)
    runner = TorchBlockRunner(checkpoint, decoder, num_blocks=num_blocks, block_size=BLOCK)
    drafter = BlockDrafter(runner, config, num_blocks=num_blocks, block_size=BLOCK)
    num_checked = 0

    def checking(positions: WarpedPositions, draft: RowProposal, sequence: Tokens) -> RowVerdict:
        nonlocal num_checked
        drafted = draft.tokens
        rows = opinion(checkpoint.network, decoder, sequence.tokens, drafted) if drafted else []
        for slot, logits in enumerate(rows):
            past = (*sequence.output, *draft.tokens[:slot])
            warped = plainly(logits, PARAMS, Context(sequence.prompt, past))
            own = torch.softmax(torch.tensor(warped, dtype=torch.float64), dim=-1)
            assert draft.probs is not None
            torch.testing.assert_close(draft.probs[slot], own, rtol=0, atol=1e-9)
            num_checked += 1
        return reject_rows(positions, draft, sequence)

    monkeypatch.setattr(verifier, "reject_rows", checking)
    options = TinyEngine(rule="rejection", num_blocks=num_blocks, block_size=BLOCK)
    engine = tiny_engine(target, drafter, options)
    # Twice: the second turn finds the first turn's blocks.
    for turn in range(2):
        requests = requests_of([(*prompt, turn + 2) for prompt in PROMPTS], PARAMS)
        sequences = run_all(engine, requests)
        assert all(each.num_output == PARAMS.max_tokens for each in sequences)
    assert num_checked == engine.acceptance.verified > 20
    assert engine.acceptance.accepted > 0
    assert (engine.num_preemptions > 0) == (num_blocks == 12)
