"""Stores, state directories and tables that an earlier commit of this project wrote, taken over by this one,
and given back to the earlier one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from agent.contract import Exit, batch_subject
from agent.demo import plan
from agent.demo.loopback import free_port
from agent.demo.plan import Member
from hub_jobs.audit import run as audit
from hub_jobs.ingest import run as ingest
from hub_jobs.refine import run as refine
from tests.faults.guest.edge import only_http
from tests.faults.guest.load import METRIC, Load, arrived, at_hub
from tests.faults.report import Case
from tests.harness.agent_process import PETIOLE, Agent
from tests.harness.wait import WAIT_SECONDS, wait_for
from tests.spark.conftest import spark  # noqa: F401
from tests.spark.lakes import contents

_ROOT = Path(__file__).parents[3]
_JOB_SECONDS = 600.0


class NoHistoryError(Exception):
    """There is no such commit here; the text says why."""


class Earlier:
    """The files of a commit, below `directory`. Raises `NoHistoryError`."""

    def __init__(self, commit: str, directory: Path) -> None:
        self.commit = commit
        self._library = directory / commit
        self._library.mkdir(parents=True)
        archive = ("git", "-C", str(_ROOT), "archive", commit)
        try:
            packed = subprocess.run(archive, capture_output=True, check=False)
        except FileNotFoundError:
            raise NoHistoryError("git is not installed") from None
        if packed.returncode != 0:
            raise NoHistoryError(f"no commit {commit} here: {packed.stderr.decode().strip()}")
        subprocess.run(("tar", "-x", "-C", str(self._library)), input=packed.stdout, check=True)

    @property
    def environment(self) -> dict[str, str]:
        """That of a process that is to run this commit."""
        return {**os.environ, "PYTHONPATH": str(self._library)}

    def job(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a hub job of that commit to its end."""
        command = [sys.executable, "-m", f"hub_jobs.{name}", *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_JOB_SECONDS,
            check=False,
            env=self.environment,
            cwd=self._library,
        )


class EarlierAgent(Agent):
    """An agent of that commit."""

    def __init__(self, earlier: Earlier, member: Member, toml: str) -> None:
        self._earlier = earlier
        super().__init__(member, toml)

    def petiole(self, *command: str, seconds: float = WAIT_SECONDS) -> subprocess.CompletedProcess[str]:
        arguments = [PETIOLE, *command, "-c", str(self.member.config)]
        return subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env=self._earlier.environment,
        )

    def run(self) -> None:
        """Start it, and do not wait for anything; what it says stands in `said`."""
        with self.said.open("w") as said:
            self.process = subprocess.Popen(
                [PETIOLE, "run", "-c", str(self.member.config)],
                stderr=said,
                text=True,
                env=self._earlier.environment,
            )

    def start(self) -> None:
        """Run it; returns when it is ready."""
        self.run()
        wait_for(lambda: self.status_of("/readyz") == 200, f"the agent of {self._earlier.commit} is ready")

    @property
    def said(self) -> Path:
        """What the process wrote to standard error."""
        return self.member.directory / "earlier.log"


def kill(agent: Agent) -> None:
    """End an agent by SIGKILL, and the server that outlives it by SIGTERM."""
    server = agent.server()
    agent.end(signal.SIGKILL)
    assert server is not None
    os.kill(server, signal.SIGTERM)
    wait_for(lambda: agent.server() is None, "the server is gone")


pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(1_800)]

COMMITS = ["b3e9ea5", "8a8110f", "5018b31"]
"""Hours apart, the oldest first; in each the project ran as a whole."""


@pytest.fixture(params=COMMITS)
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Earlier:
    """An earlier commit."""
    try:
        return Earlier(request.param, tmp_path / "earlier")
    except NoHistoryError as error:
        pytest.skip(f"an earlier commit cannot be run: {error}")


def flows(load: Load, by: int = 400) -> None:
    """Return when so many more readings were acknowledged."""
    wanted = load.count + by
    wait_for(lambda: load.count >= wanted, f"{by} more readings are acknowledged")


