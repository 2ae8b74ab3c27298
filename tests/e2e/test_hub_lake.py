"""The registrar purges behind one lake, and behind another only after a person's word."""

from __future__ import annotations

import json
from typing import Any

import nats.errors
import pytest

from agent.contract import Adoption, Committed, lake_subject
from tests.harness.registrar import LAKE, HubHand, LeafHand, flowing

OTHER = "00000000-0000-4000-8000-000000000002"


async def says(hub: HubHand, word: Adoption) -> dict[str, Any]:
    """What the registrar answers to a person at the hub."""
    row: dict[str, Any] = json.loads((await hub.nc.request(lake_subject(), word.encode(), timeout=30)).data)
    return row


async def test_nothing_is_purged_behind_another_lake_until_it_is_adopted(
    hub: HubHand, hand: LeafHand
) -> None:
    async with hub.registrar(keep=0) as registrar:
        info = await flowing(hub, hand, 20)
        stream = info.name
        assert (await hub.committed(Committed(stream, info.created, 5)))["purged"] == 5
        other = Committed(stream, info.created, 20, lake=OTHER, place="/empty on hub-1")
        answer = await hub.committed(other)
        assert answer["purged"] == 0
        assert f"the hub's lake is {LAKE}" in answer["refused"]
        assert (await hub.aggregate()).first == 6
        assert registrar.status()["lake"]["id"] == LAKE

    async with hub.registrar(keep=0):
        assert "refused" in await hub.committed(other), "the next registrar knows it too"
        assert "refused" in await says(hub, Adoption(OTHER, OTHER))
        assert "refused" in await hub.committed(other)
        assert (await says(hub, Adoption(OTHER, LAKE)))["lake"]["left"] == {stream: [info.created, 5]}
        assert (await hub.committed(other))["purged"] == 15
        assert "refused" in await hub.committed(Committed(stream, info.created, 20))
        assert (await says(hub, Adoption()))["lake"]["streams"] == {stream: [info.created, 20]}


async def test_a_commit_of_no_lake_purges_nothing(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar(keep=0) as registrar:
        info = await flowing(hub, hand, 20)
        row = json.loads(Committed(info.name, info.created, 20).encode())
        for lake in ("", "mine", None):
            reply = await hub.jobs.request(
                f"petiole.v1.committed.{info.name}", json.dumps({**row, "lake": lake}).encode(), timeout=30
            )
            assert "the id of a lake" in json.loads(reply.data)["refused"]
        assert (await hub.aggregate()).first == 1
        assert registrar.status()["lake"] is None


async def test_a_bucket_that_was_made_again_gets_the_lake_back(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar(keep=0) as registrar:
        info = await flowing(hub, hand, 20)
        await hub.committed(Committed(info.name, info.created, 5))
        await hub.js.purge("KV_petiole_fleet", (await hub.js.stream_info("KV_petiole_fleet")).last)
        await registrar.lake.begin()
    async with hub.registrar(keep=0) as registrar:
        assert registrar.status()["lake"]["id"] == LAKE


async def test_the_jobs_may_read_the_lake_and_adopt_none(hub: HubHand, hand: LeafHand) -> None:
    async with hub.registrar(keep=0):
        info = await flowing(hub, hand, 20)
        await hub.committed(Committed(info.name, info.created, 5))
        record = "$JS.API.DIRECT.GET.KV_petiole_fleet.$KV.petiole_fleet.lake.known"
        assert json.loads((await hub.jobs.request(record, timeout=10)).data)["id"] == LAKE
        for subject in (lake_subject(), "$KV.petiole_fleet.lake.known"):
            with pytest.raises(nats.errors.TimeoutError):
                await hub.jobs.request(subject, Adoption(OTHER, LAKE).encode(), timeout=1)
        assert (await says(hub, Adoption()))["lake"]["id"] == LAKE
