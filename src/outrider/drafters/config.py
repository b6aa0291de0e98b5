"""What the user asked for in speculation. The engine's config holds one of these or none."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from outrider.errors import ConfigError, unknown_name

NETWORKS = ("dspark", "dflash", "draft-model")
"""Methods that can be combined with a request's own text and a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Which drafter runs and how; the keys follow vLLM's `--speculative-config`."""

    method: str
    """auto (what is shipped for the target, else suffix), or a drafter from the catalogue:
    ngram, suffix, ngram-table, draft-model, dflash, dspark, combined."""
    model: str | None = None
    """Checkpoint or table of the drafter, for methods that need one."""
    num_speculative_tokens: int | None = None
    """Longest draft; None takes the method's own default."""
    ngram_table: str | None = None
    """combined: file of an n-gram table."""
    network: str = "dspark"
    """combined: the method that drafts with `model`, where a model is named."""
    network_cost: float = 0.15
    """combined: time of one draft of the network, as a share of a round without it."""
    min_survival: float = 0.1
    """ngram-table, combined: a draft ends where its estimated survival falls below this."""
    prompt_lookup_min: int = 1
    """ngram: shortest suffix that counts as a match."""
    prompt_lookup_max: int = 4
    """ngram: longest suffix that is looked up."""
    suffix_decoding_max_cached_tokens: int = 0
    """suffix: tokens of earlier outputs of this process to draft from as well; 0 for none."""
    suffix_decoding_min_token_prob: float = 0.1
    """suffix: a draft ends where its estimated survival falls below this."""

    def __post_init__(self) -> None:
        """Normalise vLLM's spelling and refuse what no drafter can do."""
        for name in ("method", "network"):
            object.__setattr__(self, name, getattr(self, name).replace("_", "-"))
        if self.network not in NETWORKS:
            raise ConfigError(unknown_name("network to combine", self.network, NETWORKS))
        if not 0 <= self.network_cost < math.inf:
            raise ConfigError(
                f"network_cost is {self.network_cost}, but it is a share of a round, 0 or more"
            )
        length = self.num_speculative_tokens
        if length is not None and length < 1:
            raise ConfigError(
                f"num_speculative_tokens is {length}, but it must be 1 or more; "
                "leave the speculative config out to turn speculation off"
            )
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min is {self.prompt_lookup_min} and prompt_lookup_max is "
                f"{self.prompt_lookup_max}, but 1 <= min <= max must hold"
            )
        for name in ("min_survival", "suffix_decoding_min_token_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, but it is a probability")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Build from a mapping such as the JSON of `--speculative-config`.

        Raises:
            ConfigError: A key is unknown (the nearest one is suggested) or a value is refused.
        """
        known = {f.name for f in fields(cls)}
        for name in options:
            if name not in known:
                raise ConfigError(unknown_name("key in the speculative config", name, known))
        if "method" not in options:
            raise ConfigError("the speculative config has no method; add for example 'ngram'")
        _refuse_wrong_types(options)
        return cls(**options)


def _refuse_wrong_types(options: Mapping[str, Any]) -> None:
    """JSON brings whatever the user wrote; a wrong type would surface far from here."""
    for name, kinds, wanted in _TYPES:
        value = options.get(name, ...)
        if value is ... or (isinstance(value, kinds) and not isinstance(value, bool)):
            continue
        raise ConfigError(f"{name} in the speculative config is {value!r}, not {wanted}")


_TYPES: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("method", (str,), "a string"),
    ("model", (str, type(None)), "a string"),
    ("num_speculative_tokens", (int, type(None)), "an integer"),
    ("ngram_table", (str, type(None)), "a string"),
    ("network", (str,), "a string"),
    ("network_cost", (int, float), "a number"),
    ("min_survival", (int, float), "a number"),
    ("prompt_lookup_min", (int,), "an integer"),
    ("prompt_lookup_max", (int,), "an integer"),
    ("suffix_decoding_max_cached_tokens", (int,), "an integer"),
    ("suffix_decoding_min_token_prob", (int, float), "a number"),
)
