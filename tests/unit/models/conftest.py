"""What the courses of the publish path begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.models import promises
from tests.unit.models.publish_path import PublishScenario


@pytest.fixture
def scenario() -> Iterator[PublishScenario]:
    """Connected; at the end all is well again, and everybody was told the truth."""
    one = PublishScenario()
    try:
        one.connect()
        yield one
        promises.check(one)
        one.ends_well()
    finally:
        one.time.close()
