"""One round, from its first reading to the verdict."""

from __future__ import annotations

import json
from pathlib import Path

from tests.faults.mixed.dimensions import Fault, Headers, Policy, Scenario
from tests.faults.mixed.faults import injection
from tests.faults.mixed.moments import meet
from tests.faults.mixed.site import Site
from tests.faults.mixed.surroundings import open_site
from tests.faults.oracle import ruled
from tests.faults.oracle.journal import Journal
from tests.faults.oracle.judge import Terms
from tests.faults.report import Case
from tests.faults.world.devices import Device
from tests.harness.wait import wait_for

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
