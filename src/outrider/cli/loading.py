"""Loading a model with a line to look at, after everything that can be refused at once was."""

import argparse
from typing import Any

from outrider.cli.console import Console
from outrider.drafters.config import SpeculativeConfig
from outrider.engine.llm import LLM
from outrider.models import hub


def load(
    args: argparse.Namespace,
    console: Console,
    engine_options: dict[str, Any],
    speculative: SpeculativeConfig | None,
) -> LLM:
    """Load `args.model`.

    Raises:
        OutriderError: The model, the drafter or an option cannot be used.
    """
    require_drafter(speculative)
    hub.resolve(args.model)
    with console.working(f"loading {args.model}"):
        return LLM(args.model, speculative_config=speculative, **engine_options)


def require_drafter(speculative: SpeculativeConfig | None) -> None:
    """Refuse an unknown method or a missing draft model before weights are read.

    Raises:
        ConfigError: There is no such method.
        ModelNotFound: There is no such draft model.
    """
    from outrider.drafters.catalogue import drafter_factory

    if speculative is not None:
        drafter_factory(speculative.method)
        if speculative.model is not None:
            hub.resolve(speculative.model)
