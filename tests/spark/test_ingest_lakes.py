"""`ingest` and `audit` where `--lake` is not the lake that the hub knows: its disk is not mounted, or that of
another one, or of an older copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest
from nats.aio.msg import Msg

from agent.contract import (
    FLEET_BUCKET,
    HUB_LAKE,
    Adoption,
    Exit,
    HubLake,
    adopted,
    committed_subject,
    parse_committed,
    reported,
)
from agent.hub.registrar.aggregate import fleet_config
from hub_jobs.audit import run as audit
from hub_jobs.tables.delta import ensure_table
from tests.harness.servers import api
from tests.harness.streams import AGGREGATE
from tests.spark.fleet import Fleet, fleet

__all__ = ["fleet"]
pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


class Registrar:
    """What the registrar does for a lake: it keeps what lakes report, and purges behind it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.known: HubLake | None = None

    async def begin(self, receive: Callable[[Msg], Awaitable[None]] | None = None) -> None:
        """Make the bucket, and answer `ingest`."""
        config = fleet_config(1)
        await api(self._fleet.registrar, f"STREAM.CREATE.{config['name']}", config)
        await self._fleet.registrar.subscribe(committed_subject(AGGREGATE), cb=receive or self._receive)
        await self._fleet.registrar.flush()

    async def keep(self, lake: HubLake) -> None:
        """Store the record as the hub's agent does."""
        self.known = lake
        await self._fleet.registrar.jetstream().publish(f"$KV.{FLEET_BUCKET}.{HUB_LAKE}", lake.encode())

    async def adopt(self, lake: str) -> None:
        """A person's word."""
        assert self.known is not None
        await self.keep(adopted(self.known, Adoption(lake, self.known.id), datetime.now(UTC)))

    async def _receive(self, message: Msg) -> None:
        came = parse_committed(message.data)
        done = came.created, came.seq
        at = datetime.now(UTC)
        await self.keep(reported(self.known, came.lake, came.place, at, came.stream, done))
        await api(self._fleet.registrar, f"STREAM.PURGE.{AGGREGATE}", {"seq": came.seq + 1})
        await message.respond(b"{}")


async def registrar_of(fleet: Fleet) -> Registrar:
    """The registrar's part, on the fleet's hub."""
    one = Registrar(fleet)
    await one.begin()
    return one


async def test_a_lake_whose_disk_is_not_mounted_is_not_begun_again(
    fleet: Fleet, capfd: pytest.CaptureFixture[str]
) -> None:
    registrar = await registrar_of(fleet)
    assert await fleet.ingest() == Exit.WELL
    assert registrar.known is not None
    assert registrar.known.id == ensure_table(fleet.lake, "bronze").id
    assert registrar.known.place.startswith(f"{fleet.lake} on ")
    aside = fleet.lake.rename(fleet.lake.with_name("on-its-disk"))
    fleet.lake.mkdir()
    await fleet.store("edge-1", 4, 5)
    await fleet.at_hub(2)

    assert await fleet.ingest() == Exit.FAILED

    assert list(fleet.lake.iterdir()) == [], "nothing was written"
    assert f"nothing was written: there is no lake at {fleet.lake}" in capfd.readouterr().err
    fleet.lake.rmdir()
    aside.rename(fleet.lake)
    assert await fleet.ingest() == Exit.WELL
    assert fleet.bronze("seq") == list(range(1, 8))


async def test_another_lake_is_refused_by_ingest_and_by_the_verdict_of_audit(
    fleet: Fleet, capfd: pytest.CaptureFixture[str]
) -> None:
    registrar = await registrar_of(fleet)
    mine = ensure_table(fleet.lake, "bronze").id
    other = "00000000-0000-4000-8000-000000000002"
    known = HubLake(other, "/srv/lake on hub-1", "2026-11-28T00:00:00+00:00")
    await registrar.keep(known)

    assert await fleet.ingest() == Exit.FAILED

    said = capfd.readouterr().err
    assert f"the lake at {fleet.lake} is {mine}, and the hub's lake is {known}" in said
    assert fleet.bronze("seq") == []
    assert audit.main([*fleet.options, "--stream", AGGREGATE]) == Exit.FAILED
    printed = capfd.readouterr()
    assert "this is not the hub's lake" in printed.out
    assert f"petiole lake adopt {mine} --instead-of {other}" in printed.out

    await registrar.adopt(mine)
    assert await fleet.ingest() == Exit.WELL
    assert len(fleet.bronze("seq")) == 5


async def test_an_older_state_of_the_lake_is_noticed_and_says_what_it_lacks_once_it_is_adopted(
    fleet: Fleet, capfd: pytest.CaptureFixture[str]
) -> None:
    registrar = await registrar_of(fleet)
    assert await fleet.ingest() == Exit.WELL
    copy = fleet.lake.with_name("copy")
    shutil.copytree(fleet.lake, copy)
    await fleet.store("edge-1", 4, 5)
    await fleet.at_hub(2)
    assert await fleet.ingest() == Exit.WELL
    shutil.rmtree(fleet.lake)
    copy.rename(fleet.lake)
    await fleet.store("edge-2", 3)
    await fleet.at_hub(1)

    assert await fleet.ingest() == Exit.FAILED

    said = capfd.readouterr().err
    assert "is an older state of" in said
    assert f"{AGGREGATE} up to 7, and this one up to 5" in said
    assert audit.main(fleet.options) == Exit.FAILED
    assert f"{AGGREGATE} up to 7, and this one up to 5" in capfd.readouterr().out
    assert registrar.known is not None
    await registrar.adopt(registrar.known.id)
    assert await fleet.ingest() == Exit.LOSS
    assert fleet.bronze("seq") == [1, 2, 3, 4, 5, 8]
    assert audit.main(fleet.options) == Exit.LOSS
    found = capfd.readouterr().out
    assert "sequences 6-7 are not in bronze: other lake" in found
    assert "this is not the hub's lake" not in found
    assert await fleet.ingest() == Exit.WELL, "the lake is the hub's again"


async def test_of_two_copies_that_both_ingest_the_one_behind_is_refused(fleet: Fleet) -> None:
    await registrar_of(fleet)
    assert await fleet.ingest() == Exit.WELL
    copy = fleet.lake.with_name("copy")
    shutil.copytree(fleet.lake, copy)
    await fleet.store("edge-1", 4)
    await fleet.at_hub(1)
    assert await fleet.ingest() == Exit.WELL

    other = Fleet(fleet.servers, fleet.registrar, {}, copy)
    assert await other.ingest() == Exit.FAILED

    assert other.bronze("seq") == [1, 2, 3, 4, 5]
    assert await fleet.ingest() == Exit.WELL


async def test_a_lake_that_another_one_has_overtaken_while_it_read_is_told(
    fleet: Fleet, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two new lakes begin at the same time: the hub takes the first one that reports."""
    registrar = Registrar(fleet)
    other = HubLake("00000000-0000-4000-8000-000000000002", "/srv/lake on hub-1", "now")

    async def refuse(message: Msg) -> None:
        await registrar.keep(other)
        await message.respond(json.dumps({"v": 1, "purged": 0, "refused": "another lake"}).encode())

    await registrar.begin(refuse)

    assert await fleet.ingest() == Exit.FAILED
    assert f"the hub's lake is {other}" in capfd.readouterr().err
