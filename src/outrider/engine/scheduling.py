"""Length policy, cost table and estimator of an engine, from what was asked for and what is there.

Nothing here can stop an engine that the user did not configure by hand: a table that was found or
measured and is no good is replaced, by a new measurement or by the fixed policy, with one warning.
A file that the user named is refused if it does not fit.
"""

import hashlib
import json
import logging
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from outrider.core.calibration import Calibration
from outrider.core.paths import expanded
from outrider.core.step_cost import BatchTimings, MeasuredOn, StepCostTable
from outrider.engine.config import EngineConfig
from outrider.errors import ConfigError
from outrider.schedule.confidence import Estimator
from outrider.schedule.cost import StepCost, faults_of
from outrider.schedule.lengths import Fixed, LengthPolicy, Off, Threshold, Throughput

logger = logging.getLogger(__name__)

NO_BOUND: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What an engine decides verify lengths with."""

    lengths: LengthPolicy
    cost: StepCost | None = None
    estimator: Estimator | None = None


@dataclass(frozen=True, slots=True)
class CalibratedFor:
    """What a calibration must fit, and the one that came with the drafter."""

    model: str
    drafter: str
    max_draft_len: int
    shipped: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the scheduling of one engine must fit; `measure` makes tables when one is needed."""

    measured_on: MeasuredOn
    drafter: str
    max_draft_len: int
    rows: tuple[int, ...]
    profiles: Path
    """Folder of tables that were measured before."""
    measure: Callable[[], StepCostTable]
    measure_drafting: Callable[[], tuple[BatchTimings, BatchTimings]]
    calibration: Path | None = None
    """File shipped with the drafter."""

    @property
    def calibrated_for(self) -> CalibratedFor:
        """What a calibration must fit."""
        return CalibratedFor(
            self.measured_on.model, self.drafter, self.max_draft_len, self.calibration
        )


def scheduling(config: EngineConfig, around: Surroundings | None) -> Scheduling:
    """Decide; `around` is None where nothing drafts.

    Raises:
        ConfigError: A file named in the config cannot be used here.
    """
    policy = config.length_policy
    if around is None or policy in ("off", "fixed"):
        return Scheduling(Off() if policy == "off" else Fixed(NO_BOUND))
    estimator = Estimator(calibration_in_use(config, around.calibrated_for))
    if policy == "threshold":
        return Scheduling(Threshold(config.length_threshold), estimator=estimator)
    table = _table(config, around)
    fatal = [fault.sentence for fault in faults_of(table) if fault.is_fatal]
    if fatal:
        if config.cost_table is not None:
            raise ConfigError(f"{config.cost_table} would mislead: {fatal[0]}; {_AGAIN}")
        logger.warning(
            "the step costs measured here would mislead (%s), so all that is drafted is verified; "
            "run `outrider profile` while the machine is quiet",
            fatal[0],
        )
        return Scheduling(Fixed(NO_BOUND))
    cost = StepCost(table, around.drafter)
    return Scheduling(Throughput(cost), cost, estimator)


_AGAIN = "measure again with `outrider profile`"


def _table(config: EngineConfig, around: Surroundings) -> StepCostTable:
    if config.cost_table is not None:
        table = StepCostTable.from_json(read_text(config.cost_table), config.cost_table)
        if table.measured_on != around.measured_on:
            difference = _difference(table, around)
            raise ConfigError(f"{config.cost_table} was measured with {difference}; {_AGAIN}")
        return table
    return cached_table(around)


def cached_table(around: Surroundings) -> StepCostTable:
    """Give the table measured before on this machine, or measure; keep what was measured."""
    path = table_path(around)
    table = _found(path, around)
    if table is None:
        table = _measured(around)
    elif around.drafter not in table.drafting:
        host, drafting = around.measure_drafting()
        table = replace(table, host=host, drafting={**table.drafting, around.drafter: drafting})
    else:
        return table
    # What was disturbed is measured again next time.
    if not _is_disturbed(table):
        save_table(table, path)
    return table


def _measured(around: Surroundings) -> StepCostTable:
    """Measure; once more if other work disturbed it."""
    table = around.measure()
    return around.measure() if _is_disturbed(table) else table


def _is_disturbed(table: StepCostTable) -> bool:
    return any(fault.is_fatal for fault in faults_of(table))


def table_path(around: Surroundings) -> Path:
    """Give the place of the table for these surroundings."""
    key = json.dumps(asdict(around.measured_on), sort_keys=True)
    return around.profiles / f"{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"


def save_table(table: StepCostTable, path: Path) -> None:
    """Write a table; a cache that cannot be written is a warning."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8"
        ) as part:
            part.write(table.to_json())
        Path(part.name).replace(path)
    except OSError as error:
        logger.warning("the step costs could not be kept (%s); they are measured anew", error)


def _found(path: Path, around: Surroundings) -> StepCostTable | None:
    if not path.is_file():
        return None
    try:
        table = StepCostTable.from_json(read_text(str(path)), str(path))
    except ConfigError as error:
        logger.warning("%s; it is measured anew", error)
        return None
    fits = table.measured_on == around.measured_on and table.rows[-1] >= around.rows[-1]
    return table if fits else None


def _difference(table: StepCostTable, around: Surroundings) -> str:
    theirs, ours = asdict(table.measured_on), asdict(around.measured_on)
    return ", ".join(
        f"{name} {theirs[name]!r} instead of {ours[name]!r}"
        for name in ours
        if theirs[name] != ours[name]
    )


def calibration_in_use(config: EngineConfig, around: CalibratedFor) -> Calibration | None:
    """Give the calibration that the user named, else the one found beside the drafter.

    Raises:
        ConfigError: The one that the user named cannot be used.
    """
    if config.calibration is not None:
        return _fitting(config.calibration, around)
    if around.shipped is None:
        return None
    try:
        return _fitting(str(around.shipped), around)
    except ConfigError as error:
        logger.warning("%s; confidences are taken as the drafter gives them", error)
        return None


def _fitting(path: str, around: CalibratedFor) -> Calibration | None:
    """Read a calibration; None, with a warning, where drafts are longer than it knows."""
    found = Calibration.from_json(read_text(path), path)
    if (_hash(found.model), _kin(found.drafter)) != (_hash(around.model), _kin(around.drafter)):
        raise ConfigError(
            f"{path} is for {found.drafter} on {found.model}, not for {around.drafter} on "
            f"{around.model}; make one with `outrider calibrate`"
        )
    if found.num_positions < around.max_draft_len:
        logger.warning(
            "%s has %d positions, but drafts have up to %d tokens; confidences are taken as the "
            "drafter gives them and corrected as tokens are verified",
            path,
            found.num_positions,
            around.max_draft_len,
        )
        return None
    return found


def _hash(model: str) -> str:
    """The part of a model's name that does not depend on what its file is called."""
    return model.rsplit(" ", 1)[-1]


def _kin(drafter: str) -> str:
    """The part of a drafter's name that does not depend on the length of its drafts."""
    return drafter.rsplit(", up to ", 1)[0]


def read_text(path: str) -> str:
    """Read a file the user named.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return expanded(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); check the path") from error