def ready_or_ended(agent: EarlierAgent) -> bool:
    """Whether an agent that was started takes readings, or has ended."""
    assert agent.process is not None
    return agent.process.poll() is not None or agent.status_of("/readyz") == 200


def wait_confirmed(agent: Agent, what: str) -> None:
    """Return when the hub has all that this leaf holds now; what flows on meanwhile is always ahead of what
    the hub's disk has."""
    last = agent.status()["classes"]["normal"]["last"]
    wait_for(lambda: last <= agent.status()["classes"]["normal"]["confirmed"] > 0, what)


def test_store_state_and_tables_of_an_earlier_commit_are_taken_over(
    earlier: Earlier, tmp_path: Path, case: Case
) -> None:
    case.expected = (
        "all that the earlier commit acknowledged is in the table once, with what comes after it; given "
        "back, the earlier one goes on, or refuses in words and leaves everything as it is"
    )
    hub_member, leaf_port = plan.member(tmp_path, "hub"), free_port()
    member = plan.member(tmp_path, "edge-1")
    toml = only_http(plan.leaf_toml(member, leaf_port))
    old_leaf = EarlierAgent(earlier, member, toml)
    hub_toml = plan.hub_toml(hub_member, leaf_port, [old_leaf.petiole("enrol").stdout])
    old_hub = EarlierAgent(earlier, hub_member, hub_toml)
    leaf, hub = Agent(member, toml), Agent(hub_member, hub_toml)
    lake, key = tmp_path / "lake", hub_member.state / "keys" / "jobs.nk"
    options = ["--server", hub_member.nats_url, "--seed-file", str(key), "--lake", str(lake)]
    load: Load | None = None
    try:
        old_hub.start()
        old_leaf.start()
        load = Load(member.http_port)
        flows(load)
        for name, given in (("ingest", options), ("refine", ["--lake", str(lake)])):
            done = earlier.job(name, *given)
            assert done.returncode == 0, (name, done.stderr[-2_000:])
        kill(old_hub)
        flows(load)  # of which nothing is at the hub
        kill(old_leaf)
        case.begins()
        hub.start()
        leaf.start()
        flows(load)
        wait_confirmed(leaf, "the hub has what the earlier commit stored")
        case.recover_seconds = case.saw("what the earlier commit stored is at the hub")

        kill(leaf)
        kill(hub)
        old_hub.run()
        old_leaf.run()
        for one in (old_hub, old_leaf):
            wait_for(partial(ready_or_ended, one), "it is ready, or has ended")
            assert one.process is not None
            code = one.process.poll()
            what = "it goes on" if code is None else last_words(one)
            case.saw(f"given back to the earlier agent of {one.member.domain}: {what}")
            if code is not None:
                assert code in (Exit.USAGE, Exit.FAILED)
        if old_leaf.process is not None and old_leaf.process.poll() is None:
            flows(load)
        old_leaf.close()
        old_hub.close()

        hub.start()
        leaf.start()
        flows(load, 100)
        load.end()
        wait_confirmed(leaf, "the hub has everything")
        found = arrived(load, at_hub(hub_member, batch_subject("edge-1", "normal", "http")))
        lost = found.lost(load)
        case.sent = case.acknowledged = load.count
        case.lost = len(lost)
        assert ingest.main(options) == Exit.WELL
        assert refine.main(["--lake", str(lake)]) == Exit.WELL
        rows = contents(lake, "readings", "device", "value", "metric")
        serials = [row[:2] for row in rows if row[2] == METRIC]
        case.duplicates = len(serials) - len(set(serials))
        assert (lost, case.duplicates) == ([], 0)
        assert len(serials) >= load.count
        assert audit.main(["--lake", str(lake)]) == Exit.WELL
    finally:
        if load is not None:
            load.end()
        for agent in (old_leaf, leaf, old_hub, hub):
            agent.close()


def last_words(agent: EarlierAgent) -> str:
    """What an agent that ended said at last."""
    return agent.said.read_text().strip().splitlines()[-1][:300]
