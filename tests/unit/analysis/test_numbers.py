"""Counters and samples under this project's names and under vLLM's."""

import json

import pytest

from outrider.analysis.numbers import (
    acceptance_record,
    finite,
    latency_record,
    vllm_acceptance_record,
)
from outrider.core.acceptance import Acceptance


def counts() -> Acceptance:
    """Four rounds: drafts of 2, 2 and 1 tokens of which 2, 0 and 1 are accepted, and no draft."""
    acceptance = Acceptance()
    for verified, accepted in ((2, 2), (2, 0), (1, 1), (0, 0)):
        acceptance.record(
            drafted=verified, verified=verified, accepted=accepted, delivered=accepted + 1
        )
    return acceptance


def test_own_rates_count_every_round() -> None:
    """Catches a length over drafts only, and the two rates per position being mixed up."""
    record = acceptance_record(counts())
    assert record["acceptance_length"] == 1 + 3 / 4
    assert record["acceptance_rate"] == 3 / 5
    assert record["marginal_accept_rates"] == [2 / 3, 1 / 2]
    assert record["conditional_accept_rates"] == [2 / 3, 1.0]


def test_vllm_rates_count_drafts() -> None:
    """Catches a fraction where vLLM reports percent, or rounds without a draft being counted."""
    record = vllm_acceptance_record(counts())
    assert record["spec_decode_num_drafts"] == 3
    assert record["spec_decode_draft_tokens"] == 5
    assert record["spec_decode_accepted_tokens"] == 3
    assert record["spec_decode_acceptance_rate"] == pytest.approx(60.0)
    assert record["spec_decode_acceptance_length"] == 1 + 3 / 3
    assert record["spec_decode_per_position_acceptance_rates"] == [2 / 3, 1 / 3]


def test_nothing_measured_is_null() -> None:
    """Catches NaN in the JSON, which strict parsers refuse."""
    empty = acceptance_record(Acceptance()) | vllm_acceptance_record(Acceptance())
    json.dumps(empty | latency_record("ttft", []), allow_nan=False)
    assert empty["acceptance_rate"] is None
    assert finite(float("inf")) is None
    assert finite(1.5) == 1.5


def test_latencies_are_milliseconds() -> None:
    """Catches seconds, or a percentile of the wrong end."""
    record = latency_record("ttft", [0.1, 0.2, 0.6])
    assert record["mean_ttft_ms"] == pytest.approx(300.0)
    assert record["median_ttft_ms"] == pytest.approx(200.0)
    assert record["p99_ttft_ms"] == pytest.approx(592.0)
