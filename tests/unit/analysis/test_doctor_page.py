"""The page lists every finding, and every finding can be made."""

import re
from pathlib import Path

from outrider.analysis.doctor import catalogue
from outrider.analysis.doctor.catalogue import KINDS, SEVERITIES

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = Path(catalogue.__file__).parent


def test_the_page_is_the_catalogue() -> None:
    """Catches a finding that the page explains in other words, or not at all."""
    page = (ROOT / "docs" / "doctor.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \| (.+?) \| (.+?) \|$", page, re.M)
    assert rows == [(i, kind.severity, kind.meaning, kind.remedy) for i, kind in KINDS.items()]


def test_every_finding_is_made_somewhere() -> None:
    """Catches a finding that was planned and never looked for."""
    files = [path for path in PACKAGE.glob("*.py") if path.name != "catalogue.py"]
    source = "".join(path.read_text("utf-8") for path in files)
    assert [name for name in KINDS if f'"{name}"' not in source] == []
    assert {kind.severity for kind in KINDS.values()} == set(SEVERITIES)
