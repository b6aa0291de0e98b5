"""What draws a row's tokens, for tests of losslessness on table targets."""

import pytest

from outrider.sampling.rows import ArgmaxSampler, RowSampler
from tests.native.machines import machine, require_native


@pytest.fixture(params=["python", "native"])
def sampler(request: pytest.FixtureRequest) -> RowSampler:
    """What draws the rows that need no history."""
    if request.param == "python":
        return ArgmaxSampler()
    require_native()
    from outrider.native.sampling import NativeSampler

    return NativeSampler(machine(1))
