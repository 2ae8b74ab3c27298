"""What a full stream discarded while its link was cut, as the audit tells it: every part is the real one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent.contract import Exit
from agent.leaf.link.status import LinkState
from hub_jobs.audit import run as audit
from hub_jobs.ingest import run as ingest
from hub_jobs.refine import run as refine
from tests.harness.linked_pair import LossyPair, open_lossy_pair
from tests.harness.servers import ServerPair
from tests.harness.streams import AGGREGATE

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


async def _audited(pair: LossyPair, lake: Path) -> tuple[Exit, dict[str | None, dict[str, Any]], str]:
    """The exit code, the rows by run and all findings, once all that is at the hub is in the tables."""
    hub = pair.servers.hub
    options = ["--server", hub.url, "--seed-file", str(hub.keys["jobs"]), "--stream", AGGREGATE]
    file = lake.with_suffix(".json")

    def jobs() -> Exit:
        assert ingest.main([*options, "--lake", str(lake)]) == Exit.WELL
        assert refine.main(["--lake", str(lake)]) == Exit.WELL
        return audit.main(["--lake", str(lake), "--json", str(file)])

    code = await asyncio.to_thread(jobs)
    report = json.loads(file.read_text())
    return code, {row["run"]: row for row in report["rows"]}, "\n".join(report["findings"])


@pytest.mark.timeout(400)
async def test_the_audit_names_what_was_discarded_of_each_run_and_of_devices_and_finds_no_loss(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.leaf.ledger.publisher.LEDGER_SECONDS", 1.0)
    async with open_lossy_pair(servers, tmp_path) as pair:
        first = pair.agent.run
        pair.servers.leaf.proxy.cut()
        await pair.reaches(LinkState.DOWN)
        await pair.fill(20)
        await pair.push(4)
        await pair.agent.stop()
        await pair.push(4)
        await pair.start_agent()
        await pair.fill(6)
        pair.servers.leaf.proxy.restore()
        await pair.reaches(LinkState.FLOWING)
        await pair.adds_up()
        await pair.agreed()
        arrived = await pair.arrived_numbers()

        code, rows, findings = await _audited(pair, tmp_path / "lake")

        lost = {number: readings for number, readings in pair.stored.items() if number not in arrived}
        assert len(lost) > 10
        assert {run for run, _ in lost} == {first}
        assert code == Exit.WELL, findings
        assert rows[first]["discarded"] == sum(lost.values())
        assert (rows[first]["missing"], rows[first]["open_tail"]) == (0, None)
        numbers = f"{min(n for _, n in lost)}-{max(n for _, n in lost)}"
        assert f"run {first}: batches {numbers}, {sum(lost.values())} readings, were discarded" in findings
        assert "discarded at the edge: stream_full" in findings
        assert "never came" not in findings
