"""`ingest` of a lake that begins with a stream on three servers, of which one has lost a part of its copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.contract import Exit
from hub_jobs.ingest import run as ingest
from tests.harness.wait import wait_for
from tests.spark.lakes import contents
from tests.unit.hub_jobs.source.plain_cluster import KEPT, PlainCluster, cluster

__all__ = ["cluster"]
pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def test_a_new_lake_begins_with_what_any_copy_has(cluster: PlainCluster, tmp_path: Path) -> None:
    cluster.damage_leader(0)
    assert cluster.info()["state"]["first_seq"] > KEPT[0]
    lake = tmp_path / "lake"
    options = ["--server", cluster.urls, "--lake", str(lake), "--stream", "S"]

    def is_read() -> bool:
        return ingest.main(options) != Exit.UNREACHABLE

    wait_for(is_read, "a run reads a whole copy", 180)
    assert sorted(contents(lake, "bronze", "seq"), key=int) == KEPT
