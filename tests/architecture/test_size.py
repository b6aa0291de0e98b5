"""Files and functions stay small enough to be read in one go."""

import ast
from collections.abc import Iterator
from typing import Final

from tests.architecture.tree import show, source_files

MAX_FILE_LINES: Final = 400
MAX_FUNCTION_LINES: Final = 60

# `path` or `path::function`, each with a reason in the line above it. Meant to stay empty.
ALLOWED: Final[frozenset[str]] = frozenset()


def long_functions(source: str) -> Iterator[str]:
    """Functions over the limit, decorators, signature and docstring included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            num_lines = (node.end_lineno or first) - first + 1
            if num_lines > MAX_FUNCTION_LINES:
                yield f"{node.name} ({num_lines} lines)"


def test_no_file_is_longer_than_the_limit() -> None:
    """Catches a module that has grown a second subject."""
    sizes = {show(path): len(path.read_text("utf-8").splitlines()) for path in source_files()}
    too_long = {name: size for name, size in sizes.items() if size > MAX_FILE_LINES}
    assert not too_long.keys() - ALLOWED, f"over {MAX_FILE_LINES} lines, split: {too_long}"


def test_no_function_is_longer_than_the_limit() -> None:
    """Catches a function whose steps want names of their own."""
    found = [
        f"{show(path)}::{function}"
        for path in source_files()
        for function in long_functions(path.read_text("utf-8"))
    ]
    too_long = [each for each in found if each.split(" ")[0] not in ALLOWED]
    assert not too_long, f"over {MAX_FUNCTION_LINES} lines, split: {too_long}"


def test_the_function_limit_counts_the_whole_span() -> None:
    """Catches a gate that forgets decorators, nested or async functions, or is off by one."""
    body = "    pass\n" * (MAX_FUNCTION_LINES - 1)
    assert list(long_functions(f"def fits():\n{body}")) == []
    assert list(long_functions(f"@cache\ndef decorated():\n{body}")) == ["decorated (61 lines)"]
    nested = "".join(f"    {line}\n" for line in f"async def inner():\n{body}    1".splitlines())
    assert "inner (61 lines)" in list(long_functions(f"class A:\n{nested}"))
