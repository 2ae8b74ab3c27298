"""An audit that leaves out what is settled says what one says that reads everything."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from agent.contract import Exit, Readings
from hub_jobs.maintain import run as maintain
from tests.spark.lakes import DRIVER, add_bronze, audited, killed, told
from tests.unit.hub_jobs.audit.planted import lake as lakes
from tests.unit.hub_jobs.audit.planted.plants import BIT, PLANTS, WELL, Plant, Said
from tests.unit.hub_jobs.refined import refine_all
from tests.unit.hub_jobs.rows import ARRIVED_US, LEDGER, LINE, batch_row, direct_row, ledger_row

HOUR_US = 3_600_000_000
ANOTHER = {"stream": "TELEMETRY_1", "domain": "edge-9", "source_stream": "TEL_edge-9_normal"}


def after(hours: float, **given: Any) -> dict[str, Any]:
    """A message of another leaf that arrived so much later than what is to be settled."""
    at = {"arrived": ARRIVED_US + int(hours * HOUR_US), "source_seq": 1}
    return direct_row(b"1") | ANOTHER | {"subject": "tel.edge-9.normal.pump.pressure"} | at | given


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lake of the planted lies, settled but for a message that arrived hours later."""
    lake = tmp_path_factory.mktemp("settled") / "lake"
    lakes.make(lake, [after(3)])
    code, said = audited(lake)
    assert (code, said["settled"]["until"] is not None) == (Exit.WELL, True)
    return lake


