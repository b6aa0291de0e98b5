"""Lossless speculative decoding: draft several tokens, verify them in one forward, prove it."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.core.acceptance import Acceptance as Acceptance
    from outrider.core.request import SamplingParams as SamplingParams
    from outrider.core.request import StructuredOutputsParams as StructuredOutputsParams
    from outrider.drafters.config import SpeculativeConfig as SpeculativeConfig
    from outrider.engine.config import EngineConfig as EngineConfig
    from outrider.engine.llm import LLM as LLM
    from outrider.errors import OutriderError as OutriderError

__version__ = "0.1.0"

_HOMES = {
    "Acceptance": "outrider.core.acceptance",
    "EngineConfig": "outrider.engine.config",
    "LLM": "outrider.engine.llm",
    "OutriderError": "outrider.errors",
    "SamplingParams": "outrider.core.request",
    "SpeculativeConfig": "outrider.drafters.config",
    "StructuredOutputsParams": "outrider.core.request",
}

__all__ = [
    "LLM",
    "Acceptance",
    "EngineConfig",
    "OutriderError",
    "SamplingParams",
    "SpeculativeConfig",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Import public names on first use, so that `import outrider` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the lazy names too."""
    return sorted(__all__)
