"""The record of every round."""

from pathlib import Path

import pytest

from outrider.analysis.closed_loop import Job, run_jobs
from outrider.core.acceptance import Acceptance
from outrider.core.request import SamplingParams
from outrider.engine.llm import LLM
from outrider.tensor.window import RowProposal
from outrider.testing.tiny import tiny_spec, write_tiny_checkpoint
from tests.unchecked import unchecked


@pytest.mark.parametrize("concurrency", [1, 3])
@unchecked()
def test_rounds_add_up_to_the_counters(tmp_path: Path, concurrency: int) -> None:
    """Catches a round that is lost, counted for another request, or placed at a wrong position."""
    model = write_tiny_checkpoint(tmp_path / "model", tiny_spec(), seed=5)
    llm = LLM(str(model), dtype="float64", speculative_config={"method": "suffix"})
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    jobs = [Job(f"p{i}", "d", (2 + i, 9, 2 + i, 9, 2 + i), params) for i in range(4)]
    for one in run_jobs(llm, jobs, concurrency=concurrency):
        again, position = Acceptance(), 0
        for each in one.rounds:
            assert each.request_id == one.sequence.id
            assert each.num_output == position
            assert len(each.confidence or ()) == each.verified
            assert (each.reading is None) == (each.drafted == 0)
            assert each.reading is None or len(each.reading.kinds) == each.verified
            position += each.delivered
            again.record(
                drafted=each.drafted,
                verified=each.verified,
                accepted=each.accepted,
                delivered=each.delivered,
                sources=each.sources,
            )
        assert again == one.acceptance
        assert again.verified > 0
        assert position == 30


def test_a_shortened_proposal_keeps_its_sources_aligned() -> None:
    """Catches sources that outlive the tokens they belong to."""
    proposal = RowProposal((4, 5, 6), confidence=(0.9, 0.8, 0.7), sources=("a", "a", "b"))
    assert proposal.first(2) == RowProposal((4, 5), confidence=(0.9, 0.8), sources=("a", "a"))
    assert proposal.first(9) is proposal
