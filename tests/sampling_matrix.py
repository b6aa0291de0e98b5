"""Which test proves which sampling option under which rule: `python -m tests.sampling_matrix`.

A test says `@proves("matching", "top_k", "top_p")`; the page is made from these decorators, which
are read from the source, so that nothing has to be imported or run.
"""

import ast
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, TypeVar

from outrider.core.request import SamplingParams

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "sampling-matrix.md"
Rule = Literal["plain", "matching", "rejection"]
RULES: Final[tuple[Rule, ...]] = ("plain", "matching", "rejection")
# What is not a field of SamplingParams but ends or shapes an output as well.
MORE: Final = ("context limit", "stream", "abort")

Test = TypeVar("Test", bound=Callable[..., None])


def proves(rule: Rule, *options: str) -> Callable[[Test], Test]:
    """Note that the decorated test proves `options` under `rule`; literals only."""
    assert rule in RULES
    unknown = set(options) - set(all_options())
    assert not unknown, f"no such option: {unknown}"
    return lambda test: test


def all_options() -> list[str]:
    """Every field of `SamplingParams` and what else is promised, in order."""
    return [field.name for field in dataclasses.fields(SamplingParams)] + list(MORE)


def proofs() -> dict[tuple[str, str], list[str]]:
    """From (option, rule) to the tests that prove it."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted((ROOT / "tests" / "e2e").glob("test_lossless_*.py")):
        for test, rule, options in _decorated(path):
            for option in options:
                found.setdefault((option, rule), []).append(test)
    return found


def _decorated(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.FunctionDef):
            continue
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "proves":
                rule, *options = [ast.literal_eval(argument) for argument in call.args]
                yield f"{path.stem}.{node.name}", rule, options


def render() -> str:
    """Give the page."""
    found = proofs()
    numbers = {
        test: i for i, test in enumerate(sorted({t for ts in found.values() for t in ts}), 1)
    }
    lines = [
        "# Sampling options under speculation",
        "",
        "Every option works the same with and without speculation. Each cell names the tests that",
        "prove it, listed below: *plain* against an independent reference, *matching* token for",
        "token, *rejection* in distribution. Written by `python -m tests.sampling_matrix`.",
        "",
        "| option | plain | matching | rejection |",
        "|---|---|---|---|",
    ]
    for option in all_options():
        cells = [
            ", ".join(f"[{numbers[test]}]" for test in found.get((option, rule), [])) or "-"
            for rule in RULES
        ]
        name = option if option in MORE else f"`{option}`"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append("")
    for test, number in numbers.items():
        file, _, function = test.partition(".")
        lines.append(f"- [{number}] `tests/e2e/{file}.py::{function}`")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), "utf-8")
