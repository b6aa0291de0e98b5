"""One call of `outrider certify`."""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from outrider.analysis.certify import (
    Certificate,
    CertifySetting,
    certify,
    overall,
    tolerance_record,
)
from outrider.analysis.certify_checks import Check, CheckResult, Ground, check_lines, run_checks
from outrider.analysis.environment import environment
from outrider.analysis.prompts import load_prompts
from outrider.analysis.render import certificate_lines
from outrider.cli.console import Console
from outrider.cli.loading import load, require_drafter, speculation_record
from outrider.cli.options import NO_DRAFT, engine_options, seats, speculative_config
from outrider.drafters.config import SpeculativeConfig
from outrider.engine.llm import LLM
from outrider.errors import ConfigError
from outrider.testing.scripted import random_drafter

CHECK_FAILED = 1
RANDOM = "random"
RANDOM_DRAFT_LEN = 4


@dataclass(frozen=True, slots=True)
class Choice:
    """A drafter to certify: of the catalogue, or None for the random one."""

    speculative: SpeculativeConfig | None
    draft_len: int

    def engine(self, plain: LLM, **options: Any) -> LLM:
        """Let it draft for the model of `plain`, with `options` of its config replaced."""
        if self.speculative is not None:
            return plain.sibling(speculative_config=self.speculative, **options)
        drafter = random_drafter(self.draft_len, plain.spec.vocab_size)
        return plain.sibling(drafter=drafter, **options)


def run_certify(args: argparse.Namespace) -> int:
    """Certify and report; 1 if an output differs by more than rounding, or a check fails."""
    choices = chosen(args)
    checks: list[Check] = list(dict.fromkeys(args.checks))
    compares = any(check != "rejection-fit" for check in checks)
    if compares and args.verify_rule == "rejection" and 0 not in args.temperatures:
        raise ConfigError(
            "the rejection rule promises equal tokens at temperature 0 only; add 0 to --temperature"
        )
    setting = CertifySetting(
        temperatures=tuple(args.temperatures),
        concurrencies=tuple(args.concurrencies),
        max_tokens=args.max_tokens,
        seed=args.seed,
        raw=args.raw,
    )
    rows = load_prompts(args.prompts, limit=args.limit)
    for choice in choices.values():
        require_drafter(choice.speculative)
    console = Console(no_color=args.no_color)
    options = engine_options(args) | seats(max(args.concurrencies))
    plain = load(args, console, options, None)
    drafting = {name: choice.engine(plain) for name, choice in choices.items()}
    makers = {name: partial(choice.engine, plain) for name, choice in choices.items()}
    started = time.monotonic()

    def show(what: str, done: int, total: int) -> None:
        console.progress(what, done, total, started)

    certificates: dict[str, Certificate] = {}
    if "tokens" in checks:
        certificates = certify(plain, drafting, rows, setting, show)
    ground = Ground(
        plain=plain, drafting=makers, rows=rows, setting=setting, fit_tokens=args.fit_tokens
    )
    results = run_checks(checks, ground, show)
    console.clear()
    _print(console, certificates)
    _print_checks(console, results, several=len(choices) > 1)
    has_errors = any(each.total.errors for each in certificates.values())
    passed = not has_errors and all(each.passed for each in results)
    if args.json:
        console.print_json(
            {
                "model": args.model,
                "verify_rule": args.verify_rule,
                "backend": plain.backend,
                "tolerance": tolerance_record(plain.precision),
                "setting": asdict(setting),
                **_record(certificates, drafting),
                "passed": passed,
                **({"checks": [each.record() for each in results]} if results else {}),
                "seconds": time.monotonic() - started,
                "environment": environment(["outrider", *sys.argv[1:]]),
            }
        )
    return 0 if passed else CHECK_FAILED


def chosen(args: argparse.Namespace) -> dict[str, Choice]:
    """Read which drafters to certify, by name.

    Raises:
        ConfigError: Drafting is off, or the options contradict each other.
    """
    names = args.draft or [None]
    if len(names) > 1 and args.draft_model is not None:
        raise ConfigError("--draft-model belongs to one drafter; name a single one with --draft")
    choices = {}
    for name in names:
        if name == NO_DRAFT:
            raise ConfigError("there is nothing to certify with --draft off; name a drafter")
        if name == RANDOM:
            if args.draft_model is not None or args.speculative_config is not None:
                raise ConfigError(
                    "--draft random needs no model and no config; leave --draft-model and "
                    "--speculative-config out"
                )
            choices[RANDOM] = Choice(None, args.draft_len or RANDOM_DRAFT_LEN)
            continue
        config = speculative_config(argparse.Namespace(**{**vars(args), "draft": name}))
        assert config is not None, "only `off` means none"
        choices[name or config.method] = Choice(config, 0)
    return choices


def _print(console: Console, certificates: Mapping[str, Certificate]) -> None:
    for name, certificate in certificates.items():
        if len(certificates) > 1:
            console.print(f"== {name}")
        for line in certificate_lines(certificate):
            console.print(line)
    if len(certificates) > 1:
        console.print(f"verdict of all: {overall(certificates.values())}")


def _print_checks(console: Console, results: Sequence[CheckResult], *, several: bool) -> None:
    for result in results:
        if several:
            console.print(f"== {result.drafter}")
        for line in check_lines(result):
            console.print(line)


def _record(certificates: Mapping[str, Certificate], drafting: Mapping[str, LLM]) -> dict[str, Any]:
    return {
        "verdict": overall(certificates.values()) if certificates else None,
        "drafters": {
            name: {"speculative_config": speculation_record(drafting[name]), **each.record()}
            for name, each in certificates.items()
        },
    }
