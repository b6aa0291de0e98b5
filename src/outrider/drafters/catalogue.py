"""Every drafter by name. Adding one is a file and a line here."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from outrider.drafters import combined, draft_model, ngram, ngram_table, suffix, trained_block
from outrider.drafters.base import Drafter, DrafterSetting
from outrider.errors import ConfigError, unknown_name

DrafterFactory = Callable[[DrafterSetting], Drafter]


def _combined(setting: DrafterSetting) -> Drafter:
    """Build the combined drafter around the network that is named beside it, if one is."""
    options = combined.located(setting.options)
    setting = replace(setting, options=options)
    if options.model is None:
        return combined.build(setting, None)
    own = replace(options, method=options.network, num_speculative_tokens=None)
    return combined.build(setting, drafter_factory(options.network)(replace(setting, options=own)))


DRAFTERS: Final[Mapping[str, DrafterFactory]] = MappingProxyType(
    {
        "ngram": ngram.build,
        "suffix": suffix.build,
        "ngram-table": ngram_table.build,
        "draft-model": draft_model.build,
        "dflash": trained_block.build,
        "dspark": trained_block.build,
        "combined": _combined,
    }
)


def drafter_factory(method: str) -> DrafterFactory:
    """Look a drafter up.

    Raises:
        ConfigError: There is none of this name; the message lists what there is.
    """
    if method not in DRAFTERS:
        raise ConfigError(unknown_name("speculative method", method, DRAFTERS))
    return DRAFTERS[method]
