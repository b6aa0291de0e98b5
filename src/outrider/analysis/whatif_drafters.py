"""Drafters that need no target to run on a log, and the time their drafts take."""

from typing import NoReturn

from outrider.core.step_cost import StepCostTable
from outrider.drafters import ngram, suffix
from outrider.drafters.base import Drafter, DrafterSetting
from outrider.drafters.catalogue import DRAFTERS, drafter_factory
from outrider.drafters.config import SpeculativeConfig
from outrider.errors import ConfigError
from outrider.models.checkpoint import Checkpoint


def copying_drafter(options: SpeculativeConfig, checkpoint: Checkpoint | None = None) -> Drafter:
    """Build a drafter that looks at tokens alone; tables need the target's `checkpoint` beside it.

    Raises:
        ConfigError: The method is unknown, runs a network, or needs the target named.
    """
    if options.method == ngram.NAME:
        return ngram.of_options(options)
    if options.method == suffix.NAME:
        return suffix.of_options(options)
    if options.method not in DRAFTERS:
        drafter_factory(options.method)
    if checkpoint is None:
        raise ConfigError(
            f"method {options.method!r} is made for one target: name it with --model; ngram and "
            "suffix need none"
        )
    setting = DrafterSetting(
        options, checkpoint, load=_no_network, load_block=_no_network, num_kv_blocks=1, block_size=1
    )
    return drafter_factory(options.method)(setting)


def _no_network(_checkpoint: object) -> NoReturn:
    raise ConfigError(
        "a network drafts from more than the text of a log; record a trace with "
        "`outrider bench run --trace` and give that"
    )


def drafting_name(table: StepCostTable, method: str, given: str | None = None) -> str | None:
    """Find the drafter of a table that is of this method; None if it has none.

    `given` is taken instead, where the user named one.

    Raises:
        ConfigError: The table does not have the given one.
    """
    if given is not None and given not in table.drafting:
        raise ConfigError(
            f"the cost table has no drafter {given!r}; it has "
            f"{', '.join(map(repr, table.drafting)) or 'none'}"
        )
    if given is not None:
        return given
    for name in table.drafting:
        if name.partition(",")[0].partition(" ")[0] == method:
            return name
    return None
