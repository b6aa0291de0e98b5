"""The pages' command lines exist: each `outrider …` is read by the real parser. Nothing is run."""

import ast
import dataclasses
import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from outrider.cli.main import build_parser
from outrider.core.request import SamplingParams
from outrider.drafters.config import SpeculativeConfig
from outrider.engine.config import EngineConfig
from tests.architecture.test_pages import split_fences
from tests.architecture.tree import PACKAGE, ROOT, pages, show

README: Final = ROOT / "README.md"
SHELL: Final = frozenset({"", "sh", "bash", "console"})
INLINE: Final = re.compile(r"`(outrider [^`\n]*)`")
OPTION: Final = re.compile(r"--[a-z][\w-]*")
# Paths below the root, the package or the tests, as pages shorten them; `a.py::test_b` names both.
MENTIONED_FILE: Final = re.compile(r"`([\w./-]+/[\w.-]+\.py)(?:::(\w+))?`")


def command_lines(page: str) -> list[str]:
    """Every `outrider …` line of the page's shell blocks, continued lines joined."""
    _, blocks = split_fences(page)
    joined = [code.replace("\\\n", " ") for language, _, code in blocks if language in SHELL]
    lines = [line.removeprefix("$ ").strip() for code in joined for line in code.splitlines()]
    return [line for line in lines if line.startswith("outrider ")]


def mentions(page: str) -> list[str]:
    """Every `outrider …` in running text, which may be shortened or hold placeholders."""
    prose, _ = split_fences(page)
    return INLINE.findall(prose)


def parses(line: str) -> bool:
    """Whether the whole line is one the command accepts."""
    argv = shlex.split(line, comments=True)[1:]
    try:
        _, extra = build_parser().parse_known_args(argv)
    except SystemExit as stop:
        return stop.code == 0
    return not extra


def help_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str | None:
    """The help of the command that `words` begin with; None if there is no such command."""
    try:
        build_parser().parse_known_args([*words, "--help"])
    except SystemExit as stop:
        return capsys.readouterr().out if stop.code == 0 else None
    return None


def unknown_parts(mention: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a mention names and the command does not have: a subcommand or options."""
    words = mention.split()[1:]
    named = [word for word in words if re.fullmatch(r"[a-z]+", word)]
    text = help_of(named, capsys)
    if text is None:
        return named
    return [option for option in OPTION.findall(mention) if option not in OPTION.findall(text)]


def missing_files(page: str) -> list[str]:
    """Python files and tests that the page names in code style and that are not there."""
    prose, _ = split_fences(page)
    return [
        f"{name}::{test}" if test else name
        for name, test in MENTIONED_FILE.findall(prose)
        if not any(_holds(base / name, test) for base in (ROOT, PACKAGE, ROOT / "tests"))
    ]


def _holds(path: Path, test: str) -> bool:
    return path.is_file() and (not test or f"def {test}(" in path.read_text("utf-8"))


@pytest.mark.parametrize("page", pages(), ids=show)
def test_mentioned_files_exist(page: Path) -> None:
    """Catches a page that points at a module or a test which was moved or renamed."""
    assert missing_files(page.read_text("utf-8")) == []


@pytest.mark.parametrize("page", pages(), ids=show)
def test_command_lines_parse(page: Path) -> None:
    """Catches an example with an option that was renamed or never existed."""
    wrong = [line for line in command_lines(page.read_text("utf-8")) if not parses(line)]
    assert not wrong


@pytest.mark.parametrize("page", pages(), ids=show)
def test_mentioned_commands_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a page that sends its reader to a command that is not there."""
    found = {each: unknown_parts(each, capsys) for each in mentions(page.read_text("utf-8"))}
    assert not {each: parts for each, parts in found.items() if parts}


def test_readme_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a command that was added and that no newcomer will find."""
    text = help_of([], capsys)
    assert text is not None
    commands = re.findall(r"^    ([a-z]+)(?: |$)", text, re.M)
    assert {"generate", "pull"} <= set(commands), text
    shown = {line.split()[1] for line in mentions(README.read_text("utf-8"))}
    assert set(commands) <= shown


def test_readme_has_the_commands_of_the_makefile() -> None:
    """Catches a quick start whose make target is gone."""
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    used = re.findall(r"\bmake ([a-z]+)", README.read_text("utf-8"))
    assert {"demo", "test"} <= set(used) <= set(targets)


def test_options_are_documented_with_their_defaults() -> None:
    """Catches an option nobody can find, and a default that was tuned in the code alone."""
    page = (ROOT / "docs" / "options.md").read_text("utf-8")
    documented = dict(re.findall(r"^\| `(\w+)` \| (?:`(.+?)`|required) \|", page, re.M))
    config = (*dataclasses.fields(EngineConfig), *dataclasses.fields(SpeculativeConfig))
    assert {each.name for each in config} == set(documented)
    for each in config:
        if each.default is not dataclasses.MISSING and each.name != "model":
            assert ast.literal_eval(documented[each.name]) == each.default, each.name


def test_sampling_options_are_documented() -> None:
    """Catches an option of requests that its page does not mention."""
    page = (ROOT / "docs" / "sampling.md").read_text("utf-8")
    names = [each.name for each in dataclasses.fields(SamplingParams)]
    assert [name for name in names if not re.search(rf"`{name}\b", page)] == []


def test_the_checks_find_what_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a check that accepts everything, or that overlooks a form of command."""
    page = "```sh\n$ outrider models  # all\noutrider pull \\\n  x\n```\n`outrider info NAME`\n"
    assert command_lines(page) == ["outrider models  # all", "outrider pull    x"]
    assert mentions(page) == ["outrider info NAME"]
    assert parses("outrider models  # all")
    assert not parses("outrider models --no-such-option")
    assert not parses("outrider nosuchcommand")
    assert unknown_parts("outrider generate --compare", capsys) == []
    assert unknown_parts("outrider generate --no-such-option", capsys) == ["--no-such-option"]
    assert unknown_parts("outrider nosuchcommand", capsys) == ["nosuchcommand"]
    files = "`engine/llm.py` `e2e/no.py` `tests/architecture/tree.py::show` `errors/no.py::x`"
    assert missing_files(files) == ["e2e/no.py", "errors/no.py::x"]
