"""The figures of a load test, computed by hand from scripted times."""

import pytest

from outrider.analysis.serve_report import (
    detailed_record,
    parse_goodput,
    serve_lines,
    serve_record,
    spec_decode_record,
)
from outrider.core.exchange import Exchange
from outrider.errors import ConfigError


def exchange(sent: float, times: list[float], tokens: int | None, wanted: float = 0.0) -> Exchange:
    return Exchange("c", 0, wanted, sent, times, times[-1], "text", "stop", 10, tokens)


def failed(reason: str) -> Exchange:
    one = Exchange("c", 0, 0.0)
    one.fail(reason, "said so", 1.0)
    return one


FAST = exchange(1.0, [1.1, 1.2, 1.4], 5, wanted=0.5)
SLOW = exchange(1.4, [2.4, 3.4], 3)
RUN = [FAST, SLOW, failed("HTTP 429"), failed("timeout"), failed("HTTP 429")]


def test_figures_are_those_worked_out_by_hand() -> None:
    """Catches a figure over failures, per piece instead of per token, or in the wrong unit."""
    record = serve_record(RUN, 4.0, {})
    assert (record["completed"], record["failed"]) == (2, 3)
    assert record["errors_by_reason"] == {"HTTP 429": 2, "timeout": 1}
    assert (record["total_input_tokens"], record["total_output_tokens"]) == (20, 8)
    assert record["request_throughput"] == 0.5
    assert record["output_throughput"] == 2.0
    assert record["total_token_throughput"] == 7.0
    assert record["request_goodput"] is None
    assert record["mean_ttft_ms"] == pytest.approx((100 + 1000) / 2)
    assert record["median_tpot_ms"] == pytest.approx((300 / 4 + 1000 / 2) / 2)
    assert record["std_tpot_ms"] == pytest.approx((500 - 75) / 2)
    assert record["mean_itl_ms"] == pytest.approx((100 + 200 + 1000) / 3)
    assert record["mean_e2el_ms"] == pytest.approx((400 + 2000) / 2)
    assert record["p99_e2el_ms"] == pytest.approx(400 + 0.99 * 1600)
    assert record["mean_client_queue_time_ms"] == pytest.approx((500 + 1400) / 2)
    assert record["mean_e2el_including_client_queue_ms"] == pytest.approx((900 + 3400) / 2)


def test_peaks() -> None:
    """Catches a peak below the mean, pieces taken for tokens, and ends that overlap begins."""
    record = serve_record(RUN, 4.0, {})
    assert record["max_output_tokens_per_s"] == pytest.approx(5.0)
    assert record["max_concurrent_requests"] == 1
    short = [exchange(0.0, [0.1, 0.2], 8)]
    assert serve_record(short, 0.25, {})["max_output_tokens_per_s"] == pytest.approx(32.0)
    overlapping = [exchange(0.0, [2.0], 1), exchange(1.0, [3.0], 1)]
    assert serve_record(overlapping, 3.0, {})["max_concurrent_requests"] == 2


def test_goodput_needs_every_objective() -> None:
    """Catches objectives joined by or, seconds taken for milliseconds, and failures called good."""
    for objectives, good in (
        (["ttft:200"], 1),
        (["ttft:1000"], 2),
        (["ttft:1000", "tpot:100"], 1),
        (["ttft:1000", "e2el:100"], 0),
    ):
        record = serve_record(RUN, 4.0, parse_goodput(objectives))
        assert record["request_goodput"] == good / 4.0
    single = [exchange(0.0, [0.1], 1)]
    assert serve_record(single, 1.0, {"tpot": 0.0})["request_goodput"] == 1.0


@pytest.mark.parametrize("text", ["ttft", "ttft:fast", "itl:5", "tpot:-1", "ttft:nan"])
def test_bad_objectives_are_refused(text: str) -> None:
    """Catches a limit that silently does nothing."""
    with pytest.raises(ConfigError, match="no objective"):
        parse_goodput([text])


def test_nothing_completed() -> None:
    """Catches a crash, or a NaN that JSON cannot hold, where every request failed."""
    record = serve_record([failed("timeout")], 1.0, {"ttft": 1.0})
    assert (record["output_throughput"], record["mean_ttft_ms"]) == (0.0, None)
    assert any("1 x timeout" in line for line in serve_lines(record))


def test_answers_without_usage_are_counted_by_pieces_and_said_so() -> None:
    """Catches a silent guess of the token count."""
    record = serve_record([exchange(0.0, [0.1, 0.2, 0.3], None)], 1.0, {})
    assert (record["total_output_tokens"], record["num_without_usage"]) == (3, 1)
    assert any("without usage" in line for line in serve_lines(record))


def test_every_request_is_in_the_detailed_record() -> None:
    """Catches lists that are not in one order."""
    record = detailed_record(RUN)
    assert record["output_lens"][:2] == [5, 3]
    assert record["start_times"][:2] == pytest.approx([0.0, 0.4])
    assert record["itls"][0] == pytest.approx([0.1, 0.2])
    assert record["errors"] == ["", "", *["said so"] * 3]


BEFORE = """# HELP vllm:spec_decode_num_drafts_total x
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 40
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 20
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 9
vllm:spec_decode_num_drafts_created{engine="0"} 1.7e9
other_total 5
"""
AFTER = """vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 20.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 120
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 5e1
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="10"} 2
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 10
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 27
"""


def test_speculation_is_read_from_the_metrics_pages() -> None:
    """Catches counters since the server's start, engines not summed, positions sorted as text."""
    assert spec_decode_record(BEFORE, AFTER) == {
        "spec_decode_num_drafts": 20,
        "spec_decode_draft_tokens": 80,
        "spec_decode_accepted_tokens": 30,
        "spec_decode_acceptance_rate": 37.5,
        "spec_decode_acceptance_length": 2.5,
        "spec_decode_per_position_acceptance_rates": [0.9, 0.5, 0.1],
    }
    assert spec_decode_record(None, AFTER) == {}
    assert spec_decode_record(AFTER, AFTER) == {}
    assert spec_decode_record("<html>", "nothing") == {}
