"""The guest's kernel; without one its cases are not proven."""

from __future__ import annotations

import pytest

from tests.faults.guest.kernel import Kernel, NoKernelError, missing
from tests.faults.guest.kernel import kernel as find_kernel


@pytest.fixture(scope="session")
def kernel() -> Kernel:
    """The kernel of a guest."""
    if (why := missing()) is not None:
        pytest.skip(f"no guest can be run: {why}")
    try:
        return find_kernel()
    except NoKernelError as error:
        pytest.skip(f"no guest can be run: {error}")
