"""Log, costs and scenarios of `outrider whatif`, from its options."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from outrider.analysis.estimate import read_cost_table
from outrider.analysis.whatif import PLAIN, NewDrafter, Scenario
from outrider.analysis.whatif_clock import LoggedRequest
from outrider.analysis.whatif_drafters import copying_drafter, drafting_name
from outrider.analysis.whatif_log import is_trace, read_log
from outrider.analysis.whatif_trace import TraceDrafter, fitted, recorded
from outrider.cli.options import config_of_json
from outrider.core.paths import expanded
from outrider.core.step_cost import StepCostTable
from outrider.drafters.config import SpeculativeConfig
from outrider.errors import ConfigError
from outrider.models.checkpoint import Checkpoint, open_checkpoint
from outrider.models.tokenizer import Tokenizer
from outrider.schedule.cost import StepCost

DEFAULT_DRAFTS = ("ngram", "suffix")


@dataclass(slots=True)
class Case:
    """What is simulated, and what should be said about it."""

    log: Sequence[LoggedRequest]
    scenarios: list[Scenario]
    model: str | None
    costs_of: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    fit: dict[str, float | None] | None = None


def case_of(args: argparse.Namespace) -> Case:
    """Read everything.

    Raises:
        ConfigError: Something cannot be read, or does not fit together.
    """
    table = read_cost_table(args.cost_table)
    case = _trace_case(args, table) if is_trace(args.log) else _log_case(args, table)
    where = table.measured_on
    log = case.model or "a model it does not name"
    case.notes.insert(0, f"log of {log}, costs of {where.model} on {where.machine}")
    return case


def _trace_case(args: argparse.Namespace, table: StepCostTable) -> Case:
    if args.draft is not None:
        raise ConfigError(
            "a trace tells of the drafter it was recorded with alone; leave --draft out, or give a "
            "log of prompts and outputs"
        )
    with expanded(args.log).open(encoding="utf-8-sig") as lines:
        record = recorded(lines, args.log)
    header = record.header
    if args.model is not None and args.model != header.model:
        raise ConfigError(
            f"{args.log}, line 1: a trace of {header.model!r}, not of {args.model!r}; leave "
            "--model out or name the right trace"
        )
    name = drafting_name(table, header.drafter or "", args.drafting)
    notes: list[str] = []
    fit = None
    if args.fit:
        found = fitted(table, name, record.steps)
        name, table = name or "", found.table
        fit = {"forward": found.rest, "drafting": found.drafting}
        notes.append(f"the trace's steps took {found.rest:.3f} times what the table says")
    elif name is None:
        raise ConfigError(
            f"the cost table knows no drafter like {header.drafter!r}; it has "
            f"{', '.join(map(repr, table.drafting)) or 'none'}: name one with --drafting, or take "
            "the trace's own times with --fit"
        )
    if record.num_cut:
        notes.append(
            f"{record.num_cut} rounds were cut while all held: record with --length-policy fixed"
        )
    cost = StepCost(table, name)

    def new(length: int) -> NewDrafter:
        return lambda served: TraceDrafter(record, served, length)

    drafters = {header.drafter or "recorded": (new, cost)}
    lengths = sorted({min(length, header.max_draft_len) for length in args.lengths})
    return Case(
        record.requests,
        _scenarios(args, drafters, lengths, StepCost(table)),
        header.model,
        asdict(table.measured_on),
        notes,
        fit,
    )


def _log_case(args: argparse.Namespace, table: StepCostTable) -> Case:
    if args.fit:
        raise ConfigError(
            "--fit needs the times of a trace, and a plain log has none; leave it out"
        )
    checkpoint = None if args.model is None else open_checkpoint(args.model)
    log, model = read_log(
        args.log,
        encoder=None if checkpoint is None else _Encoder(checkpoint.tokenizer, args.raw),
        vocab_size=None if checkpoint is None else checkpoint.spec.vocab_size,
    )
    if model is not None and args.model is not None and model != args.model:
        raise ConfigError(
            f"{args.log} is a log of {model!r}, not of {args.model!r}; name the right one"
        )
    notes = []
    drafters = {}
    for options in _configs(args):
        name = drafting_name(table, options.method, args.drafting)
        if name is None:
            notes.append(
                f"the cost table has no times of {options.method}: its drafts are taken as free"
            )
        new = partial(_copying, options, checkpoint)
        # What cannot be built is refused before anything runs.
        new(1)(())
        drafters[options.method] = (new, StepCost(table, name))
    return Case(
        log,
        _scenarios(args, drafters, sorted(set(args.lengths)), StepCost(table)),
        model or args.model,
        asdict(table.measured_on),
        notes,
    )


def _configs(args: argparse.Namespace) -> list[SpeculativeConfig]:
    if args.speculative_config is not None:
        if args.draft is not None:
            raise ConfigError("--speculative-config says everything; leave --draft out")
        return [config_of_json(args.speculative_config)]
    return [SpeculativeConfig(method=method) for method in args.draft or DEFAULT_DRAFTS]


def _copying(options: SpeculativeConfig, checkpoint: Checkpoint | None, length: int) -> NewDrafter:
    options = replace(options, num_speculative_tokens=length)
    return lambda _served: copying_drafter(options, checkpoint)


@dataclass(frozen=True, slots=True)
class _Encoder:
    """The tokenizer of a checkpoint, as the engine uses it."""

    tokenizer: Tokenizer
    raw: bool

    def prompt(self, text: str) -> list[int]:
        if self.raw or self.tokenizer.chat_template is None:
            return self.tokenizer.encode(text)
        return self.tokenizer.encode_chat([{"role": "user", "content": text}])

    def output(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)


def _scenarios(
    args: argparse.Namespace,
    drafters: Mapping[str, tuple[Callable[[int], NewDrafter], StepCost]],
    lengths: Sequence[int],
    bare: StepCost,
) -> list[Scenario]:
    """Plain decoding, then per drafter every fixed length, then policies at the longest."""
    scenarios = [Scenario(PLAIN, None, bare, "off")]
    for method, (new, cost) in drafters.items():
        if "fixed" in args.length_policy:
            scenarios += [Scenario(f"{method} {length}", new(length), cost) for length in lengths]
        for policy in args.length_policy:
            if policy != "fixed":
                name = f"{method} {policy}"
                scenarios.append(
                    Scenario(name, new(lengths[-1]), cost, policy, args.length_threshold)
                )
    return scenarios
