"""Loading a model with a line to look at, after everything that can be refused at once was."""

import argparse
from dataclasses import asdict
from typing import Any

from outrider.cli.console import Console
from outrider.core.paths import expanded
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


def method_of(llm: LLM) -> str:
    """Name the drafter's method; that of the drafter `auto` stands for."""
    config = llm.config.speculative
    return "" if config is None else config.method


def speculation_record(llm: LLM) -> dict[str, Any] | None:
    """Say for JSON how `llm` speculates, the drafter that `auto` stands for included."""
    config = llm.config.speculative
    return None if config is None else asdict(config)


def require_drafter(speculative: SpeculativeConfig | None) -> None:
    """Refuse an unknown method, a missing draft model or a bad table before weights are read.

    Raises:
        ConfigError: There is no such method.
        ModelError: There is no such draft model or table, or the table is damaged.
    """
    from outrider.drafters import ngram_table
    from outrider.drafters.catalogue import drafter_factory
    from outrider.drafters.ngram_table_file import NgramTable
    from outrider.drafters.shipped import AUTO

    if speculative is None:
        return
    if speculative.method == AUTO:
        return
    drafter_factory(speculative.method)
    if speculative.ngram_table is not None:
        NgramTable.open(expanded(speculative.ngram_table))
    if speculative.model is not None and speculative.method == ngram_table.NAME:
        NgramTable.open(expanded(speculative.model))
    elif speculative.model is not None:
        hub.resolve(speculative.model)
