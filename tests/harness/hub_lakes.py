"""What `ingest` reports of a lake, without a lake."""

from __future__ import annotations

import asyncio
import json

import nats

from agent.contract import Committed, committed_subject
from tests.harness.agent_process import Agent
from tests.harness.streams import AGGREGATE
from tests.harness.wait import WAIT_SECONDS

PLACE = "/srv/lake on hub-1"


def report_lake(hub: Agent, lake: str) -> None:
    """Report that a lake with this id, at `PLACE`, holds all that the hub has; the hub accepts it."""

    async def report() -> None:
        seed = str(hub.member.state / "keys" / "jobs.nk")
        jobs = await nats.connect(hub.member.nats_url, nkeys_seed=seed, inbox_prefix="_INBOX_jobs")
        seq = 0
        while not seq:
            info = json.loads((await jobs.request(f"$JS.API.STREAM.INFO.{AGGREGATE}", b"")).data)
            seq = info["state"]["last_seq"]
        record = Committed(AGGREGATE, info["created"], seq, 0, lake, PLACE)
        answer = await jobs.request(committed_subject(AGGREGATE), record.encode(), timeout=WAIT_SECONDS)
        assert "refused" not in json.loads(answer.data)
        await jobs.close()

    asyncio.run(report())
