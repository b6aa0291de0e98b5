"""Options that give an output a form."""

from pathlib import Path
from typing import Any

import pytest

from outrider.cli.main import build_parser
from outrider.cli.structure import structured_outputs
from outrider.core.request import StructuredOutputsParams
from outrider.errors import ConfigError, RequestRejected


def form_of(*argv: str) -> StructuredOutputsParams | None:
    return structured_outputs(build_parser().parse_args(["generate", "hi", *argv]))


def test_each_option_is_the_field_it_names(tmp_path: Path) -> None:
    """Catches an option that ends in another field, and a file that is taken for its text."""
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"type": "object"}', "utf-8")
    grammar.write_text('start: "é"', "utf-8")
    made: Any = StructuredOutputsParams
    assert form_of() is None
    assert form_of("--json-schema", ' {"type": "object"}') == made(json={"type": "object"})
    assert form_of("--json-schema", str(schema)) == made(json={"type": "object"})
    assert form_of("--regex", "a|b") == made(regex="a|b")
    assert form_of("--choice", "yes", "--choice", "no") == made(choice=("yes", "no"))
    assert form_of("--grammar", str(grammar)) == made(grammar='start: "é"')


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    """Catches a file that is not there, and two forms at once."""
    with pytest.raises(ConfigError, match="cannot be read"):
        form_of("--grammar", str(tmp_path / "none.lark"))
    with pytest.raises(ConfigError, match="cannot be read"):
        form_of("--json-schema", "[1, 2]")
    with pytest.raises(RequestRejected, match="exactly one"):
        form_of("--regex", "a", "--choice", "b")
