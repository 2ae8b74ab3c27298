"""The hub's jobs as an operator runs them: by spark-submit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import hub_jobs
from agent.contract import Exit
from agent.demo.plan import Member
from agent.demo.processes import Processes, program
from agent.demo.report import DeviceRows

_MASTER = "local[*,4]"
_QUERY = Path(__file__).with_name("query.py")


@dataclass(frozen=True, slots=True)
class Audited:
    """What the audit said: whether nothing is lost, readings discarded by domain, and its last sentence."""

    clean: bool
    discarded: dict[str, int]
    said: str


class Jobs:
    """Runs the jobs against one hub and one lake."""

    def __init__(self, processes: Processes, hub: Member, directory: Path) -> None:
        self._processes, self._directory = processes, directory
        self._lake = str(directory / "lake")
        self._server = ("--server", hub.nats_url, "--seed-file", str(hub.state / "keys" / "jobs.nk"))

    async def ingest(self) -> None:
        """The hub's stream into `bronze`."""
        await self._submit("ingest", _job("ingest"), *self._server, "--lake", self._lake)

    async def refine(self) -> None:
        """`bronze` into `readings`."""
        await self._submit("refine", _job("refine"), "--lake", self._lake)

    async def query(self, acknowledged: dict[str, dict[str, int]]) -> dict[str, dict[str, DeviceRows]]:
        """What `readings` holds of each domain's devices."""
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
        """What the audit finds."""
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
