"""The lake that the jobs find is another one, or is changed by another writer."""

from __future__ import annotations

from deltalake import DeltaTable

from agent.contract import Exit
from hub_jobs.ingest import run as ingest
from tests.faults.matrix.conftest import Worlds
from tests.faults.matrix.scenarios import in_table, judged
from tests.faults.report import Case
from tests.faults.world.environment import FaultEnvironment


def ingested(w: FaultEnvironment) -> Exit:
    """How one run of `ingest` ends."""
    return ingest.main([*w.tables.server, "--lake", str(w.tables.lake)])


def test_the_disk_of_the_lake_is_not_mounted(world_of: Worlds, case: Case) -> None:
    case.expected = (
        "ingest refuses the empty directory, and the hub purges nothing: "
        "nothing acknowledged is lost or doubled"
    )
    with world_of() as w:
        in_table(w)
        w.load.flows(20)
        w.mended()
        lake, disk = w.tables.lake, w.tables.lake.with_name("the disk")
        lake.rename(disk)
        lake.mkdir()
        ends: list[Exit] = []
        w.injected.add("the lake's directory is empty", lambda _since: f"ingest ends with {ends[0]}")
        ends.append(ingested(w))
        assert ends == [Exit.FAILED]
        assert list(lake.iterdir()) == []
        lake.rmdir()
        disk.rename(lake)
        judged(w)


def test_another_writer_gives_a_table_a_property_that_the_jobs_do_not_know(
    world_of: Worlds, case: Case
) -> None:
    case.expected = "refine refuses the table before it writes; without the property all is there once"
    with world_of() as w:
        in_table(w)
        w.load.flows(20)
        w.mended()
        w.tables.ingest()
        readings = DeltaTable(w.tables.lake / "readings")
        readings.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
        ends: list[Exit] = []
        w.injected.add("the table has a change feed", lambda _since: f"refine ends with {ends[0]}")
        before = DeltaTable(w.tables.lake / "readings").version()
        ends.append(w.tables.refine())
        assert ends == [Exit.FAILED]
        assert DeltaTable(w.tables.lake / "readings").version() == before
        readings.alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
        judged(w)
