"""One round, from its first reading to the verdict."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.faults.mixed.dimensions import Fault, Headers, Moment, Policy, Scenario
from tests.faults.mixed.faults import Injection, injection
from tests.faults.mixed.site import POLL_SECONDS, Site, kill
from tests.faults.mixed.surroundings import open_site
from tests.faults.oracle import ruled
from tests.faults.oracle.journal import Journal
from tests.faults.oracle.judge import Terms
from tests.faults.report import Case
from tests.faults.world.devices import Device
from tests.faults.world.machine import lives
from tests.harness.wait import wait_for

_LINKS: Final = (Fault.LINK_CUT, Fault.LINK_STALLED, Fault.STREAM_FULL)


def meet(site: Site, first: Injection, second: Injection) -> list[Injection]:
    """Make both; returns those that are still to be mended."""
    return _MOMENTS[site.scenario.moment](site, first, second)


def _while_it_lasts(site: Site, first: Injection, second: Injection) -> list[Injection]:
    first.make()
    site.lasts(0.0, 1.5)
    second.make()
    return [first, second]


def _before_start(site: Site, first: Injection, second: Injection) -> list[Injection]:
    """The agent has ended, and begins under both."""
    leaf, unit = site.environment.leaf, site.agent_unit
    unit.held = True
    pid = leaf.agent.pid
    assert pid is not None
    if site.scenario.has(Fault.AGENT_KILLED):
        kill(pid)
    else:
        os.kill(pid, signal.SIGTERM)
        _until(lambda: leaf.agent.pid is None, 60)
    first.make()
    second.make()
    said = leaf.log.stat().st_size
    unit.held = False
    _until(lambda: leaf.agent.pid is not None, 5)
    begun = leaf.agent.pid
    _until(lambda: leaf.log.stat().st_size > said or leaf.agent.pid != begun, 30)
    site.lasts(0.5, 2.0)
    return [first, second]


def _in_flight(site: Site, first: Injection, second: Injection) -> list[Injection]:
    with _frozen_server(site):
        _asked(site)
        first.make()
        second.make()
    return [first, second]


def _after_answer(site: Site, first: Injection, second: Injection) -> list[Injection]:
    site.wait_answered()
    first.make()
    site.wait_answered(1.0)
    second.make()
    return [first, second]


def _during_repair(site: Site, first: Injection, second: Injection) -> list[Injection]:
    first.make()
    site.lasts(0.3, 2.0)
    logs = [site.environment.leaf.log, site.environment.hub.log]
    sizes = [path.stat().st_size for path in logs]
    first.mend()
    _until(lambda: [path.stat().st_size for path in logs] != sizes, 2)
    second.make()
    return [second]


def _at_drain(site: Site, first: Injection, second: Injection) -> list[Injection]:
    """The agent is asked to end while what it took in cannot be stored yet."""
    with _frozen_server(site):
        _asked(site)
        pid = site.environment.leaf.agent.pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        site.lasts(0.0, 0.3)
        first.make()
        second.make()
    return [first, second]


def _at_reconnect(site: Site, first: Injection, second: Injection) -> list[Injection]:
    """The link comes back after a cut, and with its first connection the second fault."""
    site.hold_link("cut")
    site.lasts(0.5, 1.5)
    first.make()
    site.lasts(0.0, 1.0)
    left = [second]
    before = site.connections()
    site.release_link("cut")
    if first.fault in _LINKS:
        first.mend()
    else:
        left.append(first)
    _until(lambda: site.connections() > before, 5)
    second.make()
    return left


def _during_jobs(site: Site, first: Injection, second: Injection) -> list[Injection]:
    """`ingest` and `refine` run, and are run again until they end well."""
    tables = site.environment.tables

    def work() -> None:
        tables.ingest()
        tables.refine()

    site.jobs = threading.Thread(target=work, daemon=True)
    site.jobs.start()
    site.lasts(0.0, 0.5)
    first.make()
    site.lasts(0.0, 1.0)
    second.make()
    return [first, second]


@contextmanager
def _frozen_server(site: Site) -> Iterator[None]:
    """The leaf's server stands still, unless it is killed meanwhile."""
    pid = site.environment.leaf.nats.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if lives(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _asked(site: Site) -> None:
    if not site.wait_asked():
        site.environment.case.not_proven.append("no request was seen under way")


def _until(true: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


_MOMENTS: Final[dict[Moment, Callable[[Site, Injection, Injection], list[Injection]]]] = {
    Moment.WHILE_IT_LASTS: _while_it_lasts,
    Moment.BEFORE_START: _before_start,
    Moment.IN_FLIGHT: _in_flight,
    Moment.AFTER_ANSWER: _after_answer,
    Moment.DURING_REPAIR: _during_repair,
    Moment.AT_DRAIN: _at_drain,
    Moment.AT_RECONNECT: _at_reconnect,
    Moment.DURING_JOBS: _during_jobs,
}


_SECONDS = 150.0
"""In which all must flow again on a machine that is busy."""


def play(directory: Path, case: Case, scenario: Scenario) -> None:
    """Play a round; fails with a sentence for each promise that was broken."""
    with open_site(directory, case, scenario) as site:
        _prepare(site)
        first, second = injection(site, scenario.first), injection(site, scenario.second)
        left = meet(site, first, second)
        site.lasts(0.3, 2.0)
        site.chance.shuffle(left)
        # A new key is made and taken by processes that have to run again for it.
        for one in sorted(left, key=lambda one: one.fault is Fault.LEAF_REVOKED):
            one.mend()
            case.saw(f"mended: {one.fault}")
        _settle(site)
        blind = site.supervisor.blind
        (directory / "journal.json").write_text(told(site.environment.load.journal))
        forged = scenario.headers is Headers.MESSAGE_ID
        site.environment.verdict(
            Terms(gone=may_be_gone(scenario), reordered=forged, seconds=_SECONDS, blind=blind)
        )


def told(journal: Journal) -> str:
    """What was sent, to look into a round that failed."""
    return json.dumps(
        {
            str(series): {"sent": sent.sent, "acknowledged": sent.acknowledged, "times": sent.requests()}
            for series, sent in journal.series.items()
        }
    )


def may_be_gone(scenario: Scenario) -> bool:
    """Whether its faults destroy the only copy of readings, which the audit must then name: the leaf's store,
    a stream that discards its oldest, or the hub's store where the leaf had to trim what was there."""
    full = scenario.has(Fault.STREAM_FULL)
    return (
        scenario.has(Fault.LEAF_STORE_LOST, Fault.LEAF_STORE_RESTORED)
        or (full and scenario.policy is Policy.OLD)
        or (
            scenario.has(Fault.STREAM_FULL, Fault.DISK_FULL)
            and scenario.has(Fault.HUB_STORE_LOST, Fault.HUB_STORE_RESTORED)
        )
    )


def _prepare(site: Site) -> None:
    environment = site.environment
    for fault, machine in (
        (Fault.LEAF_STORE_RESTORED, environment.leaf),
        (Fault.HUB_STORE_RESTORED, environment.hub),
    ):
        if site.scenario.has(fault):
            site.copy(machine)
            environment.mended()
            environment.load.flows(2)


def _settle(site: Site) -> None:
    """All runs and flows again, and what was offered to inputs that read on is stored."""
    environment = site.environment
    if site.jobs is not None:
        site.jobs.join(_SECONDS)
        assert not site.jobs.is_alive(), "the jobs do not end"
    try:
        for machine in (environment.hub, environment.leaf):
            machine.wait_ready()
        environment.load.flows(2, _SECONDS)
        environment.mended(_SECONDS)
    except AssertionError as error:
        left = [sentence for unit in site.units for sentence in unit.left]
        raise AssertionError("\n".join([str(error), *left])) from None
    if site.forger is not None:
        environment.injected.add("headers are forged", site.forger.trace)
    for device in filter(None, (site.pulled, site.printing)):
        _drain(site, device)
    for unit in site.units:
        unit.held = True


def _drain(site: Site, device: Device) -> None:
    """The last reading of a device is in the leaf's stream."""
    device.end()
    if device is site.pulled:
        device.join(_SECONDS)
    series, sent = device.series, device.sent

    def stored() -> bool:
        last = next((n for n in range(sent.sent, 0, -1) if not ruled.dropped(series, sent, n)), 0)
        return site.newest_number() >= last

    wait_for(stored, f"the last reading of {device.name} is stored", _SECONDS)
