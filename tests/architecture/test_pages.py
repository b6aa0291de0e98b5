"""Pages keep their promises: Python blocks compile, links inside the repository resolve."""

import ast
import re
import textwrap
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.tree import ROOT, pages, show

FENCE: Final = re.compile(r"^[ \t]*(?P<marks>`{3,}|~{3,})[ \t]*(?P<language>[\w+-]*)")
LINK: Final = re.compile(
    r"\]\(\s*<?(?P<inline>[^)\s>]+)|^\s*\[[^\]]+\]:\s*(?P<reference>\S+)", re.M
)
EXTERNAL: Final = re.compile(r"^[a-z][a-z0-9+.-]*:", re.I)
HEADING: Final = re.compile(r"^#{1,6}\s+(?P<title>.+?)\s*#*$", re.M)


def split_fences(text: str) -> tuple[str, list[tuple[str, int, str]]]:
    """Prose without its fenced blocks, and the blocks as (language, first line, text)."""
    prose: list[str] = []
    blocks: list[tuple[str, int, str]] = []
    closing, language, start, block = "", "", 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if closing:
            if line.strip().startswith(closing) and not line.strip().strip(closing[0]):
                blocks.append((language, start, textwrap.dedent("\n".join(block))))
                closing, block = "", []
            else:
                block.append(line)
        elif fence:
            closing, language, start = fence["marks"], fence["language"], number + 1
        else:
            prose.append(line)
    if closing:
        raise SyntaxError(f"the block opened at line {start - 1} is never closed")
    return "\n".join(prose), blocks


def anchors(page: str) -> set[str]:
    """Fragments that the headings of a page can be reached by."""
    prose, _ = split_fences(page)
    titles = (heading["title"].lower() for heading in HEADING.finditer(prose))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def broken_links(page: Path, root: Path) -> list[str]:
    """Relative links of the page that lead nowhere inside `root`."""
    prose, _ = split_fences(page.read_text("utf-8"))
    prose = re.sub(r"`[^`\n]*`", "", prose)
    targets = [match["inline"] or match["reference"] for match in LINK.finditer(prose)]
    return [
        target
        for target in targets
        if not EXTERNAL.match(target) and not _resolves(target, page, root)
    ]


def _resolves(target: str, page: Path, root: Path) -> bool:
    name, _, fragment = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    if not path.exists() or not path.is_relative_to(root):
        return False
    return not fragment or path.suffix != ".md" or fragment in anchors(path.read_text("utf-8"))


@pytest.mark.parametrize("page", pages(), ids=show)
def test_python_blocks_compile(page: Path) -> None:
    """Catches an example that was never run, or broke when a name was edited."""
    _, blocks = split_fences(page.read_text("utf-8"))
    for language, line, code in blocks:
        if language in ("python", "py"):
            name = f"{show(page)}, block at line {line}"
            compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", pages(), ids=show)
def test_links_resolve(page: Path) -> None:
    """Catches a link to a page or a heading that was moved, renamed or never written."""
    assert broken_links(page, ROOT) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    """Catches a link pattern that overlooks a form, or trips over code and outside addresses."""
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# Two words: `code`\n", "utf-8")
    good = "[a](other.md#two-words-code) [b](https://x.y) `[c](no.md)`\n```\n[d](no.md)\n```\n"
    page.write_text(good, "utf-8")
    assert broken_links(page, tmp_path) == []
    page.write_text("[a](no.md) [b](other.md#no) [c](../..) [d](#no)\n\n[e]: no.txt\n", "utf-8")
    expected = ["no.md", "other.md#no", "../..", "#no", "no.txt"]
    assert broken_links(page, tmp_path) == expected


def test_python_blocks_are_found() -> None:
    """Catches a fence parser that loses indented, longer or annotated fences."""
    text = "- item\n  ```python title\n  x = 1\n  ```\n````py\n```\n````\n~~~\nraw\n~~~\n"
    _, blocks = split_fences(text)
    assert blocks == [("python", 3, "x = 1"), ("py", 6, "```"), ("", 9, "raw")]
    with pytest.raises(SyntaxError, match="never closed"):
        split_fences("```python\nx = 1\n")
