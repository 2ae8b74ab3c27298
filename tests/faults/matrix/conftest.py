"""What every case of the matrix needs: the Spark session and a world of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.faults.report import Case
from tests.faults.world.environment import FaultEnvironment, open_environment
from tests.spark.conftest import spark

__all__ = ["spark"]

Worlds = Callable[..., AbstractContextManager[FaultEnvironment]]


@pytest.fixture
def world_of(tmp_path: Path, case: Case, spark: object) -> Worlds:
    """Opens a world for this case; its arguments are those of `open_environment`."""
    return partial(open_environment, tmp_path, case)
