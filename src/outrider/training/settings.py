"""Options of making training data. Imports no torch, so that a command line can read defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from outrider.errors import ConfigError

FeatureMode = Literal["capture", "recompute", "none"]
FEATURE_MODES: tuple[FeatureMode, ...] = ("capture", "recompute", "none")
HistoryMode = Literal["regenerate", "keep"]
HISTORY_MODES: tuple[HistoryMode, ...] = ("regenerate", "keep")


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisSetting:
    """How many prompts of each domain, and how they are sampled.

    Two prompts whose words overlap by `max_overlap` or more count as the same.
    """

    counts: Mapping[str, int]
    temperature: float = 0.9
    top_p: float = 0.95
    max_tokens: int = 96
    max_overlap: float = 0.6
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateSetting:
    """How prompts are answered.

    `greedy_share` of the conversations are answered at temperature 0, the others sampled.
    `history` says what stands between the turns of a conversation: answers by the target
    (regenerate), or those of the file (keep), which carry no loss. A document in which the target
    wrote fewer than `min_answer_tokens` is dropped.
    """

    max_tokens: int = 192
    greedy_share: float = 0.6
    temperature: float = 0.8
    top_p: float = 1.0
    top_k: int = 0
    history: HistoryMode = "regenerate"
    min_answer_tokens: int = 8
    shard_documents: int = 256
    is_raw: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a share that is none.

        Raises:
            ConfigError: `greedy_share` is outside 0 to 1.
        """
        if not 0 <= self.greedy_share <= 1:
            raise ConfigError(f"greedy_share is {self.greedy_share}, but it is a share from 0 to 1")
