"""`outrider generate --compare`: the same prompt plain and speculative, on the same weights."""

import argparse
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from outrider.analysis.closed_loop import Completed, Job, jobs_of, run_jobs
from outrider.analysis.divergence import Divergence, find_divergence
from outrider.analysis.environment import environment
from outrider.analysis.numbers import acceptance_record
from outrider.analysis.tables import table
from outrider.cli.console import DIM, RESET, Console
from outrider.cli.demo import DEMO_PROMPT, WARM_UP_PROMPT
from outrider.cli.inputs import prompts_of
from outrider.cli.loading import load, method_of, speculation_record
from outrider.cli.options import engine_options, sampling_params, speculative_config
from outrider.cli.paint import TokenPainter, legend
from outrider.core.acceptance import Acceptance
from outrider.core.request import SamplingParams
from outrider.engine.llm import LLM
from outrider.engine.report import Delta
from outrider.errors import ConfigError

CHECK_FAILED = 1
_WARM_UP_TOKENS = 4


@dataclass(slots=True)
class Side:
    """One of the two engines and what it did."""

    name: str
    llm: LLM
    outputs: list[Completed] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens of all outputs."""
        return sum(one.sequence.num_output for one in self.outputs)

    @property
    def seconds(self) -> float:
        """Time of all outputs, prompts included."""
        return sum(one.seconds for one in self.outputs)

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.num_tokens / self.seconds if self.seconds else 0.0

    @property
    def acceptance(self) -> Acceptance:
        """Counters over all outputs."""
        counts = Acceptance()
        for one in self.outputs:
            counts.add(one.acceptance)
        return counts

    def record(self) -> dict[str, Any]:
        """Give the numbers for JSON."""
        return {
            "output_tokens": self.num_tokens,
            "seconds": self.seconds,
            "output_throughput": self.speed,
            "texts": [one.sequence.text for one in self.outputs],
            **acceptance_record(self.acceptance),
        }


def run_compare(args: argparse.Namespace) -> int:
    """Run both and report; 1 if the outputs differ by more than rounding."""
    is_demo = args.prompt is None and not args.prompt_file
    params = sampling_params(args)
    speculative = speculative_config(args)
    if speculative is None:
        raise ConfigError("--compare needs a drafter; leave --draft off out")
    if params.n > 1:
        raise ConfigError("--compare runs one continuation per prompt; leave --n out")
    rows = prompts_of(args, fallback=DEMO_PROMPT)
    console = Console(no_color=args.no_color)
    options = engine_options(args) | {"prefix_caching": False}
    drafting = load(args, console, options, speculative)
    sides = (
        Side("plain", drafting.sibling()),
        Side(f"speculative ({method_of(drafting)})", drafting),
    )
    if is_demo:
        console.print(f"{_dim('── prompt', console)}\n{DEMO_PROMPT}\n")
    jobs = jobs_of(drafting, rows, params, raw=args.raw)
    _run(sides, jobs, console, shows_text=len(jobs) == 1 and not args.json)
    divergences = _divergences(sides, params)
    for line in _lines(sides, divergences):
        console.print(line)
    if args.json:
        console.print_json(_record(args, sides, divergences))
    failed = any(each.kind == "error" for each in divergences or ())
    return CHECK_FAILED if failed else 0


def _run(sides: tuple[Side, Side], jobs: list[Job], console: Console, *, shows_text: bool) -> None:
    """Warm each side up, then run it; with several prompts the sides take turns."""
    if shows_text:
        for side in sides:
            _warm_up(side.llm)
            console.print(f"{_dim(f'── {side.name}', console)}")
            if console.has_colour and method_of(side.llm):
                console.print(legend(method_of(side.llm)))
            painter = TokenPainter(side.llm.tokenizer, jobs[0].prompt, jobs[0].params)
            show = partial(_show, console, painter)
            side.outputs += run_jobs(side.llm, jobs, on_delta=show)
            console.print("\n")
        return
    for side in sides:
        _warm_up(side.llm)
    started = time.monotonic()
    for number, job in enumerate(jobs):
        for side in sides if number % 2 == 0 else reversed(sides):
            side.outputs += run_jobs(side.llm, [job])
        console.progress("prompts", number + 1, len(jobs), started)


def _warm_up(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=_WARM_UP_TOKENS, ignore_eos=True)
    llm.generate(WARM_UP_PROMPT, params)


def _show(console: Console, painter: TokenPainter, delta: Delta) -> None:
    painter.show(console, delta.text, delta.tokens, delta.origins, delta.sources)


def _divergences(sides: tuple[Side, Side], params: SamplingParams) -> list[Divergence] | None:
    """Differences between the outputs; None where the rule does not promise equal tokens."""
    plain, speculative = sides
    if speculative.llm.config.verify_rule == "rejection" and not params.is_greedy:
        return None
    found = [
        find_divergence(plain.llm, ours, theirs)
        for ours, theirs in zip(plain.outputs, speculative.outputs, strict=True)
    ]
    return [each for each in found if each is not None]


def _lines(sides: tuple[Side, Side], divergences: list[Divergence] | None) -> list[str]:
    plain, speculative = sides
    rows = [["", "tokens", "seconds", "tokens/s"]]
    rows += [
        [side.name, str(side.num_tokens), f"{side.seconds:.2f}", f"{side.speed:.1f}"]
        for side in sides
    ]
    counts = speculative.acceptance
    lines = table(rows)
    lines.append(f"speedup            {speculative.speed / plain.speed:.2f}x")
    lines.append(f"acceptance length  {counts.acceptance_length:.2f} tokens per round")
    if counts.verified:
        lines.append(f"acceptance rate    {counts.acceptance_rate:.0%} of verified draft tokens")
    if len(counts.by_source) > 1:
        drafted = sorted(counts.by_source.items())
        parts = [f"{name} {of.accepted} ({of.accept_rate:.0%})" for name, of in drafted]
        lines.append(f"accepted from      {', '.join(parts)}")
    if divergences is None:
        lines.append("tokens             not compared: rejection promises equal distributions")
    elif not divergences:
        lines.append("tokens             identical")
    else:
        lines += [f"tokens differ      {each.describe()}" for each in divergences]
    return lines


def _record(
    args: argparse.Namespace, sides: tuple[Side, Side], divergences: list[Divergence] | None
) -> dict[str, Any]:
    plain, speculative = sides
    return {
        "model": args.model,
        "speculative_config": speculation_record(speculative.llm),
        "plain": plain.record(),
        "speculative": speculative.record(),
        "speedup": speculative.speed / plain.speed if plain.speed else None,
        "identical": None if divergences is None else not divergences,
        "divergences": [each.record() for each in divergences or ()],
        "environment": environment(["outrider", *sys.argv[1:]]),
    }


def _dim(text: str, console: Console) -> str:
    return f"{DIM}{text}{RESET}" if console.has_colour else text
