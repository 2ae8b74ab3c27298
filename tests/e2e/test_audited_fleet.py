"""A real audit of real tables, told to a running hub: what its page, its metrics and `petiole fleet` say."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from prometheus_client.parser import text_string_to_metric_families

from agent.contract import Exit
from hub_jobs.audit import run as audit
from hub_jobs.audit.outcome import head_of, leaves_of, tell_hub
from hub_jobs.audit.report import AuditReport
from hub_jobs.source.server import Server
from tests.harness.agent_process import Agent, hub_and_leaf
from tests.harness.wait import WAIT_SECONDS, wait_for
from tests.unit.hub_jobs.audit.test_audit import SAID, fill
from tests.unit.hub_jobs.refined import refine_all


class AuditedHub:
    """A hub that lets `edge-1` and `edge-2` in, and a lake that has readings of `edge-1` alone."""

    def __init__(self, hub: Agent, directory: Path) -> None:
        self.hub, self.lake, self.metrics = hub, directory / "lake", directory / "metrics"
        self.metrics.mkdir()
        self.seed = hub.member.state / "keys" / "jobs.nk"

    def audit(self, *options: str) -> Exit:
        """Run the job as its unit does."""
        where = ("--server", self.hub.member.nats_url, "--seed-file", str(self.seed))
        return audit.main(
            [
                "--lake",
                str(self.lake),
                "--stream",
                "TELEMETRY_0",
                *where,
                "--metrics",
                str(self.metrics),
                *options,
            ]
        )

    def fleet(self) -> tuple[int, dict[str, dict[str, Any]]]:
        """What `petiole fleet --json` ends with, and its rows by domain."""
        ended = self.hub.petiole("fleet", "--json")
        return ended.returncode, {row["domain"]: row for row in json.loads(ended.stdout)["leaves"]}

    def page(self, path: str) -> str:
        with urllib.request.urlopen(self.hub.member.admin_url + path, timeout=WAIT_SECONDS) as answer:
            return str(answer.read().decode())

    def of_job(self, name: str) -> float | None:
        """A metric of edge-1 in the file that the job writes."""
        text = (self.metrics / "petiole_job_audit.prom").read_text()
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        found = [one.value for one in samples if (one.name, one.labels) == (name, {"domain": "edge-1"})]
        return found[0] if found else None


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[AuditedHub]:
    with hub_and_leaf(tmp_path, strangers=1) as (hub, _):
        hub.start()
        found = AuditedHub(hub, tmp_path)
        fill(found.lake, SAID, 1, 2, 3)
        refine_all(found.lake)
        yield found


def test_a_hub_shows_what_the_newest_audit_found_of_each_leaf(audited: AuditedHub) -> None:
    hub = audited.hub
    assert "this hub has not heard of any yet" in audited.page("/fleet")
    assert {row["accounted"] for row in audited.fleet()[1].values()} == {"never"}

    assert audited.audit() == Exit.WELL
    code, rows = audited.fleet()
    assert code == 0
    assert {domain: row["accounted"] for domain, row in rows.items()} == {"edge-1": "yes", "edge-2": "never"}
    assert (rows["edge-1"]["audit"]["accepted"], rows["edge-1"]["audit"]["in_table"]) == (30, 30)
    assert hub.metric("petiole_audit_in_table_readings", domain="edge-1") == 30
    assert hub.metric("petiole_audit_timestamp_seconds") == pytest.approx(audited_at(rows), abs=1)
    assert audited.of_job("petiole_audit_in_table_readings") == 30
    page = audited.page("/fleet/edge-1")
    assert "yes: nothing is missing, nothing is doubled" in page
    assert "30 readings in the table" in page, "the hour of its batches is drawn"
    assert "No audit has looked at this leaf yet" in audited.page("/fleet/edge-2")

    DeltaTable(str(audited.lake / "readings")).delete("n = 2 AND index < 4")
    assert audited.audit() == Exit.LOSS
    _shows_the_loss(audited)

    hub.end(signal.SIGTERM)
    hub.start()
    _shows_the_loss(audited)


def audited_at(rows: dict[str, dict[str, Any]]) -> float:
    return datetime.fromisoformat(rows["edge-1"]["audit"]["at"]).timestamp()


def _shows_the_loss(audited: AuditedHub) -> None:
    code, rows = audited.fleet()
    assert (code, rows["edge-1"]["accounted"]) == (Exit.LOSS, "no")
    assert audited.hub.metric("petiole_audit_missing_readings", domain="edge-1") == 4
    assert audited.of_job("petiole_audit_missing_readings") == 4
    page = audited.page("/fleet/edge-1")
    assert "no: 4 readings missing" in page
    assert "batch 2: indexes 0-3 of 10 are missing from readings" in page
    assert "4 missing" in page, "in its hour"
    assert "4 readings missing" in audited.page("/fleet")
    head = audited.hub.petiole("fleet").stdout.splitlines()[0]
    assert head.endswith("; 1 not accounted for")


def test_an_audit_that_cannot_tell_the_hub_says_so_and_takes_nothing_back(audited: AuditedHub) -> None:
    assert audited.audit() == Exit.WELL
    newest = audited.fleet()[1]["edge-1"]["audit"]
    assert audited.audit("--untold") == Exit.WELL
    assert audited.fleet()[1]["edge-1"]["audit"] == newest

    server = Server(audited.hub.member.nats_url, seed_file=str(audited.seed))
    empty = AuditReport(datetime.fromisoformat("2026-01-01T00:00:00+00:00"), [], [], [])
    why = tell_hub(server, head_of(empty, audited.lake, deep=False), leaves_of(empty))
    assert "which is newer" in why
    assert audited.fleet()[1]["edge-1"]["audit"] == newest

    wrong = replace(server, seed_file=str(audited.seed.with_name("registrar.nk")))
    assert tell_hub(wrong, head_of(empty, audited.lake, deep=False), []) != ""

    audited.hub.end(signal.SIGKILL)
    before = audited.of_job("petiole_audit_timestamp_seconds")
    wait_for(lambda: audited.audit() == Exit.WELL, "the tables are still audited")
    after = audited.of_job("petiole_audit_timestamp_seconds")
    assert before is not None
    assert after is not None
    assert after > before, "the job's own metrics have it all the same"
