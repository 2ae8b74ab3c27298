"""A store at Azure or Google that loses the answers to what it has done, as one of S3 does it elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from hub_jobs.tables.places import ObjectPath
from tests.e2e import test_store_faults
from tests.e2e.test_store_faults import LINE
from tests.e2e.test_store_faults import impatient as impatient
from tests.harness.cloud_stores import LAKES, CloudStore
from tests.harness.store_faults import StoreFaults
from tests.spark.lakes import add_bronze
from tests.unit.hub_jobs.rows import batch_row

test_a_lost_commit = test_store_faults.test_a_commit_that_was_applied_and_not_confirmed_is_known_as_ones_own
test_a_lost_table = test_store_faults.test_a_table_that_was_made_and_not_confirmed_is_there
test_a_late_commit = test_store_faults.test_while_a_commit_may_still_arrive_no_file_of_it_is_deleted
test_a_late_commit_and_another = (
    test_store_faults.test_of_a_late_commit_and_the_run_after_it_one_is_in_the_table
)
test_a_lost_file = test_store_faults.test_a_file_that_was_not_confirmed_is_written_again_or_named_by_no_commit


@pytest.fixture
def faults(cloud: CloudStore) -> StoreFaults:
    """What loses the answers of the store."""
    return cloud.faults


@pytest.fixture
def lake(cloud: CloudStore, tmp_path: Path) -> ObjectPath:
    """A lake of this test's own with eight messages in as many files."""
    where = ObjectPath(f"{LAKES[cloud.name]}/{tmp_path.name}")
    add_bronze(where, [batch_row(LINE, n, source_seq=n) for n in range(1, 9)], files=8)
    cloud.faults.seen()
    return where
