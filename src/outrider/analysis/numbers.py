"""Counters and samples → numbers of a report. NaN and infinity become None: JSON has neither."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from outrider.core.acceptance import Acceptance

MILLISECONDS = 1000.0


def finite(value: float | None) -> float | None:
    """Give the value, or None where it is no number that JSON can hold."""
    return value if value is not None and math.isfinite(value) else None


def acceptance_record(counts: Acceptance) -> dict[str, Any]:
    """Give counters and rates under the names of this project.

    `acceptance_length` is tokens per round over all rounds; `acceptance_rate` accepted over
    verified draft tokens, a fraction. `verified_at` and `accepted_at` count rounds by position.
    """
    return {
        "rounds": counts.rounds,
        "drafted": counts.drafted,
        "verified": counts.verified,
        "accepted": counts.accepted,
        "acceptance_length": finite(counts.acceptance_length),
        "acceptance_rate": finite(counts.acceptance_rate),
        "conditional_accept_rates": [finite(rate) for rate in counts.conditional_accept_rates],
        "marginal_accept_rates": [finite(rate) for rate in counts.marginal_accept_rates],
        "verified_at": counts.verified_at,
        "accepted_at": counts.accepted_at,
        "sources": {
            name: {
                "verified": of.verified,
                "reached": of.reached,
                "accepted": of.accepted,
                "accept_rate": finite(of.accept_rate),
            }
            for name, of in sorted(counts.by_source.items())
        },
    }


def vllm_acceptance_record(counts: Acceptance) -> dict[str, Any]:
    """Give the counters under vLLM's benchmark names and by its conventions.

    A draft is a round that sent at least one draft token to the target; rates divide by drafts, so
    rounds without a proposal count neither here nor in the length. The acceptance rate is a
    percentage.
    """
    num_drafts = counts.verified_at[0] if counts.verified_at else 0
    return {
        "spec_decode_num_drafts": num_drafts,
        "spec_decode_draft_tokens": counts.verified,
        "spec_decode_accepted_tokens": counts.accepted,
        "spec_decode_acceptance_rate": finite(100 * counts.acceptance_rate),
        "spec_decode_acceptance_length": 1 + counts.accepted / num_drafts if num_drafts else None,
        "spec_decode_per_position_acceptance_rates": [
            accepted / num_drafts for accepted in counts.accepted_at
        ],
    }


def latency_record(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    """Mean, median, deviation and 99th percentile in milliseconds, under vLLM's names."""
    names = [f"{label}_{name}_ms" for label in ("mean", "median", "std", "p99")]
    if not seconds:
        return dict.fromkeys(names)
    values = np.asarray(seconds, dtype=np.float64) * MILLISECONDS
    numbers = (values.mean(), np.median(values), values.std(), np.percentile(values, 99))
    return {label: float(number) for label, number in zip(names, numbers, strict=True)}
