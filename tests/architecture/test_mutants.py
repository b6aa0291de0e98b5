"""The named mutants still fit the source, and their runner tells killed from survived."""

from pathlib import Path

import pytest

from tests import mutants
from tests.architecture.tree import ROOT, SRC
from tests.mutants_list import MUTANTS, Mutant

TOY = Mutant(name="toy", file="toy.py", old="a + b", new="a - b", tests=("test_toy.py",))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_fits_the_source(mutant: Mutant) -> None:
    """Catches a mutant left behind by an edit, or whose tests were moved."""
    mutants.mutated(mutant, (SRC / mutant.file).read_text("utf-8"))
    for test in mutant.tests:
        assert (ROOT / test.partition("::")[0]).is_file(), test
    assert mutant.tests


def test_mutant_names_are_unique() -> None:
    """Catches a copied entry that hides another one."""
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("source", ["", "a + b\na + b\n"])
def test_old_text_must_occur_once(source: str) -> None:
    """Catches a breakage that silently changes nothing, or two places."""
    with pytest.raises(mutants.MutantError, match="must be once"):
        mutants.mutated(TOY, source)


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("def test(): assert add(2, 2) == 4", "1 of 1 mutants killed"),
        ("def test(): assert add(2, 0) == 2", "SURVIVED test_toy.py"),
        ("def test(): assert add(2, 2) == 5", "not green on the sound source"),
        ("assert add(2, 2) == 4\ndef test(): pass", "pytest ended with status"),
    ],
    ids=["killed", "survived", "red-anyway", "not-collected"],
)
def test_runner_verdict(
    test: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a runner that tests the unbroken source, or takes any red for a kill."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "toy.py").write_text("def add(a, b):\n    return a + b\n", "utf-8")
    (tmp_path / "test_toy.py").write_text(f"from toy import add\n{test}\n", "utf-8")
    all_killed = mutants.run([TOY], tmp_path)
    assert expected in capsys.readouterr().out
    assert all_killed == (expected == "1 of 1 mutants killed")
