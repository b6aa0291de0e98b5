"""Does a sampled text have the target's law? A test for engines that promise no equal tokens.

Every token of a sampled output is turned into the place it has in the target's own distribution
given the tokens before it: with the tokens sorted by falling probability, u = F(before x) + v·p(x)
with v uniform. If x was drawn from p, u is uniform on [0, 1) and independent of all earlier ones
(Rosenblatt 1952), whatever the model, the prompt and the size of the vocabulary, so that all tokens
of all prompts make one sample of uniform numbers. A drafter that gets too much of its own way makes
likely tokens too frequent, or too rare, and bends it.

The distributions are those of one forward over the whole output that shares nothing with the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from outrider.analysis.closed_loop import Completed, Job, run_jobs
from outrider.analysis.goodness_of_fit import UniformTest
from outrider.core.acceptance import Acceptance
from outrider.engine.llm import LLM
from outrider.sampling.noise import mix
from outrider.sampling.warp import Context, probabilities, warp

_SEED_STRIDE = 1_000_003


@dataclass(slots=True)
class RejectionFit:
    """The outcome for one engine. `impossible` are tokens that the target never says."""

    test: UniformTest
    impossible: int = 0
    acceptance: Acceptance = field(default_factory=Acceptance)

    @property
    def passed(self) -> bool:
        """Whether the law may be the target's."""
        return not self.impossible and self.test.passed

    def record(self) -> dict[str, Any]:
        """Give it for JSON."""
        return {
            **self.test.record(),
            "impossible_tokens": self.impossible,
            "drafted": self.acceptance.verified,
            "accepted": self.acceptance.accepted,
            "passed": self.passed,
        }


def fit(llm: LLM, judge: LLM, jobs: Sequence[Job], num_tokens: int, seats: int) -> RejectionFit:
    """Sample on `llm` until there are `num_tokens` tokens, and place them by the law of `judge`.

    The jobs run over and over, each time with other seeds.

    Raises:
        RequestError: A prompt cannot be served or failed.
    """
    numbers: list[float] = []
    result = RejectionFit(UniformTest.of([]))
    turn = 0
    while len(numbers) < num_tokens:
        again = [_reseeded(job, turn) for job in jobs]
        before = len(numbers)
        for output in run_jobs(llm, again, concurrency=seats):
            result.acceptance.add(output.acceptance)
            found = places(judge, output)
            result.impossible += sum(place is None for place in found)
            numbers += [place for place in found if place is not None]
        turn += 1
        if len(numbers) == before:
            break
    result.test = UniformTest.of(numbers)
    return result


def places(judge: LLM, output: Completed) -> list[float | None]:
    """Place of every token after the first in its distribution; None where it has none."""
    tokens, params = output.tokens, output.job.params
    logits = judge.score_tokens(output.job.prompt, tokens)
    stops = params.stop_token_ids
    if not params.ignore_eos:
        stops = stops | judge.spec.stop_token_ids
    generator = torch.Generator().manual_seed(mix(output.sequence.request.seed) >> 1)
    found: list[float | None] = []
    # The first token comes with the prompt and is never drafted.
    for index in range(1, len(tokens)):
        context = Context(output.job.prompt, tokens[:index], stops)
        law = probabilities(warp(logits[index], params, context), params)
        own = law[tokens[index]]
        if float(own) == 0:
            found.append(None)
            continue
        twins = torch.nonzero(law == own).flatten()
        ahead = law[law > own].sum() + own * int((twins < tokens[index]).sum())
        shift = float(torch.rand((), generator=generator, dtype=torch.float64))
        found.append(float(ahead + shift * own))
    return found


def _reseeded(job: Job, turn: int) -> Job:
    seed = (job.params.seed or 0) + turn * _SEED_STRIDE
    return replace(job, params=replace(job.params, seed=seed))
