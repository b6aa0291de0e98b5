"""Settings of the server: bounds, and the page that lists them."""

import ast
import dataclasses
import re

import pytest

from outrider.errors import ConfigError
from outrider.serving.settings import ServeSettings
from tests.architecture.tree import ROOT


def test_settings_are_documented_with_their_defaults() -> None:
    """Catches a setting nobody can find, and a default that was changed in the code alone."""
    page = (ROOT / "docs" / "serving.md").read_text("utf-8")
    documented = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", page, re.M))
    defaults = {each.name: each.default for each in dataclasses.fields(ServeSettings)}
    assert {name: ast.literal_eval(text) for name, text in documented.items()} == defaults


@pytest.mark.parametrize(
    "wrong", [{"port": 70000}, {"max_queue": -1}, {"max_total_tokens": 0}, {"api_key": " "}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    """Catches a server that starts and can never answer."""
    with pytest.raises(ConfigError):
        ServeSettings(**wrong)  # type: ignore[arg-type]
