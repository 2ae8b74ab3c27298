"""A process is killed, ended or stopped: the agent of a leaf, its server, the hub's server, the registrar."""

from __future__ import annotations

from tests.faults.matrix.conftest import Worlds
from tests.faults.report import Case
from tests.faults.schedule import schedule, seed_of
from tests.faults.world.configs import LeafSettings
from tests.faults.world.environment import FaultEnvironment
from tests.faults.world.machine import Machine, Program
from tests.harness.wait import wait_for

WHOLE = "nothing acknowledged is lost or doubled; devices repeat the rest under their keys"
HANG_SECONDS = 60.0


def ended_and_back(w: FaultEnvironment, machine: Machine) -> None:
    """A supervisor starts an agent that has ended again; an agent does so with its server."""
    if machine.agent.pid is None:
        w.lasts(1.0)
        machine.start()


def judged(w: FaultEnvironment) -> None:
    """All goes on, and every promise was kept. The recovery itself is timed, before anything else: a process
    that has gone is never taken for well, as a lost store may be for a moment."""
    w.mended()
    w.load.flows()
    w.verdict()


def hangs(w: FaultEnvironment, one: Program, seconds: float = HANG_SECONDS) -> None:
    """A process does nothing for a while."""
    one.freeze()
    w.lasts(seconds)
    one.thaw()


def told_in_time(w: FaultEnvironment) -> None:
    """After a verdict: the leaf told of another state of its link soon after the fault."""
    assert w.case.detect_seconds is not None
    assert w.case.detect_seconds < 20


def test_the_agent_of_a_leaf_is_killed(world_of: Worlds, case: Case) -> None:
    case.expected = WHOLE
    with world_of() as w:
        w.leaf.agent.kill()
        ended_and_back(w, w.leaf)
        judged(w)


def test_the_agent_of_a_leaf_stays_away_while_its_server_goes_on(world_of: Worlds, case: Case) -> None:
    case.expected = f"{WHOLE}; the hub says within three announcements that the agent is silent"
    with world_of() as w:
        w.leaf.agent.kill()
        domain = w.leaf.member.domain

        def silent() -> bool:
            return bool(w.hub.status()["fleet"]["leaves"][domain]["word"] == "silent")

        wait_for(silent, "the hub calls the leaf silent", 45)
        w.leaf.start()
        wait_for(lambda: not silent(), "the hub hears the agent again", 45)
        judged(w)


def test_the_server_of_a_leaf_is_killed(world_of: Worlds, case: Case) -> None:
    case.expected = f"{WHOLE}; its agent starts it again"
    with world_of() as w:
        w.leaf.nats.kill()
        judged(w)


def test_the_server_of_the_hub_is_killed(world_of: Worlds, case: Case) -> None:
    case.expected = f"{WHOLE}; its agent starts it again"
    with world_of() as w:
        w.hub.nats.kill()
        judged(w)


def test_the_registrar_is_killed(world_of: Worlds, case: Case) -> None:
    case.expected = f"{WHOLE}; links that are made flow on without it"
    with world_of() as w:
        w.hub.agent.kill()
        w.load.flows(20)
        ended_and_back(w, w.hub)
        judged(w)


def test_the_agent_and_the_server_of_a_leaf_are_killed_together(world_of: Worlds, case: Case) -> None:
    case.expected = WHOLE
    with world_of() as w:
        w.leaf.agent.kill()
        w.leaf.nats.kill()
        ended_and_back(w, w.leaf)
        judged(w)


def test_the_agent_of_a_leaf_is_killed_with_readings_that_were_only_accepted(
    world_of: Worlds, case: Case
) -> None:
    case.expected = "what was in its memory is lost, as that level says, and the audit calls the run open"
    with world_of(leaf=LeafSettings(ack="accepted"), direct=False) as w:
        w.leaf.nats.freeze()
        w.load.flows(5)
        w.leaf.agent.kill()
        w.leaf.nats.thaw()
        ended_and_back(w, w.leaf)
        judged(w)


def test_the_agent_of_a_leaf_is_ended(world_of: Worlds, case: Case) -> None:
    case.expected = f"it drains and closes its run; {WHOLE}"
    with world_of() as w:
        w.leaf.agent.end()
        ended_and_back(w, w.leaf)
        judged(w)


def test_the_server_of_a_leaf_is_ended(world_of: Worlds, case: Case) -> None:
    case.expected = f"{WHOLE}; its agent starts it again"
    with world_of() as w:
        w.leaf.nats.end()
        judged(w)


def test_the_server_of_the_hub_is_ended(world_of: Worlds, case: Case) -> None:
    case.expected = f"{WHOLE}; its agent starts it again"
    with world_of() as w:
        w.hub.nats.end()
        judged(w)


def test_the_registrar_is_ended(world_of: Worlds, case: Case) -> None:
    case.expected = f"{WHOLE}; links that are made flow on without it"
    with world_of() as w:
        w.hub.agent.end()
        w.load.flows(20)
        ended_and_back(w, w.hub)
        judged(w)


def test_the_agent_of_a_leaf_hangs_for_a_minute(world_of: Worlds, case: Case) -> None:
    case.expected = f"{WHOLE}; the link flows on without it"
    with world_of() as w:
        hangs(w, w.leaf.agent)
        judged(w)


def test_the_server_of_a_leaf_hangs_for_a_minute(world_of: Worlds, case: Case) -> None:
    case.expected = f"{WHOLE}; the agent tells it within 20 s and refuses meanwhile"
    with world_of() as w:
        hangs(w, w.leaf.nats)
        judged(w)
        told_in_time(w)


def test_the_server_of_the_hub_hangs_for_a_minute(world_of: Worlds, case: Case) -> None:
    case.expected = f"{WHOLE}; the leaf tells it within 20 s and stores meanwhile"
    with world_of() as w:
        hangs(w, w.hub.nats)
        judged(w)
        told_in_time(w)


def test_the_registrar_hangs_for_a_minute(world_of: Worlds, case: Case) -> None:
    case.expected = f"{WHOLE}; the leaf calls its link unverified, and data flows on"
    with world_of() as w:
        hangs(w, w.hub.agent)
        judged(w)


def test_processes_are_killed_ended_and_stopped_in_random_order(world_of: Worlds, case: Case) -> None:
    case.expected = WHOLE
    case.seed = seed_of()
    with world_of(leaves=2) as w:
        machines = [w.hub, *w.leaves]
        programs = {one.name: (machine, one) for machine in machines for one in (machine.agent, machine.nats)}
        ways = [f"{way} {name}" for way in ("kill", "end", "hang") for name in programs]
        for step in schedule(case.seed, ways, 1, 3.0):
            way, _, name = step.fault.partition(" ")
            machine, program = programs[name]
            w.lasts(step.after)
            machine.wait_ready()
            if way == "hang":
                hangs(w, program, 5.0)
            else:
                {"kill": program.kill, "end": program.end}[way]()
                ended_and_back(w, machine)
        judged(w)
