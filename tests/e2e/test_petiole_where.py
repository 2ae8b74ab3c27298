"""`petiole where` beside a running hub and leaf, with tables that are filled without Spark."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner, Result

from agent.cli.main import app
from hub_jobs.source.server import Server
from tests.harness.agent_process import Agent, hub_and_leaf
from tests.harness.hub_lakes import report_lake
from tests.harness.wait import wait_for
from tests.spark.lakes import replaced
from tests.unit.hub_jobs.refined import ingest_all, refine_all

GOOD = b'{"device":"pump-7","metric":"pressure","value":2.4}\n'
EVIL = '{"device":"pump\x9b2J","metric":"rpm","value":3}\n'.encode()


@dataclass
class Site:
    """A hub with its agent, the leaf `edge-1`, and a lake."""

    hub: Agent
    leaf: Agent
    lake: Path

    def types(self, *words: str, domain: str = "edge-1", tables: bool = True) -> Result:
        """What the command says."""
        lake = ["--lake", str(self.lake)] if tables else []
        return CliRunner().invoke(app, ["where", domain, "-c", str(self.hub.member.config), *lake, *words])

    def says(self, *words: str, tables: bool = True) -> dict[str, Any]:
        """The same as a program reads it."""
        found: dict[str, Any] = json.loads(self.types("--json", *words, tables=tables).stdout)
        return found

    def counts(self) -> dict[str, int | None]:
        """The readings at each stage."""
        stages = self.says()["classes"]["normal"]
        return {stage: one and one["readings"] for stage, one in stages.items()}

    def jobs(self) -> None:
        """Ingest and refine all that is at the hub."""
        key = self.hub.member.state / "keys" / "jobs.nk"
        ingest_all(self.lake, Server(self.hub.member.nats_url, seed_file=str(key)), "TELEMETRY_0")
        refine_all(self.lake)

    def post(self, lines: bytes, key: str) -> int:
        """Hand lines in as one request."""
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": key}
        request = urllib.request.Request(f"{self.leaf.member.http_url}/v1/readings", lines, headers)
        with urllib.request.urlopen(request, timeout=15) as answer:
            return int(answer.status)

    def at_hub(self) -> bool:
        """Whether the hub's agent knows all that the leaf has stored."""
        one = self.hub.status()["fleet"]["leaves"].get("edge-1", {}).get("classes", {}).get("normal")
        last = self.leaf.status()["classes"]["normal"]["last"]
        return one is not None and one["last"] == last == one["cursor"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Running; the leaf has the input http only."""
    lake = tmp_path / "lake"
    lake.mkdir()
    with hub_and_leaf(tmp_path, http_only=True) as (hub, leaf):
        hub.start()
        leaf.start()
        yield Site(hub, leaf, lake)


def test_where_the_readings_of_a_domain_are_is_told_at_every_stage(site: Site) -> None:
    assert site.post(GOOD * 3 + EVIL, "a-1") == 204
    wait_for(site.at_hub, "the hub has it")
    _without_tables_it_says_so(site)
    _what_is_in_the_tables_is_accounted_for(site)
    _a_device_is_looked_up_and_its_name_does_no_harm(site)
    _what_waits_for_the_jobs_is_told(site)
    _what_is_still_on_the_leaf_is_told(site)
    _a_reading_that_is_gone_is_a_loss(site)
    _another_lake_than_the_hubs_is_told(site)
    _what_cannot_be_asked_is_told_and_the_rest_is_shown(site)


def _without_tables_it_says_so(site: Site) -> None:
    told = site.types(tables=False)
    assert told.exit_code == 0
    assert "the tables were not looked at, so whether something is missing is not known" in told.stdout
    assert site.says(tables=False)["classes"]["normal"]["at the hub"] == {"readings": 4, "bound": True}
    none = site.types()
    assert none.exit_code == 5
    assert f"not looked at: the tables: there is no table {site.lake / 'bronze'}" in none.stdout


def _what_is_in_the_tables_is_accounted_for(site: Site) -> None:
    site.jobs()
    told = site.types()
    assert (told.exit_code, told.stdout.splitlines()[0]) == (
        0,
        "edge-1: nothing is missing, nothing is doubled",
    )
    stages = ("accepted", "stored", "at the hub", "in bronze", "in readings")
    assert site.counts() == {**dict.fromkeys(stages, 4), "quarantined": 0}
    assert len(told.stdout.splitlines()) < 24
    assert max(map(len, told.stdout.splitlines())) <= 80


def _a_device_is_looked_up_and_its_name_does_no_harm(site: Site) -> None:
    found = site.says("--device", "pump-7", "--from", "1h")
    assert found["classes"]["device pump-7"]["in readings"]["readings"] == 3
    assert found["classes"]["all of edge-1"]["in readings"]["readings"] == 4
    assert found["classes"]["all of edge-1"]["accepted"] is None
    assert site.says("--to", "1h")["classes"]["normal"]["in bronze"]["readings"] == 0
    told = site.types("--device", "pump\u009b2J")
    assert "\u009b" not in told.stdout
    assert "device pump\\x9b2J" in told.stdout
    assert site.says("--device", "pump\u009b2J")["classes"]["device pump\u009b2J"]["in readings"] == {
        "readings": 1,
        "bound": False,
    }


def _another_lake_than_the_hubs_is_told(site: Site) -> None:
    other = "00000000-0000-4000-8000-000000000001"
    report_lake(site.hub, other)
    said = f"not looked at: the tables of the hub: the lake at {site.lake} is "
    wait_for(lambda: said in " ".join(site.types().stdout.split()), "it is not the hub's lake")
    assert other in site.types().stdout


def _what_waits_for_the_jobs_is_told(site: Site) -> None:
    assert site.post(GOOD * 5, "a-2") == 204
    wait_for(lambda: site.counts()["at the hub"] == 9, "the hub has it")
    told = site.types()
    assert told.exit_code == 0
    assert "at the hub, not in bronze:\n  5 wait for ingest: TELEMETRY_0 ends at" in told.stdout
    site.jobs()
    assert site.counts()["in readings"] == 9


def _what_is_still_on_the_leaf_is_told(site: Site) -> None:
    pause = ("command", "edge-1", "pause-link", "for=10m", "--wait", "0s")
    paused = CliRunner().invoke(app, [*pause, "-c", str(site.hub.member.config)])
    assert paused.exit_code == 0
    wait_for(lambda: site.leaf.status()["link"]["state"] == "paused", "the leaf has paused its link")
    assert site.post(GOOD * 7, "a-3") == 204
    wait_for(lambda: site.counts()["stored"] == 17, "the leaf has announced it, and the command's answer")
    told = site.types()
    # The answer to the command crosses the link before the pause or waits with the others.
    assert re.search(r"\b[78] are still on edge-1 \(", told.stdout), told.stdout
    assert told.exit_code == 0


def _a_reading_that_is_gone_is_a_loss(site: Site) -> None:
    lake = site.lake
    replaced(lake, "readings", lambda all_: all_.filter(pc.not_equal(all_["metric"], "rpm")))
    told = site.types()
    assert told.exit_code == 3
    assert "1 are in bronze and nowhere else" in told.stdout
    assert "indexes 3 of 4 are missing from readings" in told.stdout
    assert site.says()["exit"] == 3


def _what_cannot_be_asked_is_told_and_the_rest_is_shown(site: Site) -> None:
    refine_all(site.lake)
    site.hub.end(signal.SIGTERM)
    silent = site.types()
    assert "not looked at: what edge-1 still holds: the agent does not answer" in silent.stdout
    CliRunner().invoke(app, ["server", "stop", "-c", str(site.hub.member.config)])
    away = site.types()
    assert "what is at the hub and not in bronze: the hub's NATS server at" in away.stdout
    assert "in readings" in away.stdout
    assert away.exit_code == 3, "what is missing is missing whatever cannot be asked"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("edge.1",), "domain 'edge.1' is not"),
        (("edge-9",), "there is no leaf 'edge-9'; the hub's configuration has edge-1"),
        (("edge-1", "--from", "soon", "--lake", "."), "--from 'soon' is not a time"),
        (("edge-1", "--from", "1h", "--to", "2h", "--lake", "."), "--from 1h is not before --to 2h"),
        (("edge-1", "--device", "x"), "name them with --lake"),
    ],
)
def test_a_wrong_command_line_is_told(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    with hub_and_leaf(tmp_path) as (hub, leaf):
        keys = hub.member.state / "keys"
        keys.mkdir(parents=True)
        (keys / "registrar.nk").write_bytes((leaf.member.state / "keys" / "link.nk").read_bytes())
        (keys / "registrar.nk").chmod(0o600)

        ended = CliRunner().invoke(app, ["where", *words, "-c", str(hub.member.config)])

    assert (ended.exit_code, said in ended.stderr) == (2, True), ended.stderr