@pytest.fixture
def lake(whole: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    copy = tmp_path / "lake"
    shutil.copytree(whole, copy)
    return copy


def findings(lake: Path, *options: str) -> Said:
    code, _, said = told(lake, *options)
    return code, said


@pytest.mark.parametrize(
    "plant", PLANTS, ids=[f"{plant.table}: {plant.lie} by {plant.by}: {plant.what}" for plant in PLANTS]
)
def test_what_is_planted_below_what_is_settled_is_told(lake: Path, plant: Plant) -> None:
    plant.plant(lake)

    due = WELL if plant.by == BIT and plant.table != "seen" else plant.plain
    for options, (expected, said) in (([], due), (["--all"], plant.plain), (["--deep"], plant.deep)):
        code, told = findings(lake, *options)
        assert (code, said in told, bool(said)) == (expected, True, bool(told)), told


def test_what_an_audit_of_everything_has_found_the_next_one_finds_too(lake: Path) -> None:
    (plant,) = (
        plant for plant in PLANTS if (plant.table, plant.by, plant.plain[0]) == ("readings", BIT, Exit.LOSS)
    )
    plant.plant(lake)
    for options, due in ([], Exit.WELL), (["--all"], Exit.LOSS), ([], Exit.LOSS), ([], Exit.LOSS):
        assert findings(lake, *options)[0] is due, options


@pytest.mark.parametrize("stream", ["TELEMETRY_0", "TELEMETRY_1"])
def test_hours_are_settled_again_after_the_clock_of_the_hub_was_ahead(tmp_path: Path, stream: str) -> None:
    """The message that came then is followed by others of its stream, or stays its last one."""
    lake, until, again = tmp_path / "lake", list[datetime](), list[bool]()
    coming = [(0, "TELEMETRY_0"), (650_000, stream), *((hour, "TELEMETRY_0") for hour in (3, 5))]
    for source_seq, (hour, of) in enumerate(coming, 1):
        identity = {"stream": of, "source_identity": of, "source_seq": source_seq}
        add_bronze(lake, [direct_row(b"1", arrived=ARRIVED_US + hour * HOUR_US, **identity)])
        refine_all(lake)
        said = audited(lake)[1]["settled"]
        until.append(datetime.fromisoformat(said["until"]))
        again.append("clock was ahead" in (said["read_again"] or ""))
    maintain.main(["--lake", str(lake)])
    until.append(datetime.fromisoformat(audited(lake)[1]["settled"]["until"]))

    hours = [(moment - until[0]).total_seconds() / 3600 for moment in until[2:]]
    assert hours == [3, 5, 5]
    assert again == [False, False, stream == "TELEMETRY_0", False]


class _Nights:
    """A lake that grows by the hour in ways that chance chooses: batches and messages of devices, what comes
    again, streams that are taken in late, and tables that are written together."""

    def __init__(self, lake: Path, seed: int) -> None:
        self.lake, self.chance = lake, random.Random(seed)
        self.n = dict.fromkeys(range(2), 0)
        self.source_seq = dict(self.n)
        self.sent: list[dict[str, Any]] = []
        self.waiting: list[dict[str, Any]] = []

    def hour(self, at: int) -> None:
        """What arrives within an hour."""
        for minute in range(0, 60, 12):
            stream = self.chance.randrange(2)
            self.source_seq[stream] += 1
            row = self._row(stream) | {
                "stream": f"TELEMETRY_{stream}",
                "source_identity": f"abc{stream}",
                "source_seq": self.source_seq[stream],
            }
            if self.sent and self.chance.random() < 0.15:
                row = dict(self.chance.choice(self.sent))
            if row["n"] is None and self.sent and self.chance.random() < 0.1:
                # A store that was restored uses sequences again.
                row["source_seq"] = self.chance.choice(self.sent)["source_seq"]
                row["digest"] = row["digest"][::-1]
            self.sent.append(row)
            arrived = ARRIVED_US + at * HOUR_US + minute * 60_000_000
            self.waiting.append(row | {"arrived": arrived, "stream": f"TELEMETRY_{stream}"})
        taken = [row for row in self.waiting if row["stream"][-1] == "0" or self.chance.random() < 0.5]
        self.waiting = [row for row in self.waiting if row not in taken]
        add_bronze(self.lake, taken)
        if self.chance.random() < 0.8:
            refine_all(self.lake)
        if self.chance.random() < 0.3:
            maintain.main(["--lake", str(self.lake)])

    def _row(self, stream: int) -> dict[str, Any]:
        kind = self.chance.random()
        if kind < 0.3:
            return direct_row(self.chance.choice([b"1", b"no"]))
        if kind < 0.4:
            said = Readings(accepted=4 * self.n[stream], stored=4 * self.n[stream])
            ledger = replace(LEDGER, n=self.n[stream], stored=((1, max(self.n[stream], 1)),), readings=said)
            return ledger_row(replace(ledger, run=f"{LEDGER.run[:-1]}{stream}", final=False))
        self.n[stream] += 1
        lines = LINE * 3 + self.chance.choice([LINE, b"bad\n"])
        return batch_row(lines, n=self.n[stream]) | {"run": f"{LEDGER.run[:-1]}{stream}"}


@pytest.mark.parametrize("seed", range(4))
def test_every_night_it_says_what_an_audit_of_everything_says(tmp_path: Path, seed: int) -> None:
    lake, whole = tmp_path / "lake", tmp_path / "whole"
    nights, settled = _Nights(lake, seed), []
    for night in range(3):
        for hour in range(4):
            nights.hour(night * 4 + hour)
        shutil.copytree(lake, whole)
        said, everything = audited(lake), audited(whole, "--all")
        assert _told(said) == _told(everything)
        shutil.rmtree(whole)
        settled.append(said[1]["settled"]["until"])
    assert settled[-1] is not None


def _told(said: tuple[Exit, dict[str, Any]]) -> Sequence[Any]:
    code, found = said
    return code, found["rows"], found["gaps"], sorted(found["findings"])


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_audit_that_is_killed_as_it_settles_leaves_what_is_true(tmp_path: Path, moment: str) -> None:
    lake = tmp_path / "lake"
    lakes.make(lake, [after(3)])
    program = f"""{DRIVER}
whole = Table.commit
def commit(table, *given, **more):
    if table.name == "settled" and {moment!r} == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    whole(table, *given, **more)
    if table.name == "settled":
        os.kill(os.getpid(), signal.SIGKILL)
Table.commit = commit
from hub_jobs.audit.run import main
main(["--lake", {str(lake)!r}])
"""
    killed(tmp_path / "driver.py", program)

    DeltaTable(str(lake / "readings")).delete('n = 3 AND "index" = 4')
    code, said = audited(lake)
    assert (code, said["settled"]["read_again"] is None) == (Exit.LOSS, moment == "before")
    assert any("batch 3: indexes 4 of 10 are missing" in finding for finding in said["findings"])


def test_a_batch_that_is_not_in_order_keeps_back_what_is_behind_it(lake: Path) -> None:
    add_bronze(lake, [after(hours, source_seq=hours) for hours in (6, 9)])
    refine_all(lake)
    DeltaTable(str(lake / "readings")).delete(f"source_seq = 6 AND domain = '{ANOTHER['domain']}'")

    until = [audited(lake, *options)[1]["settled"]["until"] for options in ([], ["--all"])]
    add_bronze(lake, [after(12, source_seq=12)])
    refine_all(lake)
    code, said = audited(lake)
    assert (code, {said["settled"]["until"], *until}) == (Exit.LOSS, {until[0]})
    assert datetime.fromisoformat(until[0]).timestamp() * 1e6 <= ARRIVED_US + 6 * HOUR_US


def test_a_lake_without_the_table_is_read_and_settled(lake: Path) -> None:
    shutil.rmtree(lake / "settled")
    code, said = audited(lake)
    assert (code, said["settled"]["read_again"], bool(said["settled"]["until"])) == (Exit.WELL, None, True)


def test_what_is_only_written_together_or_changed_in_its_values_stays_settled(lake: Path) -> None:
    for name in ("bronze", "readings", "quarantine"):
        DeltaTable(str(lake / name)).optimize.compact()
    DeltaTable(str(lake / "readings")).update(updates={"value": "1"}, predicate="n = 3")
    options = maintain.MaintainOptions(lake, -36_500.0, 7.0, False)
    assert maintain.run(options) is Exit.WELL

    code, said = audited(lake)
    assert (code, said["settled"]["read_again"]) == (Exit.WELL, None)
    assert {row["in_bronze"] for row in said["rows"]} == {60, 3, 1}


def test_a_file_that_was_vacuumed_before_its_change_was_seen_has_all_read_again(lake: Path) -> None:
    table = DeltaTable(str(lake / "readings"))
    table.update(updates={"value": "1"}, predicate="n = 3")
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    code, said = audited(lake)
    assert (code, "what it held can't be read" in said["settled"]["read_again"]) == (Exit.WELL, True)
