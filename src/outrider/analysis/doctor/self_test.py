"""A short run: what is accepted, position by position, against what the record promises."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from outrider.analysis.closed_loop import Completed, Job, jobs_of, run_jobs
from outrider.analysis.divergence import find_divergence
from outrider.analysis.doctor.alternatives import Alternative, drastic, mild
from outrider.analysis.doctor.files import Expectation
from outrider.analysis.doctor.findings import Finding
from outrider.analysis.doctor.probe import (
    Anchor,
    Answers,
    Probe,
    answers,
    paired_gain,
    upper_bound,
)
from outrider.analysis.prompts import PromptRow
from outrider.core.ids import RequestId
from outrider.core.request import SamplingParams
from outrider.drafters.block.checkpoint import BlockCheckpoint
from outrider.drafters.block.drafter import BlockDrafter
from outrider.engine.llm import LLM

Overlaps = Mapping[tuple[RequestId, int], float]
AS_IS: Final = "as it is"
DEVIATIONS: Final = 3.0
"""Standard errors by which a rate must miss before it counts as low; 1 in 700 for one rate."""
BETTER_BY: Final = 3.0
"""Standard errors by which an alternative must win on the same positions; 1 in 700 if it is equal,
but a neighbouring layer is worse for a drafter that was trained on this one."""
SHARE_BETTER: Final = 0.02
"""An alternative must also be accepted this share more often than the drafter as it is."""
LOW: Final = 0.5
"""Share of what the record says below which acceptance is low."""
SUSPICIOUS: Final = 0.9
"""Share of the recorded first rate below which every other reading is tried."""
NOTHING: Final = 0.05
"""A first token that is right less often than this is right by chance."""
FEWEST_POSITIONS: Final = 40
FEWEST_TRIES: Final = 25
CONFIDENCE_GAP: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestSetting:
    """What is run, greedily."""

    rows: Sequence[PromptRow]
    max_tokens: int = 40
    raw: bool = False


@dataclass(slots=True)
class SelfTest:
    """The outcome for one part: a block drafter, a table, a draft model, or all together."""

    part: str
    base: Answers
    expected: Expectation | None
    findings: list[Finding] = field(default_factory=list)
    overlaps: dict[str, Overlaps] = field(default_factory=dict)
    """By reading of the drafter: chance that a sampled first token is accepted, per position."""

    def record(self) -> dict[str, Any]:
        """Give the numbers for JSON."""
        return {
            "part": self.part,
            "positions": len(self.base.anchors),
            "mean_accept_length": self.base.mean_accept_length,
            "conditional_accept_rates": self.base.conditional_accept_rates,
            "first_rate": self.base.first_rate,
            "expected": None if self.expected is None else self.expected.record(),
            "overlaps": {name: mean_of(each) for name, each in self.overlaps.items()},
        }


def block_drafter(llm: LLM, checkpoint: BlockCheckpoint, num_tokens: int) -> BlockDrafter:
    """Put a block drafter beside the weights of `llm`, whose KV cache holds `num_tokens`."""
    size = llm.config.block_size
    return BlockDrafter(
        llm.new_block_runner(checkpoint, num_tokens),
        checkpoint.config,
        num_blocks=-(-num_tokens // size),
        block_size=size,
    )


def examine_block(
    llm: LLM,
    checkpoint: BlockCheckpoint,
    expected: Expectation | None,
    setting: SelfTestSetting,
    num_tokens: int,
) -> tuple[SelfTest, list[Completed]]:
    """Compare a block drafter with its record and with the same drafter read in other ways."""

    def ask(tried: Sequence[Alternative]) -> tuple[Probe, list[Completed]]:
        drafters = {each.name: block_drafter(llm, each.checkpoint, num_tokens) for each in tried}
        probe = Probe(drafters, tried[0].name, llm.spec.hidden_size)
        engine = llm.sibling(drafter=probe, length_policy="fixed")
        return probe, run_jobs(engine, _jobs(llm, setting), concurrency=_seats(llm, setting))

    tried = [Alternative(AS_IS, "", "", checkpoint), *mild(checkpoint, llm.spec)]
    probe, outputs = ask(tried)
    result = SelfTest("network", answers(probe.guesses, outputs), expected)
    result.overlaps |= probe.overlaps
    level = judged(result.base, expected)
    if is_suspicious(result.base, expected):
        more = list(drastic(checkpoint, llm.spec))
        if more:
            result.overlaps |= ask(more)[0].overlaps
        tried += more
    explained = best_alternative(result, tried[1:], least_restored(level, expected))
    result.findings += [explained] if explained is not None else level
    result.findings += confidence_findings(result.base)
    return result, outputs


def is_suspicious(base: Answers, expected: Expectation | None) -> bool:
    """Whether the first token is right less often than recorded, or nothing says how often."""
    rate = expected.conditional_accept_rates[0] if expected is not None else None
    return rate is None or base.first_rate < SUSPICIOUS * rate


def least_restored(level: Sequence[Finding], expected: Expectation | None) -> float:
    """What a reading must reach to explain the findings on acceptance, if there are any.

    One of several bad readings is always the best; it explains nothing unless it is good.
    """
    if not any(each.severity == "error" for each in level):
        return 0.0
    rate = expected.conditional_accept_rates[0] if expected is not None else None
    return 2 * NOTHING if rate is None else LOW * rate


def best_alternative(
    result: SelfTest, tried: Sequence[Alternative], least: float
) -> Finding | None:
    """Give the reading that is clearly better than the drafter as it is, and at least so good."""
    as_is = result.overlaps[AS_IS]
    if len(as_is) < FEWEST_POSITIONS:
        return None
    best, most = None, SHARE_BETTER * mean_of(as_is)
    for each in tried:
        found = result.overlaps[each.name]
        mean, errors = paired_gain(as_is, found)
        if errors >= BETTER_BY and mean > most and mean_of(found) >= least:
            best, most = each, mean
    if best is None:
        return None
    return Finding(
        best.finding,
        f"with {best.change} a sampled first draft token is accepted with a chance of "
        f"{mean_of(result.overlaps[best.name]):.3f} instead of {mean_of(as_is):.3f}, over the same "
        f"{len(as_is)} positions",
        result.part,
    )


def mean_of(overlaps: Overlaps) -> float:
    """Mean over all positions; 0 where there is none."""
    return sum(overlaps.values()) / max(len(overlaps), 1)


def judged(base: Answers, expected: Expectation | None, part: str = "network") -> list[Finding]:
    """Hold acceptance against the record, or against nothing where there is none."""
    positions = len(base.anchors)
    if positions < FEWEST_POSITIONS:
        return [Finding("self-test-short", f"{positions} positions were compared", part)]
    rates = base.conditional_accept_rates
    if upper_bound(base.right_at[0], base.tried_at[0], DEVIATIONS) < NOTHING:
        detail = f"the first draft token is right at {rates[0]:.1%} of {positions} positions"
        return [Finding("drafts-nothing", detail, part)]
    if expected is None:
        return []
    promised = expected.conditional_accept_rates
    for position, (right, tried) in enumerate(zip(base.right_at, base.tried_at, strict=True)):
        wanted = promised[position] if position < len(promised) else None
        if wanted is None or tried < FEWEST_TRIES:
            continue
        if upper_bound(right, tried, DEVIATIONS) < LOW * wanted:
            return [
                Finding(
                    "position-collapse" if position else "acceptance-low",
                    f"draft position {position + 1} is right {right / tried:.0%} of {tried} times, "
                    f"{expected.source} says {wanted:.0%}",
                    part,
                )
            ]
    return []


def confidence_findings(base: Answers) -> list[Finding]:
    """Compare the confidence of the first draft token with how often it is right."""
    known = [each for each in base.anchors.values() if each.confidence is not None]
    if len(known) < FEWEST_POSITIONS:
        return []
    said = sum(each.confidence or 0.0 for each in known) / len(known)
    right = sum(each.right > 0 for each in known) / len(known)
    if abs(said - right) < CONFIDENCE_GAP:
        return []
    detail = f"the first draft token is right {right:.0%} of the times, expected were {said:.0%}"
    return [Finding("confidence-off", detail, "confidence head")]


def run_speculative(
    llm: LLM, drafting: LLM, plain: Sequence[Completed], setting: SelfTestSetting
) -> tuple[list[Finding], Answers]:
    """Run the prompts speculatively; give differences from `plain`, and what was accepted."""
    outputs = run_jobs(drafting, _jobs(llm, setting), concurrency=_seats(llm, setting))
    findings, found = [], Answers()
    for number, (ours, theirs) in enumerate(zip(plain, outputs, strict=True)):
        divergence = find_divergence(llm, ours, theirs)
        if divergence is not None and divergence.kind == "error":
            findings.append(Finding("output-differs", divergence.describe(), "engine"))
        for one in theirs.rounds:
            found.rounds += one.num_output > 0
            found.accepted += one.accepted if one.num_output else 0
            if one.verified and one.num_output:
                confidence = one.confidence[0] if one.confidence else None
                found.add((number, one.num_output), Anchor(one.verified, one.accepted, confidence))
    return findings, found


def run_plain(llm: LLM, setting: SelfTestSetting) -> list[Completed]:
    """Run the prompts without any drafts."""
    return run_jobs(llm, _jobs(llm, setting), concurrency=_seats(llm, setting))


def _jobs(llm: LLM, setting: SelfTestSetting) -> list[Job]:
    params = SamplingParams(temperature=0, max_tokens=setting.max_tokens)
    return jobs_of(llm, setting.rows, params, raw=setting.raw)


def _seats(llm: LLM, setting: SelfTestSetting) -> int:
    return min(llm.config.max_num_seqs, len(setting.rows))
