"""The page of sampling options is what the tests say, and it is complete."""

import dataclasses
from pathlib import Path

import pytest

from outrider.core.request import SamplingParams
from tests import sampling_matrix
from tests.sampling_matrix import MORE, PAGE, RULES, all_options, proofs, proves, render


def test_the_page_is_what_the_tests_say() -> None:
    """Catches a page that promises what no test proves any more.

    Write it anew with `python -m tests.sampling_matrix`.
    """
    assert PAGE.read_text("utf-8") == render()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("option", all_options())
def test_every_option_is_proved_under_every_rule(option: str, rule: str) -> None:
    """Catches an option that was added without a proof that it survives speculation."""
    assert proofs().get((option, rule)), f"no test @proves({rule!r}, {option!r})"


def test_every_field_is_an_option() -> None:
    """Catches a matrix with a list of its own."""
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    assert fields | set(MORE) == set(all_options())


def test_every_proof_is_a_test() -> None:
    """Catches a decorator on a helper, which pytest never runs."""
    tests = {test for each in proofs().values() for test in each}
    assert all(test.partition(".")[2].startswith("test_") for test in tests)
    for test in tests:
        assert (PAGE.parent.parent / "tests" / "e2e" / f"{test.partition('.')[0]}.py").is_file()


def test_a_misspelt_option_or_rule_is_refused() -> None:
    """Catches a proof that is written down under a name nobody looks at."""
    with pytest.raises(AssertionError, match="no such option"):
        proves("plain", "temprature")
    with pytest.raises(AssertionError):
        proves("rejections", "temperature")  # type: ignore[arg-type]


def test_the_scan_reads_stacked_decorators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a scan that sees the first decorator only."""
    folder = tmp_path / "tests" / "e2e"
    folder.mkdir(parents=True)
    source = '@proves("plain", "n", "seed")\n@other\n@proves("matching", "n")\ndef test_x(): ...\n'
    (folder / "test_lossless_x.py").write_text(source, "utf-8")
    monkeypatch.setattr(sampling_matrix, "ROOT", tmp_path)
    name = ["test_lossless_x.test_x"]
    assert proofs() == {("n", "plain"): name, ("seed", "plain"): name, ("n", "matching"): name}
