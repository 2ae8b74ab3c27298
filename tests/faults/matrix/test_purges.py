"""The stream of the hub is purged by hand, before what it held is in the table."""

from __future__ import annotations

import json
import re
from typing import Any

from agent.contract import aggregate
from tests.faults.matrix.conftest import Worlds
from tests.faults.matrix.scenarios import in_table, judged
from tests.faults.oracle.judge import Terms
from tests.faults.report import Case
from tests.faults.world.environment import FaultEnvironment
from tests.faults.world.scrape import asked
from tests.harness.agents import StreamProbe, ask_stream
from tests.harness.wait import wait_for

NAMED = "what was purged and is not in the table is named by the audit; all else is there once"
_RESEND_SECONDS = 300.0
"""It waits until the leaf's stream has forgotten the ids."""


def ahead_of_the_table(w: FaultEnvironment) -> None:
    """The hub holds what is in the table, and what is not."""
    in_table(w)
    w.load.flows(20)
    w.mended()


def purge(w: FaultEnvironment) -> None:
    """All that the aggregate holds goes."""
    hub = w.hub.member
    seed = hub.state / "keys" / "registrar.nk"
    gone: list[int] = []
    w.injected.add("the aggregate is purged", lambda _since: f"{gone[0]} messages went" if gone[0] else None)
    answer = asked(hub.nats_url, seed, f"$JS.API.STREAM.PURGE.{aggregate(0)}")
    gone.append(int(answer["purged"]))


async def acknowledged(probe: StreamProbe) -> int:
    """Up to which sequence of the leaf's stream the hub has acknowledged what it took."""
    (consumer,) = await probe.link_consumers()
    return (await probe.js.consumer_info(probe.stream, consumer)).ack_floor


def test_the_aggregate_is_purged(world_of: Worlds, case: Case) -> None:
    case.expected = f"the link flows on; {NAMED}"
    with world_of() as w:
        ahead_of_the_table(w)
        purge(w)
        judged(w, Terms(gone=True))
        assert case.named


def test_the_aggregate_is_purged_when_the_link_is_down(world_of: Worlds, case: Case) -> None:
    case.expected = f"what waits at the leaf comes; {NAMED}"
    with world_of() as w:
        w.load.flows(20)
        w.mended()
        # What the leaf's server does not know to be at the hub comes again, and nothing of it is gone.
        last = w.last(w.leaf)
        wait_for(
            lambda: ask_stream(w.leaf.member, acknowledged) >= last, "the hub acknowledges what it holds"
        )
        w.link.cut()
        w.noticed()
        w.load.flows(20)
        purge(w)
        w.link.restore()
        judged(w, Terms(gone=True))
        assert case.named


def test_the_aggregate_is_purged_when_all_is_in_the_table(world_of: Worlds, case: Case) -> None:
    case.expected = "the link flows on; nothing acknowledged is lost or doubled"
    with world_of() as w:
        w.load.flows(20)
        w.link.cut()
        w.noticed()
        w.tables.ingest()
        purge(w)
        w.link.restore()
        judged(w)


def test_the_aggregate_is_purged_and_the_server_of_the_hub_is_killed(world_of: Worlds, case: Case) -> None:
    case.expected = f"the hub's server goes on where the leaf knows that it was; {NAMED}"
    with world_of() as w:
        ahead_of_the_table(w)
        w.link.cut()
        w.noticed()
        w.load.flows(20)
        purge(w)
        w.hub.nats.kill()
        w.link.restore()
        wait_for(lambda: w.hub.nats.pid is not None, "the server of the hub is started again")
        judged(w, Terms(gone=True))


def test_the_aggregate_is_purged_and_its_leaf_sends_again_what_the_audit_names(
    world_of: Worlds, case: Case
) -> None:
    case.expected = (
        "the audit names batches and says that the leaf still has them, `petiole resend` brings them back: "
        "nothing acknowledged is lost or doubled"
    )
    with world_of(direct=False) as w:
        ahead_of_the_table(w)
        purge(w)
        w.load.flows()
        # A run that goes on tells each minute which batches it stored.
        wait_for(lambda: bool(named(w)), "the audit names batches", 300)
        for run, first, last in named(w):
            done = w.leaf.petiole(
                *("resend", "--run", run, "--from", first, "--to", last, "--json"), seconds=_RESEND_SECONDS
            )
            assert done.returncode == 0, (done.stdout, done.stderr)
            w.injected.repaired(f"{count(json.loads(done.stdout))} batches are sent again")
        judged(w)


def named(w: FaultEnvironment) -> list[tuple[str, str, str]]:
    """Run, first and last number of the batches that the audit calls missing, once it says that the leaf
    still has them, as the leaf announces from time to time."""
    in_table(w)
    findings = w.tables.audit().findings
    if not any("the leaf still has" in one for one in findings):
        return []
    said = [found for one in findings if (found := re.search(r"run (\S+): batches ([\d, -]+) were", one))]
    spans = [(one[1], span.partition("-")) for one in said for span in one[2].split(", ")]
    return [(run, first, last or first) for run, (first, _, last) in spans]


def count(report: dict[str, Any]) -> int:
    """How many batches were sent again."""
    return sum(last - first + 1 for one in report["runs"] for first, last in one["sent"])
