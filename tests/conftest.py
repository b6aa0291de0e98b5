"""What every test runs under: shape checks, one torch thread, no network, hypothesis profiles.

The shape checker must be installed before anything imports the package, so nothing of it is
imported here at module level. Tests that need data ask for the fixtures below: where it is absent
they skip on a developer's machine and fail under `CI=true`, so CI cannot go green on skips.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
import torch

from tests import harness

jaxtyping.install_import_hook(harness.checked_modules(), "tests.harness.type_checked")
torch.set_num_threads(1)

hypothesis.settings.register_profile("dev", max_examples=25, deadline=None)
hypothesis.settings.register_profile(
    "ci",
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("deep", max_examples=2000, deadline=None)
hypothesis.settings.load_profile("ci" if harness.IS_CI else "dev")


def pytest_configure(config: pytest.Config) -> None:
    """Cut the network before any test module is imported."""
    patch = pytest.MonkeyPatch()
    harness.block_network(patch)
    config.add_cleanup(patch.undo)


@pytest.fixture(scope="session", autouse=True)
def _whole_drafts() -> Iterator[None]:
    """Length policy `auto` verifies whole drafts: what tests see depends on no measured time."""
    from outrider.engine import resolve

    patch = pytest.MonkeyPatch()
    patch.setattr(resolve, "WEIGHING_BACKENDS", ())
    yield
    patch.undo()


@pytest.fixture(scope="session")
def prompts_dir() -> Path:
    """Folder with `train/` and `eval/` prompt files."""
    folder = Path(os.environ.get("OUTRIDER_DATA") or harness.ROOT.parent / "shared" / "data")
    if not (folder / "eval").is_dir():
        harness.missing(f"no prompt data at {folder}; set OUTRIDER_DATA to a folder with eval/")
    return folder


@pytest.fixture(scope="session")
def default_model() -> Path:
    """File of the built-in model that `outrider pull` has put into the cache."""
    from outrider.errors import ModelNotFound
    from outrider.models import hub

    try:
        return hub.resolve("smollm2-135m")
    except ModelNotFound as error:
        harness.missing(str(error))
