"""Sub-packages re-export nothing, and importing the core is cheap and quiet."""

import ast
from pathlib import Path

import pytest

from tests.architecture.tree import PACKAGE, module_names, run_python, show, source_files

SUB_PACKAGES = [
    path for path in source_files() if path.name == "__init__.py" and path.parent != PACKAGE
]
TORCH_FREE = [
    *sorted((PACKAGE / "core").rglob("*.py")),
    *sorted((PACKAGE / "schedule").rglob("*.py")),
    PACKAGE / "kvcache" / "blocks.py",
]


@pytest.mark.parametrize("path", SUB_PACKAGES, ids=show)
def test_sub_package_init_is_a_docstring(path: Path) -> None:
    """Catches re-exports, from which import cycles and slow imports come."""
    tree = ast.parse(path.read_text("utf-8"))
    assert ast.get_docstring(tree), f"{show(path)} must state the rule of its folder"
    assert len(tree.body) == 1, f"{show(path)} holds more than its docstring"


def test_every_folder_of_modules_is_a_package() -> None:
    """Catches a folder without __init__.py, which wheels and import-linter overlook."""
    folders = {path.parent for path in source_files()}
    without = [show(folder) for folder in folders if not (folder / "__init__.py").is_file()]
    assert not without, f"folders without __init__.py: {without}"


def test_torch_free_modules_leave_torch_out() -> None:
    """Catches a heavy import that makes `import outrider` or the policies cost seconds."""
    names = ["outrider", *module_names(TORCH_FREE)]
    loads = run_python(
        "import importlib, sys\n"
        "heavy = {'torch', 'numpy', 'transformers'}\n"
        f"for name in {names!r}:\n"
        "    before = heavy & sys.modules.keys()\n"
        "    importlib.import_module(name)\n"
        "    for loaded in sorted(heavy & sys.modules.keys() - before):\n"
        "        print(name, 'loads', loaded)\n"
    )
    assert not loads, loads


def test_importing_the_package_prints_and_configures_nothing() -> None:
    """Catches a banner, a log handler or a thread started at import."""
    report = run_python(
        "import logging, outrider, threading\n"
        "print(len(logging.getLogger().handlers), threading.active_count())"
    )
    assert report == "0 1\n"
