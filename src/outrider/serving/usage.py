"""Token counts and what speculation was worth, per HTTP request."""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.serving.ticket import End


def usage_record(prompt_lens: Sequence[int], ends: Sequence[End]) -> dict[str, Any]:
    """Give OpenAI's `usage`; a prompt with several continuations counts once."""
    num_prompt = sum(prompt_lens)
    num_output = sum(end.num_output for end in ends)
    num_per_prompt = len(ends) // len(prompt_lens)
    cached = sum(end.num_cached_prompt for end in ends[::num_per_prompt])
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def speculation_record(ends: Sequence[End], max_draft_len: int) -> dict[str, Any] | None:
    """Give vLLM's `metrics.speculative_decoding`; None for several continuations or no drafter.

    A step is a round that sent at least one draft token to the target, as in vLLM's counters, so
    the sums over all requests are the server's counters. The histogram counts steps by accepted
    draft tokens, the target's own token not among them.
    """
    if len(ends) != 1 or not max_draft_len:
        return None
    by_length = ends[0].accepted_by_length
    num_steps = sum(by_length.values())
    num_draft = sum(verified * count for (verified, _), count in by_length.items())
    num_accepted = sum(accepted * count for (_, accepted), count in by_length.items())
    return {
        "mean_acceptance_length": 1 + num_accepted / num_steps if num_steps else None,
        "draft_acceptance_rate": num_accepted / num_draft if num_draft else None,
        "acceptance_histogram": _histogram(by_length, max_draft_len),
        "acceptance_histogram_by_draft_length": {
            str(length): _histogram(
                {key: count for key, count in by_length.items() if key[0] == length}, length
            )
            for length in sorted({verified for verified, _ in by_length})
        },
        "num_spec_steps": num_steps,
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_draft,
        "num_spec_tokens": max_draft_len,
    }


def _histogram(by_length: Mapping[tuple[int, int], int], longest: int) -> list[int]:
    counts = [0] * (longest + 1)
    for (_, accepted), count in by_length.items():
        counts[accepted] += count
    return counts
