"""Choices against brute force over the same numbers, targets, uncertainty, and the options."""

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from outrider.analysis.recommend import (
    FIXED,
    NO_DRAFTS,
    THROUGHPUT,
    Candidate,
    Expected,
    Recommendation,
    Targets,
    TracedEvidence,
    recommend,
)
from outrider.analysis.recommend_counts import counted
from outrider.analysis.recommend_flags import flags
from outrider.analysis.recommend_report import recommend_lines, recommend_record
from outrider.analysis.whatif import Setting
from outrider.analysis.whatif_trace import recorded
from outrider.cli.main import build_parser
from outrider.core.ids import RequestId
from outrider.core.rounds import Round
from outrider.core.step_cost import MeasuredOn, StepCostTable, Timing
from outrider.core.trace import StepTimes, StepTrace, TraceHeader
from outrider.errors import ConfigError
from outrider.schedule.cost import StepCost


@dataclass(frozen=True)
class Stated:
    """Evidence that says what a test tells it: tokens per second by length and load."""

    drafter: str
    throughputs: Mapping[int, Sequence[float]]
    config: Mapping[str, Any] | None = None
    statistic: str = "mean"
    tpot_ms: Mapping[int, float] = field(default_factory=dict)
    policy: Mapping[int, float] = field(default_factory=dict)

    def expect(self, concurrency: int) -> list[Expected]:
        own = self.throughputs[concurrency]
        pairs = [
            (Candidate(self.drafter, FIXED, n) if n else NO_DRAFTS, value)
            for n, value in enumerate(own)
        ]
        if concurrency in self.policy:
            pairs.append(
                (Candidate(self.drafter, THROUGHPUT, len(own) - 1), self.policy[concurrency])
            )
        return [
            Expected(
                each,
                concurrency,
                value,
                value / own[0],
                (value / own[0] * 0.9, value / own[0] * 1.1),
                self.tpot_ms.get(each.length, 1.0) * concurrency,
                5.0,
            )
            for each, value in pairs
        ]


VARYING = Stated("suffix", {1: (100, 140, 150), 8: (400, 420, 300)}, policy={1: 149, 8: 425})


def test_the_choice_is_the_best_of_all() -> None:
    """Catches a mean of speedups in place of the time that all tokens take."""
    stated = replace(VARYING, policy={})
    loads = {1: 3.0, 8: 1.0}
    found = recommend([stated], loads, Targets())

    def seconds(length: int) -> float:
        return sum(share / stated.throughputs[load][length] for load, share in loads.items())

    best = min(range(3), key=seconds)
    assert (found.choice.length, found.single) == (best, best)
    assert found.gain == pytest.approx(seconds(0) / seconds(best))
    assert found.schedule == ((1, 2), (8, 1))
    assert found.interval is not None
    assert found.interval[0] == pytest.approx(found.gain * 0.9)


def test_the_load_decides() -> None:
    """Catches shares that are not weighed."""
    alone = recommend([VARYING], {1: 1.0}, Targets())
    assert alone.choice == Candidate("suffix", FIXED, 2)
    crowd = recommend([replace(VARYING, policy={})], {1: 1.0, 8: 40.0}, Targets())
    assert crowd.choice == Candidate("suffix", FIXED, 1)
    mixed = recommend([VARYING], {1: 1.0, 8: 1.0}, Targets())
    assert mixed.choice == Candidate("suffix", THROUGHPUT, 2)


def test_the_simplest_of_what_is_close_is_taken() -> None:
    """Catches a table and a policy recommended for a gain that nobody would notice."""
    stated = Stated("suffix", {1: (100, 100.5)}, policy={1: 100.6})
    found = recommend([stated], {1: 1.0}, Targets())
    assert found.choice == NO_DRAFTS
    assert found.gain == 1.0
    assert "--draft off" in flags(found, "c.json")["outrider"]


def test_the_better_drafter_is_taken() -> None:
    """Catches plain decoding counted once per drafter, or the first drafter always winning."""
    other = Stated("ngram", {1: (100, 160, 120), 8: (400, 390, 300)})
    found = recommend([VARYING, other], {1: 1.0}, Targets())
    assert found.choice == Candidate("ngram", FIXED, 1)
    assert [one.candidate for one in found.everything].count(NO_DRAFTS) == 1
    assert found.schedule == ((1, 1),)


