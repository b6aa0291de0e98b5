"""Records of `eval` and `bench run` as evidence for a recommendation."""

from itertools import chain, repeat
from typing import Any, Final

from outrider.analysis.estimate import measured, read_record
from outrider.analysis.recommend import CountedEvidence
from outrider.analysis.whatif_drafters import drafting_name
from outrider.core.step_cost import StepCostTable
from outrider.errors import ConfigError

UNSAID: Final = "an unnamed drafter"


def counted(
    path: str,
    costs: StepCostTable,
    drafting: str | None,
    lengths: tuple[float | None, float | None],
) -> CountedEvidence:
    """Read a record; `lengths` of prompt and output stand in where it says none.

    Raises:
        ConfigError: It is no such record, its drafter has no cost, or lengths are missing.
    """
    record = read_record(path)
    found = measured(record, path)
    config = found.speculative_config
    drafter = UNSAID if config is None else str(config["method"])
    name = drafting_name(costs, drafter, drafting)
    if name is None or name not in costs.drafting:
        raise ConfigError(
            f"the cost table knows no drafter like {drafter!r}; it has "
            f"{', '.join(map(repr, costs.drafting)) or 'none'}: name one with --drafting"
        )
    prompt, output = (
        own if own is not None else known
        for own, known in zip(lengths, found.lengths or (None, None), strict=True)
    )
    if prompt is None or output is None:
        raise ConfigError(
            f"{path} does not say how long prompts and outputs are; add --prompt-len and "
            "--output-len"
        )
    if not (0 <= prompt < float("inf") and 1 <= output < float("inf")):
        raise ConfigError(
            f"prompts of {prompt} and outputs of {output} tokens cannot be; outputs have 1 or more"
        )
    longest = found.model.max_draft_len
    assert longest is not None
    accepted_at, rounds = _by_prompt(record, longest)
    return CountedEvidence(
        drafter, config, found, costs, name, (prompt, output), longest, accepted_at, rounds
    )


def _by_prompt(
    record: dict[str, Any], longest: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Counts of each prompt, where the record has them."""
    runs = record.get("runs", [])
    prompts = runs[0].get("prompts", []) if runs else []
    if not prompts or not all("accepted_at" in each for each in prompts):
        return (), ()
    padded = (chain(each["accepted_at"], repeat(0)) for each in prompts)
    accepted = tuple(tuple(next(own) for _ in range(longest)) for own in padded)
    return accepted, tuple(int(each["rounds"]) for each in prompts)
