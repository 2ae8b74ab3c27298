"""The jobs, run in this process with the one Spark session, and what the tables hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agent.contract import Exit, Ledger, leaf_stream, parse_ledger
from agent.demo.plan import Member
from hub_jobs.audit import run as audit
from hub_jobs.ingest import run as ingest
from hub_jobs.refine import run as refine
from hub_jobs.tables.delta import open_table
from hub_jobs.tables.gap_notes import GapReason
from hub_jobs.tables.scan import Condition, batches
from tests.faults.oracle.again import COLUMNS, SentAgain, sent_again
from tests.faults.oracle.evidence import Account, Audit, Gap, Named, Row, Run
from tests.faults.oracle.numbered import LIFE, NUMBER, short
from tests.harness.wait import wait_for

_READINGS = (
    "domain",
    "class",
    "device",
    "metric",
    "value",
    "text",
    "tags",
    "ts",
    "ts_source",
    "run",
    "n",
    "index",
    "arrived",
    "source_seq",
)
_AT_ONCE = 2_048
"""Rows; they may be long."""


class Tables:
    """The lake of a fault environment."""

    def __init__(self, hub: Member, lake: Path) -> None:
        self.lake = lake
        self.server = ["--server", hub.nats_url, "--seed-file", str(hub.state / "keys" / "jobs.nk")]

    def ingest(self) -> Exit:
        """The hub's stream into `bronze`, run again while the hub is not reached, as its timer does; raises
        nothing where the stream has gaps."""
        said: list[Exit] = []

        def reached() -> bool:
            said.append(ingest.main([*self.server, "--lake", str(self.lake)]))
            return said[-1] is not Exit.UNREACHABLE

        wait_for(reached, "ingest reaches the hub")
        return said[-1]

    def refine(self) -> Exit:
        """`bronze` into `readings`."""
        return refine.main(["--lake", str(self.lake)])

    def audit(self) -> Audit:
        """What the audit says."""
        report = self.lake.with_name("audit.json")
        code = audit.main([*self.server, "--lake", str(self.lake), "--json", str(report)])
        assert code in (Exit.WELL, Exit.LOSS), f"the audit ends with {code}"
        found = json.loads(report.read_text())
        accounts = [Account.of(one) for one in found["rows"]]
        gaps = {place: _gaps(found["gaps"], *place) for place in {(one.domain, one.cls) for one in accounts}}
        return Audit(accounts, found["findings"], lost=code is Exit.LOSS, gaps=gaps)

    def readings(self) -> list[Row]:
        """All rows of `readings`."""
        return [_row(one) for one in self._rows("readings", *_READINGS)]

    def quarantine(self) -> list[Named]:
        """All rows of `quarantine`."""
        found = self._rows("quarantine", "domain", "class", "excerpt", "reason")
        return [Named(one["domain"], one["class"], _numbered(one["excerpt"]), one["reason"]) for one in found]

    def ledgers(self) -> dict[Run, Ledger]:
        """The newest record of each run."""
        newest: dict[Run, Ledger] = {}
        subjects = {row["subject"] for row in self._rows("bronze", "subject")}
        own = [name for name in subjects if name.endswith("._ledger")]
        for row in self._rows("bronze", "subject", "payload", where=[("subject", "in", own)]):
            one = parse_ledger(bytes(row["payload"]))
            known = newest.get((one.domain, one.cls, one.run))
            if known is None or (one.final, one.readings.accepted) >= (known.final, known.readings.accepted):
                newest[one.domain, one.cls, one.run] = one
        return newest

    def sent_again(self) -> SentAgain:
        """What came to the hub though it had it."""
        return sent_again(self._rows("bronze", *COLUMNS))

    def _rows(self, name: str, *columns: str, where: Sequence[Condition] = ()) -> Iterator[dict[str, Any]]:
        table = open_table(self.lake, name)
        if table is not None:
            for batch in batches(table, columns, where, batch_rows=_AT_ONCE):
                yield from batch.to_pylist()


def _gaps(gaps: Sequence[dict[str, Any]], domain: str | None, cls: str | None) -> list[Gap]:
    """What is named of a leaf's stream as gone."""
    if domain is None or cls is None:
        return []
    stream = leaf_stream(domain, cls)
    named = [one for one in gaps if one["kind"] == "source"]
    mine = [one for one in named if one["name"].partition(" ")[0].partition("/")[0] == stream]
    return [
        Gap(first, last, one["why"] == GapReason.DISCARDED, one["why"] == GapReason.STORE_LOST)
        for one in mine
        for first, last in one["ranges"]
    ]


def _row(given: dict[str, Any]) -> Row:
    told = {**given, "tags": dict(given["tags"] or ())}
    for name in ("ts", "arrived"):
        at = told[name]
        told[name] = None if at is None else int(at.timestamp()) * 1_000_000 + at.microsecond
    told["text"] = None if told["text"] is None else short(told["text"])
    return Row(*(told[name] for name in _READINGS))


def _numbered(excerpt: bytes | None) -> tuple[str, int, int] | None:
    """The device, life and number that a line shows."""
    try:
        line = json.loads(excerpt or b"")
        return str(line["device"]), int(line["tags"][LIFE]), int(line["tags"][NUMBER])
    except (ValueError, KeyError, TypeError):
        return None
