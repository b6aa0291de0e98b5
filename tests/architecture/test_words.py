"""No file mentions the machine it was written on or a tracker, and no merge is half done."""

import re
from pathlib import Path
from typing import Final

from tests.architecture.tree import repository_files, show

CODE: Final = (".c", ".cmake", ".cpp", ".css", ".h", ".hpp", ".html", ".js", ".py", ".pyi", ".sh")
TEXT: Final = ("", ".cfg", ".ini", ".json", ".md", ".toml", ".txt", ".yaml", ".yml")

# Every pattern has a bracket in it, so that this file does not match itself.
FORBIDDEN: Final = {
    "machine path": re.compile(r"(?<![\w.~])/(?:[w]ork|[t]mp|[r]oot|[o]pt/wheels|[h]ome)/"),
    "registry host": re.compile(
        r"[p]ypi\.org|[p]ythonhosted|[r]egistry\.npmjs|[d]eb\.debian|download\.[p]ytorch", re.I
    ),
    "merge left undone": re.compile(r"^(?:[<]{7}|[>]{7}|[|]{7})(?: |$)"),
    "tracker reference": re.compile(r"\b[i]ssues?\s*#\s*\d|\b[i]ssues\s+show\b", re.I),
}


def findings(text: str) -> list[str]:
    """One entry per line and rule that it breaks."""
    return [
        f"{number}: {rule}: {line.strip()[:80]}"
        for number, line in enumerate(text.splitlines(), 1)
        for rule, pattern in FORBIDDEN.items()
        if pattern.search(line)
    ]


def is_text(path: Path) -> bool:
    """Code and pages; recorded results and weights may hold any string."""
    return path.suffix in CODE + TEXT and "results" not in path.parts


def test_no_file_mentions_the_workplace() -> None:
    """Catches a path, a host or a ticket that means nothing on another machine."""
    found = [
        f"{show(path)}:{finding}"
        for path in repository_files()
        if is_text(path)
        for finding in findings(path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


def test_the_patterns_find_what_they_are_for() -> None:
    """Catches a pattern that was edited into matching nothing, or into matching everything."""
    slash = "/"
    for bad in (
        f"see {slash}work/a",
        f"({slash}tmp/x)",
        "is" + "sue #12",
        "py" + "pi.org",
        "<" * 7 + " HEAD",
    ):
        assert findings(bad), bad
    for good in ("https://a.b/home/x", "../work/", "an issue of 3 requests", "#define tmp"):
        assert not findings(good), good
