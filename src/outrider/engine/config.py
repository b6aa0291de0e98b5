"""What the user asked for. Frozen; what the machine makes of it is `resolve.EnginePlan`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from outrider.core.request import VERIFY_RULES, VerifyRule
from outrider.drafters.config import SpeculativeConfig
from outrider.errors import ConfigError, unknown_name

DTYPES = ("bfloat16", "float16", "float32", "float64")
LengthPolicyName = Literal["auto", "off", "fixed", "threshold", "throughput"]
LENGTH_POLICIES: tuple[LengthPolicyName, ...] = ("auto", "off", "fixed", "threshold", "throughput")
WEIGHING_POLICIES: tuple[LengthPolicyName, ...] = ("threshold", "throughput")
"""Those that look at confidences."""
BackendName = Literal["auto", "torch", "native"]
BACKENDS: tuple[BackendName, ...] = ("auto", "torch", "native")
WeightFormat = Literal["bf16", "q8", "q4"]
WEIGHT_FORMATS: tuple[WeightFormat, ...] = ("bf16", "q8", "q4")
DEFAULT_WEIGHTS: WeightFormat = "bf16"
MOST_THREADS = 1024
MOST_TOKENS = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine. Serialisable; every default of the product is written here and nowhere else."""

    model: str
    """A name from `outrider models`, a Hugging Face id or directory, or a GGUF file."""
    speculative: SpeculativeConfig | None = None
    """None decodes plainly."""
    verify_rule: VerifyRule = "matching"
    """matching gives the same tokens as plain decoding; rejection the same distribution."""
    length_policy: LengthPolicyName = "auto"
    """How many of the drafted tokens are verified: none, all, those whose confidence is at least
    `length_threshold`, or what gives the most tokens per second on this machine; auto is throughput
    on the native backend and fixed on torch."""
    length_threshold: float = 0.5
    """threshold: a draft is verified up to the first token of lower confidence."""
    cost_table: str | None = None
    """throughput: file written by `outrider profile`; None measures at the first start."""
    calibration: str | None = None
    """threshold, throughput: file written by `outrider calibrate`; None takes the one shipped with
    the drafter, if there is one."""
    trace: str | None = None
    """File that gets a line of JSON per step."""
    backend: BackendName = "auto"
    """What computes: native (CPU, quantised, the same bits in any batch), torch, or auto: native
    where it is built and nothing asks for torch."""
    weights: WeightFormat = DEFAULT_WEIGHTS
    """How the native backend keeps matrices that the checkpoint has not quantised."""
    dtype: str | None = None
    """Numbers the torch backend computes with; None is bfloat16. Naming one asks for torch."""
    device: str = "cpu"
    """A torch device; any but the CPU asks for torch."""
    threads: int | None = None
    """Threads that compute; None: all cores this process may use, on torch its own choice."""
    block_size: int = 16
    """Tokens per KV block."""
    kv_cache_tokens: int | None = None
    """Tokens the KV cache holds; None: enough for `max_num_seqs` requests of 1024, at least one
    full context, at most 32768."""
    max_context_len: int | None = None
    """Longest sequence; None: what the model was made for, at most the default KV cache."""
    max_num_seqs: int = 16
    """Most requests in a step."""
    max_num_batched_tokens: int = 512
    """Most tokens in a step; longer prompts are read in chunks."""
    prefix_caching: bool = True
    """Share KV blocks between requests that begin alike."""
    feature_taps: tuple[int, ...] = ()
    """Layers whose outputs come with each completion as `features`: 0-based decoder layers, -1 the
    embedding. Needs `prefix_caching` off, because positions found in the cache are not computed."""
    seed: int = 0
    """Seeds the requests that have no seed of their own."""
    is_checked: bool = field(default=False)
    """Assert the engine's invariants after every step."""

    def __post_init__(self) -> None:
        """Refuse what cannot work on any machine."""
        named: tuple[tuple[str, str | None, Sequence[str]], ...] = (
            ("dtype", self.dtype, DTYPES),
            ("backend", self.backend, BACKENDS),
            ("weight format", self.weights, WEIGHT_FORMATS),
            ("verify rule", self.verify_rule, VERIFY_RULES),
            ("length policy", self.length_policy, LENGTH_POLICIES),
        )
        for kind, name, known in named:
            if name not in known and not (kind == "dtype" and name is None):
                raise ConfigError(unknown_name(kind, name, known))
        for name, fits, wanted in _TYPES:
            if not fits(getattr(self, name)):
                raise ConfigError(f"{name} is {getattr(self, name)!r}, but it must be {wanted}")
        self._refuse_sizes()
        if not 0 <= self.length_threshold <= 1:
            raise ConfigError(
                f"length_threshold is {self.length_threshold}, but it is a probability"
            )
        if self.threads is not None and self.threads > MOST_THREADS:
            raise ConfigError(f"threads is {self.threads}, but it must be {MOST_THREADS} or less")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, but each of the "
                f"{self.max_num_seqs} requests of max_num_seqs needs one token per step"
            )

    def _refuse_sizes(self) -> None:
        optional = ("threads", "kv_cache_tokens", "max_context_len")
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", *optional):
            value = getattr(self, name)
            if name in optional and value is None:
                continue
            if not _is_integer(value) or value < 1:
                raise ConfigError(f"{name} is {value!r}, but it must be an integer of 1 or more")
            if value > MOST_TOKENS:
                raise ConfigError(f"{name} is {value}, but it must be {MOST_TOKENS} or less")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_path(value: object) -> bool:
    return isinstance(value, str | Path)


def _is_path_or_none(value: object) -> bool:
    return value is None or _is_path(value)


_TYPES: tuple[tuple[str, Callable[[object], bool], str], ...] = (
    ("model", _is_path, "a name or a path"),
    ("device", lambda value: isinstance(value, str), "the name of a torch device"),
    ("length_threshold", _is_number, "a number"),
    ("cost_table", _is_path_or_none, "a path"),
    ("calibration", _is_path_or_none, "a path"),
    ("trace", _is_path_or_none, "a path"),
    ("prefix_caching", _is_flag, "true or false"),
    ("is_checked", _is_flag, "true or false"),
    ("seed", _is_integer, "an integer"),
)
