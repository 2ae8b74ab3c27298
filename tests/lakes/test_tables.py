"""What tables in S3 promise, tables at Azure and Google promise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agent.contract import Exit
from hub_jobs.maintain import run as maintain
from hub_jobs.tables.places import ObjectPath
from tests.e2e.test_object_store import LINE
from tests.e2e.test_object_store import (
    test_a_writer_that_fails_leaves_no_file as test_a_writer_that_fails_leaves_no_file,
)
from tests.e2e.test_object_store import (
    test_of_drivers_that_commit_at_the_same_moment_one_wins_and_the_others_leave_no_file as test_one_wins,
)
from tests.e2e.test_object_store import (
    test_rows_are_committed_written_together_and_vacuumed_as_in_a_directory as test_as_in_a_directory,
)
from tests.harness.cloud_stores import ACCOUNT, CloudStore
from tests.security.hidden import leaked
from tests.spark.lakes import add_bronze, contents
from tests.unit.hub_jobs.rows import batch_row

__all__ = ["test_a_writer_that_fails_leaves_no_file", "test_as_in_a_directory", "test_one_wins"]


@pytest.mark.parametrize("cloud", ["azure"], indirect=True)
def test_an_address_that_names_its_account_leads_to_the_same_lake(lake: ObjectPath) -> None:
    named = ObjectPath(f"abfss://fleet@{ACCOUNT}.dfs.core.windows.net/{lake.name}")
    add_bronze(named, [batch_row(LINE, n, source_seq=n) for n in (1, 2)], files=2)
    add_bronze(lake, [batch_row(LINE, 3, source_seq=3)])

    assert contents(named, "bronze", "n") == contents(lake, "bronze", "n") == [1, 2, 3]
    assert maintain.main(["--lake", str(named)]) is Exit.WELL
    assert contents(lake, "bronze", "n") == [1, 2, 3]


@pytest.mark.parametrize("cloud", ["azure"], indirect=True)
@pytest.mark.parametrize(
    "credential",
    [
        {"AZURE_STORAGE_ACCOUNT_KEY": "cGw0bnRlZC1rZXktb2Ytbm8tYWNjb3VudA=="},
        {"AZURE_STORAGE_SAS_TOKEN": "sv=2023-11-03&ss=b&srt=sco&sp=rwdl&sig=pl4nted%2Bsignature%3D"},
        {"AZURE_STORAGE_TOKEN": "pl4nted-bearer-token"},
        {"AZURE_STORAGE_ACCOUNT_KEY": "pl4nted/no+key!"},
    ],
    ids=["key of another account", "signature", "token", "no key"],
)
def test_a_store_that_refuses_is_one_sentence_without_the_credential(
    cloud: CloudStore, lake: ObjectPath, credential: dict[str, str]
) -> None:
    given = {**os.environ, **cloud.environment}
    del given["AZURE_STORAGE_ACCOUNT_KEY"]

    done = subprocess.run(
        [sys.executable, "-m", "hub_jobs.maintain", "--lake", str(lake)],
        capture_output=True,
        text=True,
        check=False,
        env={**given, **credential},
    )

    assert done.returncode == Exit.FAILED, done.stderr
    assert done.stderr.startswith(f"maintain: table {lake}/bronze can't be read: "), done.stderr
    assert done.stderr.count("\n") == 1
    said = {"output": (done.stdout + done.stderr).encode()}
    secrets = {name: part for name, text in credential.items() for part in (text, text.rpartition("sig=")[2])}
    assert leaked(said, secrets) == []
