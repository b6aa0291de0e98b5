"""Forms from strangers: any text at all is compiled, or refused as a request."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.request import StructuredOutputsParams
from outrider.errors import RequestRejected
from tests import harness
from tests.grammars import compiler
from tests.unchecked import unchecked

harness.require_module("llguidance")

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=30)
PIECES = [
    "start",
    ":",
    "|",
    '"a"',
    "/b/",
    "(",
    ")",
    "*",
    "+",
    "?",
    "\n",
    "x",
    "%json",
    "{",
    "}",
    "%",
]
REGEX_PIECES = [
    "a",
    "(",
    ")",
    "[",
    "]",
    "^",
    "-",
    "*",
    "+",
    "?",
    "{2,",
    "}",
    "\\",
    "d",
    "|",
    "(?i",
    ":",
    "/",
]
KEYS = st.sampled_from(
    ["type", "properties", "items", "enum", "anyOf", "$ref", "pattern", "x-guidance"]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["string", "#", "object", "a*"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
FORMS = (
    st.builds(lambda text: {"regex": text}, ANY_TEXT)
    | st.builds(lambda parts: {"regex": "".join(parts)}, st.lists(st.sampled_from(REGEX_PIECES)))
    | st.builds(lambda text: {"grammar": text}, ANY_TEXT)
    | st.builds(lambda parts: {"grammar": " ".join(parts)}, st.lists(st.sampled_from(PIECES)))
    | st.builds(lambda text: {"json": text}, ANY_TEXT)
    | st.builds(lambda schema: {"json": schema}, st.dictionaries(KEYS, VALUES, max_size=4))
    | st.builds(lambda texts: {"choice": tuple(texts)}, st.lists(ANY_TEXT, max_size=3))
)


@given(given_form=FORMS)
@unchecked()
def test_any_form_is_compiled_or_refused(given_form: dict[str, Any]) -> None:
    """Catches an error of another kind, which a server would answer with a 500."""
    try:
        matcher = compiler().matcher(StructuredOutputsParams(**given_form))
    except RequestRejected:
        return
    assert any(matcher.masks([], [])[0])


@pytest.mark.parametrize("name", ["regex", "grammar", "choice", "json"])
@unchecked()
def test_half_a_character_is_refused(name: str) -> None:
    """Catches text that JSON can spell and UTF-8 cannot."""
    half: Any = json.loads('"a\\ud800"')
    value = {"choice": (half,), "json": {"enum": [half]}}.get(name, half)
    with pytest.raises(RequestRejected):
        compiler().matcher(StructuredOutputsParams(**{name: value}))
