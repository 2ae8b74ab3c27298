"""A constant load for hours, and faults in an order that a seed decides: nothing acknowledged is lost or
doubled, and what the processes hold stays as it is. `make soak HOURS=n SEED=n`, fractions allowed."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.faults.report import Case
from tests.faults.schedule import schedule, seed_of
from tests.faults.world.configs import HubSettings, LeafSettings
from tests.faults.world.environment import FaultEnvironment, open_environment
from tests.soak.flat import judged
from tests.soak.picture import picture
from tests.soak.sampling import ALLOWANCES, SHOWN, Samples, monitored, samples
from tests.spark.conftest import spark

__all__ = ["spark"]

HOURS = float(os.environ.get("HOURS") or 0.25)
OUT = Path("build/soak")
PACE = 0.25
"""Seconds between two requests of a device: the whole takes about a third of a core, so that a run of hours
leaves the machine to others."""
PAUSE_SECONDS = 30.0
INGEST_SECONDS = 180.0
"""How often the jobs take what the hub holds, so that its stream is purged as in operation."""
RECOVERY_SECONDS = 240.0
EARLY = 0.25
"""Of the time in which the hub's server is killed too; what it holds is judged of the life that follows."""
# Small, so that they are trimmed and purged within minutes.
LEAF = 'max_bytes = "2MiB"'
HUB = 'max_bytes = "64MiB"\nkeep = 2000'


def cut(w: FaultEnvironment, chance: random.Random) -> None:
    """The link is away for a while."""
    w.link.cut()
    w.noticed()
    w.lasts(chance.uniform(1, 20))
    w.link.restore()


def stall(w: FaultEnvironment, chance: random.Random) -> None:
    """The link is half-open until that is noticed."""
    w.link.stall()
    w.noticed()
    w.lasts(chance.uniform(0, 10))
    w.link.restore()


def kill_agent(w: FaultEnvironment, _chance: random.Random) -> None:
    """The agent of the second leaf dies."""
    w.leaves[1].agent.kill()
    w.leaves[1].start()


def end_agent(w: FaultEnvironment, _chance: random.Random) -> None:
    """It is started anew in good order."""
    w.leaves[1].agent.end()
    w.leaves[1].start()


def kill_leaf_server(w: FaultEnvironment, _chance: random.Random) -> None:
    """Its server dies."""
    w.leaves[1].nats.kill()


def kill_hub_server(w: FaultEnvironment, _chance: random.Random) -> None:
    """The hub's server dies."""
    w.hub.nats.kill()


def hang_agent(w: FaultEnvironment, chance: random.Random) -> None:
    """The agent of the second leaf does nothing for a while."""
    w.leaves[1].agent.freeze()
    w.lasts(chance.uniform(16, 20))
    w.leaves[1].agent.thaw()


def hang_hub_server(w: FaultEnvironment, chance: random.Random) -> None:
    """The hub's server does nothing until that is noticed."""
    w.hub.nats.freeze()
    w.noticed()
    w.lasts(chance.uniform(0, 5))
    w.hub.nats.thaw()


FAULTS: dict[str, Callable[[FaultEnvironment, random.Random], None]] = {
    one.__name__: one
    for one in (
        cut,
        stall,
        kill_agent,
        end_agent,
        kill_leaf_server,
        kill_hub_server,
        hang_agent,
        hang_hub_server,
    )
}
"""The agents of the first leaf and of the hub, and the first leaf's server, are left alive: what they hold is
followed from the begin to the end."""


@pytest.mark.timeout(int(HOURS * 3600) + 3600)
def test_nothing_grows_and_nothing_is_lost(tmp_path: Path, spark: object) -> None:
    seed = seed_of()
    case = Case(f"soak of {HOURS * 60:.0f} minutes, seed {seed}")
    report: dict[str, Any] = {"hours": HOURS, "seed": seed, "series": [], "flat": None, "kept": False}
    ports = tmp_path / "ports"
    ports.mkdir()
    leaf = LeafSettings(cls=LEAF, nats=monitored(ports))
    hub = HubSettings(registrar=HUB, nats=monitored(ports))
    with open_environment(tmp_path, case, leaves=2, devices=2, size=20, pace=PACE, leaf=leaf, hub=hub) as w:
        try:
            with samples([w.hub, *w.leaves], ports) as seen:
                try:
                    report["faults"] = soak(w, seed)
                finally:
                    report["series"] = series = [_row(seen, *key) for key in sorted(seen.series)]
                    report["flat"] = all(one.get("flat") is not False for one in series)
                    write_picture(seen, case, w)
            w.verdict()
            report["kept"] = True
        finally:
            report |= {"sent": case.sent, "acknowledged": case.acknowledged, "lost": case.lost}
            report |= {"doubled": case.duplicates, "seen": case.seen}
            OUT.mkdir(parents=True, exist_ok=True)
            (OUT / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    grown = [
        f"{one['who']}: {one['measure']} by {one['growth']:.1f}" for one in series if one.get("flat") is False
    ]
    assert not grown, f"what grows: {grown}"


def soak(w: FaultEnvironment, seed: int) -> dict[str, int]:
    """Faults until the time is over; how many of each there were."""
    chance, end = random.Random(seed), time.monotonic() + HOURS * 3600
    done: dict[str, int] = {}
    ingested = time.monotonic()
    number = 0
    while time.monotonic() < end:
        number += 1
        late = time.monotonic() > end - (1 - EARLY) * HOURS * 3600
        names = [name for name in FAULTS if not (late and name == kill_hub_server.__name__)]
        for step in schedule(seed * 1000 + number, names, 1, PAUSE_SECONDS):
            if time.monotonic() >= end:
                break
            w.lasts(step.after)
            FAULTS[step.fault](w, chance)
            w.mended(RECOVERY_SECONDS)
            w.load.flows()
            done[step.fault] = done.get(step.fault, 0) + 1
            if time.monotonic() - ingested > INGEST_SECONDS:
                w.tables.ingest()
                ingested = time.monotonic()
    return done


def _row(seen: Samples, who: str, measure: str) -> dict[str, Any]:
    one = seen.series[who, measure]
    bound = ALLOWANCES.get(measure)
    told: dict[str, Any] = {
        "who": who,
        "measure": measure,
        "lives": len(one.lives),
        "least": min(value for _, value in one.points),
        "most": max(value for _, value in one.points),
    }
    return told | ({} if bound is None else asdict(judged(one.longest, bound)))


def write_picture(seen: Samples, case: Case, w: FaultEnvironment) -> None:
    """Draw what was sampled, and keep it for another look."""
    OUT.mkdir(parents=True, exist_ok=True)
    now, wall = time.monotonic(), time.time()
    faults = [now - seen.began - (wall - one.at) for one in w.injected.made]
    series = list(seen.series.values())
    (OUT / "soak.svg").write_text(picture(case.case, series, faults, SHOWN))
    kept = {"faults": faults, "series": [asdict(one) for one in series]}
    (OUT / "samples.json").write_text(json.dumps(kept) + "\n")
