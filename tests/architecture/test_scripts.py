"""Options that scripts give to the command exist. Nothing is run."""

import re
from typing import Final

import pytest

from outrider.cli.main import build_parser
from tests.architecture.tree import ROOT

SCRIPT: Final = ROOT / "scripts" / "train_drafter"
# Arrays of the script whose elements are options, and the command each is given to.
ARRAYS: Final = {
    "synthesis": ("data", "synthesize"),
    "answers": ("data", "generate"),
    "training": ("train",),
    "resume": ("train",),
    "measuring": ("eval",),
    "exclude": ("data", "generate"),
}
OPTION: Final = re.compile(r"(?<![\w-])--[a-z][\w-]*")
CALL: Final = re.compile(r"^ *outrider ((?:[a-z]+ ?)+)(.*)$", re.M)
ARRAY: Final = re.compile(r"^ *(\w+)\+?=\(([^)]*)\)", re.M)


def uses(script: str) -> set[tuple[tuple[str, ...], str]]:
    """Every (command, option) of the script."""
    joined = script.replace("\\\n", " ")
    found = {
        (tuple(call[1].split()), option)
        for call in CALL.finditer(joined)
        for option in OPTION.findall(call[2])
    }
    for name, elements in ARRAY.findall(joined):
        if name in ARRAYS:
            found |= {(ARRAYS[name], option) for option in OPTION.findall(elements)}
    measured = re.findall(r"^measure (.*)$", joined, re.M)
    return found | {(("eval",), option) for line in measured for option in OPTION.findall(line)}


def test_options_of_the_script_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """Catches an option that was renamed in the command and not in the script."""
    found = uses(SCRIPT.read_text("utf-8"))
    commands = {command for command, _ in found}
    assert {("data", "synthesize"), ("data", "generate"), ("train",), ("eval",)} <= commands
    assert len(found) > 20
    known: dict[tuple[str, ...], set[str]] = {}
    for command in commands:
        with pytest.raises(SystemExit):
            build_parser().parse_known_args([*command, "--help"])
        known[command] = set(OPTION.findall(capsys.readouterr().out))
    assert {(command, option) for command, option in found if option not in known[command]} == set()


def test_the_check_finds_options() -> None:
    """Catches a pattern that overlooks continued lines or arrays."""
    script = "training=(--minutes 3\n  --lr 1)\noutrider train --data x \\\n  --output y\n"
    script += 'measure table --draft z\n[ "$1" = --quick ]\n'
    train = {(("train",), f"--{name}") for name in ("minutes", "lr", "data", "output")}
    assert uses(script) == train | {(("eval",), "--draft")}