def test_targets_limit_the_choice_and_the_load() -> None:
    """Catches a fast setting that misses the target where a slower one meets it."""
    stated = replace(VARYING, tpot_ms={0: 1.0, 1: 3.0, 2: 9.0}, policy={})
    found = recommend([stated], {1: 1.0, 8: 1.0}, Targets(tpot_ms=8.0))
    assert found.choice == NO_DRAFTS
    assert (found.unmet, found.limit) == ((), 8)
    found = recommend([stated], {1: 1.0, 8: 1.0}, Targets(tpot_ms=4.0))
    assert found.choice == Candidate("suffix", FIXED, 1)
    assert (found.unmet, found.limit) == ((8,), 1)
    assert "--max-num-seqs 1" in flags(found, "c.json")["outrider"]
    nothing = recommend([stated], {8: 1.0}, Targets(ttft_ms=1.0))
    assert nothing.limit is None
    assert "none does" in "\n".join(recommend_lines(nothing, {}))


def test_impossible_wishes_are_refused() -> None:
    """Catches targets and loads that nothing can be."""
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="tpot_ms is"):
            Targets(tpot_ms=bad)
        with pytest.raises(ConfigError, match="share above 0"):
            recommend([VARYING], {1: bad}, Targets())
    with pytest.raises(ConfigError, match="share above 0"):
        recommend([VARYING], {}, Targets())


def options_after(line: str, option: str) -> dict[str, Any]:
    words = shlex.split(line)
    found: dict[str, Any] = json.loads(words[words.index(option) + 1])
    return found


def test_every_engine_gets_the_schedule_it_can_take() -> None:
    """Catches steps of a schedule that overlap, miss a load, or count the anchor wrongly."""
    spoken = flags(recommend([VARYING], {1: 1.0, 8: 1.0}, Targets()), "my costs.json")
    own = spoken["outrider"]
    args, extra = build_parser().parse_known_args(["serve", *shlex.split(own)])
    assert not extra
    assert (args.draft, args.draft_len, args.length_policy) == ("suffix", 2, "throughput")
    assert (args.cost_table, args.max_num_seqs) == ("my costs.json", 8)
    vllm = options_after(spoken["vllm"], "--speculative-config")
    assert vllm == {
        "method": "suffix",
        "num_speculative_tokens": 2,
        "num_speculative_tokens_per_batch_size": [[1, 1, 2], [2, 8, 1]],
    }
    assert "--speculative-num-draft-tokens 2 " in spoken["sglang"]
    assert "draft_len_schedule: {1: 2, 8: 1}" in spoken["tensorrt-llm"]
    assert "--spec-draft-n-max 1 " in spoken["llama.cpp"]


def test_a_fixed_length_is_fixed_everywhere() -> None:
    """Catches a schedule where one length was recommended, and options lost on the way."""
    config = {"method": "draft-model", "model": "small.gguf", "min_survival": 0.1}
    stated = Stated("draft-model", {1: (100, 140, 150), 8: (400, 420, 410)}, config=config)
    found = recommend([stated], {1: 1.0, 8: 1.0}, Targets())
    assert found.choice == Candidate("draft-model", FIXED, 2)
    spoken = flags(found, "c.json")
    own = options_after(spoken["outrider"], "--speculative-config")
    assert own == {"method": "draft-model", "model": "small.gguf", "num_speculative_tokens": 2}
    vllm = options_after(spoken["vllm"], "--speculative-config")
    assert vllm == {"method": "draft_model", "model": "small.gguf", "num_speculative_tokens": 2}
    assert "--speculative-num-steps 2 " in spoken["sglang"]
    assert "schedule" not in spoken["tensorrt-llm"]
    assert "--spec-draft-model small.gguf --spec-draft-n-max 2" in spoken["llama.cpp"]


def test_what_others_lack_is_said() -> None:
    """Catches another drafter's options in place of one that an engine does not have."""
    stated = Stated("combined", {1: (100, 150)})
    spoken = flags(recommend([stated], {1: 1.0}, Targets()), "c.json")
    assert spoken["outrider"].startswith("--draft auto --draft-len 1 --length-policy fixed")
    for engine in ("vllm", "sglang", "tensorrt-llm", "llama.cpp"):
        assert re.match("# .* is not known to have a drafter like 'combined'", spoken[engine])


