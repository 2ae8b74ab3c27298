"""Runs the jobs by spark-submit and reports their result as table and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

import hub_jobs
from agent.contract import Exit
from agent.demo.processes import Processes, program

_MASTER = "local[*,4]"
_QUERY = Path(__file__).with_name("query.py")


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """A device's rows, distinct serials, and acknowledged ones of these."""

    rows: int
    distinct: int
    acknowledged: int


@dataclass(frozen=True, slots=True)
class Domain:
    """Acknowledged readings of a domain and their outcome."""

    accepted: int
    in_table: int
    missing: int
    duplicates: int
    discarded: int

    @property
    def whole(self) -> bool:
        return self.missing == 0 and self.duplicates == 0

    @classmethod
    def compare(
        cls, acknowledged: Mapping[str, int], stored: Mapping[str, DeviceRows], discarded: int
    ) -> Domain:
        """Compare acknowledged with stored readings by device."""
        nothing = DeviceRows(0, 0, 0)
        rows = {device: stored.get(device, nothing) for device in acknowledged}
        return cls(
            accepted=sum(acknowledged.values()),
            in_table=sum(row.rows for row in rows.values()),
            missing=sum(count - rows[device].acknowledged for device, count in acknowledged.items()),
            duplicates=sum(row.rows - row.distinct for row in rows.values()),
            discarded=discarded,
        )


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The result; `relink` is seconds by fault."""

    domains: dict[str, Domain]
    relink: dict[str, float]
    seconds: float

    @property
    def whole(self) -> bool:
        """Whether nothing is missing or doubled."""
        return all(domain.whole for domain in self.domains.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "domains": {name: asdict(domain) for name, domain in self.domains.items()},
            "relink_seconds": {fault: round(seconds, 3) for fault, seconds in self.relink.items()},
            "seconds": round(self.seconds, 1),
        }

    def as_table(self) -> Table:
        table = Table(title="every reading acknowledged as stored, and where it is")
        for column in ("domain", "acknowledged", "in the table", "missing", "duplicate"):
            table.add_column(column, justify="left" if column == "domain" else "right")
        for name, domain in self.domains.items():
            table.add_row(
                name,
                *(f"{n:,}" for n in (domain.accepted, domain.in_table, domain.missing, domain.duplicates)),
            )
        return table


@dataclass(frozen=True, slots=True)
class Audited:
    """The audit's verdict, discards by domain, and last sentence."""

    clean: bool
    discarded: dict[str, int]
    said: str


class Jobs:
    def __init__(self, processes: Processes, url: str, seed_file: Path, directory: Path) -> None:
        self._processes, self._directory = processes, directory
        self._lake = str(directory / "lake")
        self._server = ("--server", url, "--seed-file", str(seed_file))

    async def ingest(self) -> None:
        await self._submit("ingest", _job("ingest"), *self._server, "--lake", self._lake)

    async def refine(self) -> None:
        await self._submit("refine", _job("refine"), "--lake", self._lake)

    async def query(self, acknowledged: dict[str, dict[str, int]]) -> dict[str, dict[str, DeviceRows]]:
        """Return stored rows of each domain's devices."""
        question, answer = self._directory / "acknowledged.json", self._directory / "found.json"
        question.write_text(json.dumps(acknowledged))
        await self._submit("query", str(_QUERY), self._lake, str(question), str(answer))
        rows: dict[str, dict[str, DeviceRows]] = {}
        for row in json.loads(answer.read_text()):
            rows.setdefault(row["domain"], {})[row["device"]] = DeviceRows(
                row["rows"], row["distinct"], row["acknowledged"]
            )
        return rows

    async def audit(self) -> Audited:
        report = self._directory / "audit.json"
        code, printed = await self._submit(
            "audit",
            _job("audit"),
            *self._server,
            *("--lake", self._lake, "--json", str(report)),
            accept=(Exit.WELL, Exit.LOSS),
        )
        discarded: dict[str, int] = {}
        for row in json.loads(report.read_text())["rows"]:
            discarded[row["domain"]] = discarded.get(row["domain"], 0) + row["discarded"]
        return Audited(code == Exit.WELL, discarded, printed.strip().rpartition("\n")[2])

    async def _submit(
        self, name: str, script: str, *options: str, accept: tuple[int, ...] = (Exit.WELL,)
    ) -> tuple[int, str]:
        command = (program("spark-submit"), "--master", _MASTER, script, *options)
        return await self._processes.output(name, *command, accept=accept)


def _job(name: str) -> str:
    return str(Path(hub_jobs.__path__[0]) / name / "__main__.py")
