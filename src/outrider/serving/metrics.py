"""What the server counts, under vLLM's names where vLLM has one.

The engine's thread adds up plain numbers; they are turned into Prometheus text when asked for.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from outrider.core.acceptance import Acceptance
from outrider.engine.engine import Engine
from outrider.engine.report import StepReport

FIRST_TOKEN: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0,
)  # fmt: skip
PER_TOKEN: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 10.0,
)  # fmt: skip
WHOLE: Final = (
    0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0,
)  # fmt: skip
TOKENS: Final = tuple(float(1 << power) for power in range(18))
LENGTHS: Final = tuple(float(length) for length in range(17))
STEP: Final = PER_TOKEN


class Histogram:
    """Counts of values by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """Count up to each of `bounds`, and beyond the last."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """Give (upper bound, number of values at or below it), as Prometheus wants it."""
        total = 0
        rows = []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            rows.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
        return rows


class Metrics:
    """The counters of one driver."""

    def __init__(self) -> None:
        """Start at zero."""
        self.acceptance = Acceptance()
        self.num_steps = 0
        self.num_rows = 0
        self.num_preemptions = 0
        self.num_skipped_drafts = 0
        self.num_prompt_tokens = 0
        self.num_cached_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.drift = 0.0
        self.finished: Counter[str] = Counter()
        self.first_token_seconds = Histogram(FIRST_TOKEN)
        self.inter_token_seconds = Histogram(PER_TOKEN)
        self.per_token_seconds = Histogram(PER_TOKEN)
        self.whole_seconds = Histogram(WHOLE)
        self.queue_seconds = Histogram(WHOLE)
        self.step_seconds = Histogram(STEP)
        self.step_rows = Histogram(TOKENS)
        self.prompt_lengths = Histogram(TOKENS)
        self.output_lengths = Histogram(TOKENS)
        self.verify_lengths = Histogram(LENGTHS)

    def see_step(self, report: StepReport, engine: Engine) -> None:
        """Add a step."""
        if not report.num_requests:
            return
        self.acceptance.add(report.acceptance)
        self.num_steps += 1
        self.num_rows += report.num_tokens
        self.num_preemptions = engine.num_preemptions
        self.num_generated_tokens += report.acceptance.delivered
        self.step_seconds.observe(report.times.total)
        self.step_rows.observe(report.num_tokens)
        if report.times.drift == report.times.drift:
            self.drift = report.times.drift
        for done in report.rounds:
            self.verify_lengths.observe(done.verified)
            self.num_skipped_drafts += done.verified == 0

    @property
    def num_drafts(self) -> int:
        """Rounds that sent at least one draft token to the target."""
        return self.acceptance.verified_at[0] if self.acceptance.verified_at else 0


class Exposition(Collector):
    """`Metrics` as Prometheus metrics."""

    def __init__(
        self, metrics: Metrics, engine: Engine, model: str, policy: str, waiting: Callable[[], int]
    ) -> None:
        """Describe an engine that serves `model`."""
        self._metrics, self._engine = metrics, engine
        self._labels = ("model_name", "engine")
        self._values = (model, "0")
        self._policy = policy
        self._waiting = waiting
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """Give everything in Prometheus' text format."""
        return bytes(generate_latest(self._registry))

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        engine, cache = self._engine, self._engine.cache
        used = cache.num_blocks - cache.num_free
        plain = (
            ("vllm:num_requests_running", "Requests that hold KV blocks.", engine.num_running),
            ("vllm:num_requests_waiting", "Accepted requests without.", self._waiting()),
            ("vllm:kv_cache_usage_perc", "Share of KV blocks in use.", used / cache.num_blocks),
            (
                "outrider:calibration_drift",
                "Predicted minus observed accepted tokens per verified draft token, lately.",
                self._metrics.drift,
            ),
        )
        for name, text, value in plain:
            yield self._add(GaugeMetricFamily(name, text, labels=self._labels), (), value)
        blocks = GaugeMetricFamily(
            "outrider:kv_blocks", "KV blocks by state.", labels=(*self._labels, "state")
        )
        cached = cache.num_cached
        for state, number in (
            ("used", used),
            ("cached", cached),
            ("free", cache.num_blocks - used - cached),
        ):
            self._add(blocks, (state,), number)
        yield blocks
        policy = GaugeMetricFamily(
            "outrider:length_policy", "The length policy.", labels=(*self._labels, "policy")
        )
        yield self._add(policy, (self._policy,), 1)

    def _counters(self) -> Iterator[Metric]:
        now = self._metrics
        counts = now.acceptance
        for name, text, value in (
            ("vllm:prompt_tokens", "Prompt tokens of started requests.", now.num_prompt_tokens),
            ("vllm:generation_tokens", "Tokens delivered.", now.num_generated_tokens),
            ("vllm:prefix_cache_queries", "Prompt tokens looked up.", now.num_prompt_tokens),
            ("vllm:prefix_cache_hits", "Prompt tokens found.", now.num_cached_prompt_tokens),
            ("vllm:num_preemptions", "Requests that lost their blocks.", now.num_preemptions),
            ("vllm:spec_decode_num_drafts", "Rounds that verified a draft.", now.num_drafts),
            ("vllm:spec_decode_num_draft_tokens", "Draft tokens verified.", counts.verified),
            ("vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.", counts.accepted),
            ("outrider:steps", "Forwards of the target.", now.num_steps),
            ("outrider:verified_rows", "Rows of those forwards.", now.num_rows),
            ("outrider:rounds", "Rounds of requests.", counts.rounds),
            ("outrider:drafted_tokens", "Draft tokens proposed.", counts.drafted),
            ("outrider:skipped_drafts", "Rounds that verified none.", now.num_skipped_drafts),
        ):
            yield self._add(CounterMetricFamily(name, text, labels=self._labels), (), value)
        positions = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Rounds that accepted everything up to a draft position.",
            labels=(*self._labels, "position"),
        )
        for position, count in enumerate(counts.accepted_at):
            self._add(positions, (str(position),), count)
        yield positions
        finished = CounterMetricFamily(
            "vllm:request_success", "Requests by end.", labels=(*self._labels, "finished_reason")
        )
        for reason, count in sorted(now.finished.items()):
            self._add(finished, (reason,), count)
        yield finished

    def _histograms(self) -> Iterator[Metric]:
        now = self._metrics
        for name, text, histogram in (
            ("time_to_first_token_seconds", "Arrival to first token.", now.first_token_seconds),
            ("inter_token_latency_seconds", "Between two deliveries.", now.inter_token_seconds),
            (
                "request_time_per_output_token_seconds",
                "Per token after the first, by request.",
                now.per_token_seconds,
            ),
            ("e2e_request_latency_seconds", "Arrival to end.", now.whole_seconds),
            ("request_queue_time_seconds", "Arrival to the first step.", now.queue_seconds),
            ("request_prompt_tokens", "Prompt tokens by request.", now.prompt_lengths),
            ("request_generation_tokens", "Output tokens by request.", now.output_lengths),
            ("iteration_tokens_total", "Rows of a forward.", now.step_rows),
        ):
            yield self._histogram(f"vllm:{name}", text, histogram)
        yield self._histogram("outrider:verify_length", "Per round.", now.verify_lengths)
        yield self._histogram("outrider:step_seconds", "Whole steps.", now.step_seconds)

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=self._labels)
        family.add_metric(self._values, histogram.cumulative(), histogram.sum)
        return family

    def _add(
        self, family: GaugeMetricFamily | CounterMetricFamily, more: tuple[str, ...], value: float
    ) -> Metric:
        family.add_metric((*self._values, *more), value)
        return family