def trace_of(holds: Sequence[int]) -> list[str]:
    """Requests of one round after another; round i accepts `holds[i]` of 3 drafts."""
    lines = [TraceHeader("m", "b", "suffix", 3, "matching", "fixed").to_line()]
    for name in range(6):
        place = 0
        for number, accepted in enumerate([0, *holds, *holds[: name + 1]]):
            drafted = 3 if number else 0
            one = Round(RequestId(f"r{name}"), place, drafted, drafted, accepted, accepted + 1)
            rows = 1 + drafted if number else 5
            lines.append(StepTrace(1, rows, 0.0, StepTimes(), (one,)).to_line())
            place += accepted + 1
    return lines


def table_of(per_row: float) -> StepCostTable:
    rows = (1, 2, 4, 256)
    return StepCostTable(
        measured_on=MeasuredOn("m", "m", "b", 1),
        rows=rows,
        contexts=(0,),
        forward=(tuple(Timing(1 + per_row * (n - 1), 0.0, 1) for n in rows),),
        host=((1, Timing(0.0, 0.0, 1)),),
        drafting={"suffix, up to 3": ((1, Timing(0.0, 0.0, 1)),)},
    )


def from_trace(per_row: float, loads: Mapping[int, float]) -> Recommendation:
    record = recorded(trace_of([3, 3, 0, 2]), "t")
    cost = StepCost(table_of(per_row), "suffix, up to 3")
    evidence = TracedEvidence(record, cost, (1, 2, 3, 9), Setting(), drafter="suffix")
    return recommend([evidence], loads, Targets())


def test_a_trace_is_simulated_at_every_length() -> None:
    """Catches lengths beyond the trace, and cheap rows that are not used."""
    cheap = from_trace(0.001, {1: 1.0, 4: 1.0})
    assert cheap.choice == Candidate("suffix", FIXED, 3)
    assert {one.candidate.length for one in cheap.everything} == {0, 1, 2, 3}
    assert cheap.interval is not None
    low, high = cheap.interval
    assert 1 < low <= cheap.gain <= high
    assert from_trace(1.0, {1: 1.0}).choice == NO_DRAFTS
    json.dumps(recommend_record(cheap, flags(cheap, "c")), allow_nan=False)
    assert "run: suffix 3" in recommend_lines(cheap, flags(cheap, "c"))


EVAL: dict[str, Any] = {
    "mean_accept_length": 2.0,
    "speculative_config": {"method": "suffix", "num_speculative_tokens": 2},
    "setting": {"concurrency": 16},
    "runs": [
        {
            "rounds": 20,
            "accepted_at": [12, 8],
            "verified_at": [20, 20],
            "prompts": [
                {"rounds": 10, "accepted_at": [8, 6]},
                {"rounds": 10, "accepted_at": [4, 2]},
            ],
        }
    ],
}


def test_a_record_is_priced_by_its_means(tmp_path: Path) -> None:
    """Catches the interval of tokens per round passed off as that of the speedup, and none lost."""
    path = tmp_path / "e.json"
    path.write_text(json.dumps(EVAL), "utf-8")
    evidence = counted(str(path), table_of(0.0), None, (0.0, 101.0))
    found = recommend([evidence], {1: 1.0}, Targets())
    assert found.choice == Candidate("suffix", FIXED, 2)
    assert found.gain == pytest.approx(1 + 12 / 20 + 8 / 20)
    assert list(found.interval or ()) == pytest.approx([1.6, 2.4])
    assert found.by_load[0].tpot_ms == pytest.approx(1000 / 2)
    costly = counted(str(path), table_of(0.5), None, (0.0, 101.0))
    one = costly.expect(1)[2]
    assert one.speedup == pytest.approx(2.0 / 2.0)
    assert list(one.interval or ()) == pytest.approx([0.8, 1.2])
    with pytest.raises(ConfigError, match="add --prompt-len"):
        counted(str(path), table_of(0.0), None, (None, None))
    with pytest.raises(ConfigError, match="no drafter like 'suffix'"):
        counted(str(path), replace(table_of(0.0), drafting={}), None, (1.0, 1.0))


def test_an_old_record_has_no_uncertainty(tmp_path: Path) -> None:
    """Catches an interval made up for a record without prompts."""
    path = tmp_path / "e.json"
    run = {name: value for name, value in EVAL["runs"][0].items() if name != "prompts"}
    path.write_text(json.dumps(EVAL | {"runs": [run]}), "utf-8")
    evidence = counted(str(path), table_of(0.0), None, (0.0, 101.0))
    found = recommend([evidence], {1: 1.0}, Targets())
    assert found.interval is None
    assert "uncertainty unknown" in "\n".join(recommend_lines(found, {}))
