"""What drafting would be worth, from records of earlier runs or from plain numbers.

Acceptance comes from the JSON of `outrider eval` or `outrider bench run`, from rates by position,
or from one constant rate; costs come from a step cost table, or are constants in units of a plain
step.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from outrider.analysis.benefit import (
    AcceptModel,
    ConstantCost,
    MeasuredRates,
    Outlook,
    Regime,
)
from outrider.analysis.plots import Panel, Series, figure
from outrider.analysis.tables import table
from outrider.analysis.whatif_trace import recorded
from outrider.core.acceptance import Acceptance
from outrider.core.paths import expanded
from outrider.core.step_cost import FORMAT as COST_FORMAT
from outrider.core.step_cost import StepCostTable
from outrider.errors import ConfigError
from outrider.schedule.cost import StepCost, faults_of


@dataclass(frozen=True, slots=True)
class Measured:
    """Acceptance of one drafter on one set of prompts, and the speedup measured with it if any."""

    source: str
    domain: str | None
    model: AcceptModel
    speculative_config: Mapping[str, Any] | None
    speedup: float | None = None
    concurrency: int | None = None
    lengths: tuple[float, float] | None = None
    """Mean tokens of a prompt and of an output, where the record says them."""


def read_record(path: str | Path) -> dict[str, Any]:
    """Read a JSON file, or the last line of a file that a command's output was saved to.

    Raises:
        ConfigError: There is no such file, or it holds no JSON object.
    """
    try:
        text = expanded(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error})") from error
    lines = text.strip().splitlines()
    if not lines:
        raise ConfigError(f"{path} is empty; it should hold the JSON of an outrider command")
    for part in (text, lines[-1]):
        try:
            record = json.loads(part)
        except ValueError:
            continue
        if isinstance(record, dict):
            return record
    raise ConfigError(f"{path}, line {len(lines)}: no JSON object; save what --json prints")


def measured(record: Mapping[str, Any], source: str, domain: str | None = None) -> Measured:
    """Read acceptance out of the record of `outrider eval` or `outrider bench run`.

    Raises:
        ConfigError: It is neither, has no such domain, or no draft was verified in it.
    """
    if record.get("format") == COST_FORMAT:
        raise ConfigError(f"{source} is a step cost table; give it to --profile")
    is_bench = "speculative" in record and "plain" in record
    if not is_bench and not ("runs" in record and "mean_accept_length" in record):
        raise ConfigError(
            f"{source} is no record of `outrider eval`, no trace, and none of a paired "
            "`outrider bench run`"
        )
    part = record if is_bench else record["runs"][0]
    if domain is not None:
        domains = part["domains"]
        if domain not in domains:
            raise ConfigError(
                f"{source} has no domain {domain!r}; it has {', '.join(sorted(domains))}"
            )
        part = domains[domain]
    return Measured(
        source,
        domain,
        _rates(part["speculative"] if is_bench else part, source),
        record["speculative_config"],
        part["speedup"] if is_bench else None,
        record["setting"]["concurrency"],
        _lengths(part["plain"]) if is_bench else None,
    )


def _lengths(record: Mapping[str, Any]) -> tuple[float, float] | None:
    completed = record.get("completed")
    if not completed:
        return None
    return record["total_input_tokens"] / completed, record["total_output_tokens"] / completed


def measured_in_trace(lines: Iterable[str], source: str) -> Measured:
    """Read acceptance and lengths out of a trace; rounds that end a prompt are left out.

    Raises:
        ConfigError: It cannot be read, or no draft was verified in it.
    """
    record = recorded(lines, source)
    counts = Acceptance()
    for each in chain.from_iterable(record.rounds):
        if each.num_output:
            counts.record(
                drafted=each.drafted,
                verified=each.verified,
                accepted=each.accepted,
                delivered=each.delivered,
            )
    found = {
        "accepted_at": counts.accepted_at,
        "verified_at": counts.verified_at,
        "rounds": counts.rounds,
    }
    return Measured(
        source,
        None,
        _rates(found, source),
        None,
        lengths=(
            fmean(len(request.prompt) for request in record.requests),
            fmean(len(request.output) for request in record.requests),
        ),
    )


def _rates(record: Mapping[str, Any], source: str) -> MeasuredRates:
    try:
        accepted, verified = record["accepted_at"], record["verified_at"]
        rounds = record["rounds"]
    except KeyError as error:
        raise ConfigError(
            f"{source} lacks {error}; it was written by an older release, measure again"
        ) from error
    if not rounds or not verified:
        raise ConfigError(f"{source}: no draft was verified there, so nothing can be estimated")
    return MeasuredRates.from_counts(accepted, verified, rounds)


LOW, HIGH = "low batch, v = 1", "high batch, v = rows"


def constant_regimes(
    *,
    draft_per_token: float = 0.0,
    draft_per_round: float = 0.0,
    per_row: float | None = None,
    verify: Sequence[float] | None = None,
) -> list[Regime]:
    """Make the regime of the costs given; without a verify cost, the two that bound it.

    A step is bound by memory at a low batch, where rows are free, and by arithmetic at a high one,
    where it costs its rows.

    Raises:
        ConfigError: A cost is out of range.
    """
    drafting = ConstantCost(draft_per_token=draft_per_token, draft_per_round=draft_per_round)
    if verify is not None:
        cost = replace(drafting, verify=tuple(verify))
        return [Regime("measured verify costs", cost, len(verify))]
    if per_row is not None:
        return [Regime(f"{per_row:g} per row", replace(drafting, per_row=per_row))]
    return [
        Regime(LOW, drafting),
        Regime(HIGH, replace(drafting, per_row=1.0)),
    ]


SHIPPED_COSTS: Final = Path(__file__).resolve().parent.parent / "assets" / "costs"
"""Tables of other machines, made from published figures; each says where they are from."""


def shipped_costs() -> list[str]:
    """Name the tables that come with the package."""
    return sorted(path.stem for path in SHIPPED_COSTS.glob("*.json"))


def read_cost_table(path: str | Path) -> StepCostTable:
    """Read a table that `outrider profile` wrote, or one that is shipped, by its name.

    Raises:
        ConfigError: It cannot be read, is damaged, or has a fault that makes it useless.
    """
    file = expanded(path)
    if str(path) in shipped_costs() and not file.exists():
        file = SHIPPED_COSTS / f"{path}.json"
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cost table {path} cannot be read ({error}); make one with `outrider profile --out`, "
            f"or name a shipped one: {', '.join(shipped_costs())}"
        ) from error
    costs = StepCostTable.from_json(text, str(path))
    for fault in faults_of(costs):
        if fault.is_fatal:
            raise ConfigError(f"{path} cannot be used: {fault.sentence}; measure again")
    return costs


def table_regimes(
    costs: StepCostTable,
    batches: Sequence[int],
    *,
    context_len: int,
    drafter: str | None = None,
    lengths: tuple[float, float] | None = None,
) -> list[Regime]:
    """Make one regime per number of requests, as far as the table was measured.

    A round of R requests that verify r rows each costs drafting(R) + forward(R r) + host(R)
    seconds, a plain step forward(R) + host(R). Without `drafter` the table's only one is taken.
    `lengths`, of a prompt and an output, charge for reading prompts: forward(prompt) each.

    Raises:
        ConfigError: The table knows no such drafter, or several and none is named.
    """
    if drafter is None and len(costs.drafting) == 1:
        drafter = next(iter(costs.drafting))
    if drafter not in costs.drafting:
        raise ConfigError(
            f"the step cost table has no drafter {drafter!r}; it has "
            f"{', '.join(map(repr, sorted(costs.drafting))) or 'none'}"
        )
    cost = StepCost(costs, drafter)
    return [
        Regime(
            f"{batch} at a time",
            partial(_round_cost, cost, batch, context_len),
            max(0, cost.max_rows // batch - 1),
            _reading(cost, batch, lengths),
        )
        for batch in batches
    ]


def _reading(cost: StepCost, batch: int, lengths: tuple[float, float] | None) -> float:
    """Plain steps per output token that reading takes: a step gives a token to each of a batch."""
    if lengths is None:
        return 0.0
    prompt, output = lengths
    rows, context = round(prompt), prompt + output / 2
    seconds = cost.forward_curve(prompt / 2, rows)[rows]
    return batch * seconds / (max(1.0, output - 1) * cost.step(batch, batch, context))


def _round_cost(cost: StepCost, batch: int, context_len: int, draft_len: int, rows: float) -> float:
    """Cost of a round in plain steps; a draft costs the same whatever its length."""
    assert draft_len > 0
    most = math.ceil(rows * batch)
    curve = cost.forward_curve(context_len, most)
    below = math.floor(rows * batch)
    forward = curve[below] + (rows * batch - below) * (curve[most] - curve[below])
    plain = cost.step(batch, batch, context_len)
    return (cost.drafting(batch) + forward + cost.host(batch)) / plain


def estimate_record(outlooks: Sequence[Outlook]) -> dict[str, Any]:
    """Give everything as one JSON object."""
    return {
        "regimes": [
            {
                "regime": one.regime,
                "best_draft_len": one.best_draft_len,
                "best_speedup": one.best_speedup,
                "break_even_rate": one.break_even_rate,
                "speedups": list(one.speedups),
                "break_even_rates": list(one.break_even),
            }
            for one in outlooks
        ]
    }


def estimate_lines(outlooks: Sequence[Outlook]) -> list[str]:
    """Give speedups by draft length, and what is best."""
    longest = max(len(one.speedups) for one in outlooks)
    rows = [["draft length", *(one.regime for one in outlooks)]]
    rows += [
        [str(length), *(_cell(one.speedups, length) for one in outlooks)]
        for length in range(longest)
    ]
    best = [["", "best draft length", "speedup", "break-even rate"]]
    for one in outlooks:
        rate = one.break_even_rate
        shown = "none is enough" if rate is None else f"{rate:.3f}"
        best.append([one.regime, str(one.best_draft_len), f"{one.best_speedup:.3f}", shown])
    return [*table(rows), "", *table(best)]


def _cell(values: Sequence[float], index: int) -> str:
    return f"{values[index]:.3f}" if index < len(values) else "-"


def estimate_figure(outlooks: Sequence[Outlook]) -> str:
    """Draw speedup over draft length, one line per regime, as SVG."""
    series = [
        Series(one.regime, one.speedups, [float(n) for n in range(len(one.speedups))])
        for one in outlooks
    ]
    panel = Panel(
        title="Expected speedup over plain decoding",
        x_label="draft tokens per round",
        y_label="speedup",
        series=series,
        mark=1.0,
    )
    return figure([panel])
