"""What a caller may ask for as the form of an output."""

from typing import Any

import pytest

from outrider.core.request import MAX_GRAMMAR_LENGTH, SamplingParams, StructuredOutputsParams
from outrider.errors import RequestRejected
from tests.unchecked import unchecked


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "nothing"),
        ({"json": "{}", "regex": "a"}, "json and regex"),
        ({"json": "{"}, "json is no JSON schema"),
        ({"json": "[]"}, "a schema is a JSON object"),
        ({"json": {"a": {1, 2}}}, "json is no JSON schema"),
        ({"json_object": 3}, "json_object"),
        ({"regex": ""}, "regex"),
        ({"regex": 3}, "regex"),
        ({"grammar": ["start: A"]}, "grammar"),
        ({"choice": "yes"}, "choice"),
        ({"choice": ()}, "choice"),
        ({"choice": ("a", "")}, "choice"),
        ({"choice": ("a", 3)}, "choice"),
        ({"regex": "a" * (MAX_GRAMMAR_LENGTH + 1)}, "at most"),
        ({"choice": ("a" * MAX_GRAMMAR_LENGTH, "b")}, "at most"),
    ],
    ids=str,
)
@unchecked()
def test_what_cannot_be_meant_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    """Catches a form that is refused deep inside, or taken for another one."""
    with pytest.raises(RequestRejected, match=named):
        StructuredOutputsParams(**given)


def test_a_schema_nested_too_deep_is_refused() -> None:
    """Catches a stack that overflows on a stranger's text."""
    with pytest.raises(RequestRejected, match="json"):
        StructuredOutputsParams(json='{"a":' * 5000 + "1" + "}" * 5000)


@unchecked()
def test_equal_forms_are_equal() -> None:
    """Catches forms that are compiled again because they were written differently."""
    schema = {"type": "object", "properties": {"ü": {"type": "string"}}}
    one = StructuredOutputsParams(json=schema)
    other = StructuredOutputsParams(
        json='{ "type": "object",\n "properties": {"\\u00fc": {"type": "string"}} }'
    )
    assert one == other
    assert hash(one) == hash(other)
    listed: Any = ["a", "b"]
    assert StructuredOutputsParams(choice=listed) == StructuredOutputsParams(choice=("a", "b"))


def test_properties_keep_their_order() -> None:
    """Catches a schema that is sorted: the order of properties is the order of the output."""
    form = StructuredOutputsParams(json={"properties": {"b": {}, "a": {}}})
    assert form.json == '{"properties":{"b":{},"a":{}}}'


@unchecked()
def test_params_refuse_what_does_not_go_with_a_form() -> None:
    """Catches an end that is ignored, and a mapping that is taken for a form."""
    form = StructuredOutputsParams(regex="a")
    with pytest.raises(RequestRejected, match="ignore_eos"):
        SamplingParams(structured_outputs=form, ignore_eos=True)
    mapping: Any = {"regex": "a"}
    with pytest.raises(RequestRejected, match="structured_outputs"):
        SamplingParams(structured_outputs=mapping)


def test_a_form_is_no_plain_argmax() -> None:
    """Catches a batch that is drawn by arg-max although a form masks it."""
    form = StructuredOutputsParams(regex="a")
    assert not SamplingParams(temperature=0, structured_outputs=form).is_plain_argmax
