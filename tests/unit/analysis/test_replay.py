"""Replaying a text counts what the engine counted while it was written."""

from collections.abc import Callable

import pytest
import torch

from outrider.analysis.replay import replay, replay_all
from outrider.core.outcome import Outcome
from outrider.core.request import SamplingParams
from outrider.core.sequence import Sequence
from outrider.drafters.base import Drafter
from outrider.drafters.ngram import NgramDrafter
from outrider.drafters.suffix import SuffixDrafter
from outrider.errors import ConfigError
from outrider.schedule.lengths import Fixed
from outrider.target.torch_target import TorchTarget
from outrider.tensor.window import RowProposal, Scores, Taps
from outrider.testing.scripted import (
    RowDrafter,
    TinyEngine,
    random_drafter,
    requests_of,
    run_all,
    tiny_engine,
)
from outrider.testing.table_target import SeededTable, TableTarget
from outrider.testing.tiny import tiny_decoder, tiny_spec

VOCAB = 6
TABLE = SeededTable(VOCAB, seed=3, recent=2, sharpness=3.0)
PROMPTS = [(1, 2, 3), (4,), (2, 2, 5, 1)]

DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": lambda: NgramDrafter(4, min_len=1, max_len=3),
    "suffix": lambda: SuffixDrafter(5, min_survival=0.1, shared=None),
    "random": lambda: random_drafter(3, VOCAB, seed=1),
}


def written(drafter: Drafter, temperature: float, lengths: Fixed | None = None) -> list[Sequence]:
    target = TableTarget(TABLE, VOCAB, num_blocks=64, block_size=4)
    engine = tiny_engine(target, drafter, TinyEngine(lengths=lengths or Fixed(99)))
    params = SamplingParams(max_tokens=40, temperature=temperature, ignore_eos=True)
    return run_all(engine, requests_of(PROMPTS, params))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_replay_counts_what_the_engine_counted(name: str, temperature: float) -> None:
    """Catches a round too many, a last draft too long, or a first token without a round."""
    sequences = written(DRAFTERS[name](), temperature)
    assert sum(each.acceptance.accepted for each in sequences) > 5
    drafter = DRAFTERS[name]()
    for each in sequences:
        assert replay(drafter, each.prompt, list(each.output)) == each.acceptance
    texts = [(each.prompt, list(each.output)) for each in sequences]
    whole = replay_all(DRAFTERS[name](), texts)
    assert whole.rounds == sum(each.acceptance.rounds for each in sequences)


def test_verify_lengths_are_obeyed() -> None:
    """Catches a length that is ignored, or that changes what was drafted."""
    (first, *_) = written(NgramDrafter(4, min_len=1, max_len=3), 0.0, Fixed(2))
    counts = replay(
        NgramDrafter(4, min_len=1, max_len=3),
        first.prompt,
        list(first.output),
        lengths=lambda proposal: min(2, len(proposal.tokens)),
    )
    assert counts == first.acceptance
    assert counts.drafted > counts.verified


def test_a_drafter_that_needs_features_is_refused() -> None:
    """Catches a network that is replayed on features of zero."""
    drafter = RowDrafter(3, lambda row, rule: pytest.fail("asked"))
    drafter.taps = (1,)
    with pytest.raises(ConfigError, match="needs features of layers"):
        replay(drafter, [1], [2, 3])


def test_features_arrive_as_in_the_engine() -> None:
    """Catches rows of rejected drafts that are kept, or a prompt whose features are never shown."""
    spec = tiny_spec(vocab_size=VOCAB, max_context_len=128)

    class Witness(RowDrafter):
        """Copies, badly, and notes what it was shown of each position."""

        taps: Taps = (0,)

        def __init__(self) -> None:
            super().__init__(3, lambda row, rule: RowProposal(tuple(row.sequence.tokens[:3])))
            self.seen: list[tuple[int, list[float]]] = []

        def observe(self, outcome: Outcome, scores: Scores) -> None:
            (row,) = outcome.rows
            assert scores.features is not None
            first = scores.first_token[0]
            for place in range(row.num_cached):
                shown = scores.features[first + place].tolist()
                self.seen.append((row.kv_len + place, shown))

    live, again = Witness(), Witness()
    target = TorchTarget(tiny_decoder(spec, seed=2), num_blocks=32, block_size=4)
    params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    engine = tiny_engine(target, live, TinyEngine(num_blocks=32, block_size=4))
    (sequence,) = run_all(engine, requests_of([(3, 4, 5, 3)], params))
    assert [place for place, _ in live.seen] == list(range(len(sequence) - 1))
    features = torch.tensor([shown for _, shown in live.seen], dtype=torch.float64)
    counts = replay(again, sequence.prompt, list(sequence.output), features=features)
    assert counts == sequence.acceptance
    assert again.seen == live.seen
