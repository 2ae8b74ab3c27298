"""The metrics of the agents, looked at once a second, and once more when all is at rest; and questions to a
server over a short connection, so that no fault outlives them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from agent.contract import inbox_prefix
from tests.faults.oracle.evidence import Metrics
from tests.faults.world.machine import Machine
from tests.harness.wait import following, wait_for

_PERIOD_SECONDS = 1.0
_WAITING = "petiole_in_flight_bytes"
_OWN = ("agent", "commands")
"""Inputs that no device stands behind."""


class Scrapes:
    """What the agents counted, by run."""

    def __init__(self, leaves: Sequence[Machine]) -> None:
        self.found: dict[str, Metrics] = {}
        self._leaves = leaves
        self._ending = threading.Event()

    def at_rest(self) -> None:
        """Nothing is sent any more: the counts of the runs that answer are final once nothing waits in their
        memory to be stored, as may what was only accepted."""
        for leaf in self._leaves:
            run, families = _settled(leaf)
            stored = self._of(run).stored
            stored.clear()
            for name, labels, value in _samples(families):
                if name == "petiole_stored_readings_total" and labels["input"] not in _OWN:
                    cls = labels["class"]
                    stored[cls] = stored.get(cls, 0.0) + value

    def follow(self) -> None:
        """Look until told to end."""
        while not self._ending.wait(_PERIOD_SECONDS):
            for leaf in self._leaves:
                try:
                    run, families = _scrape(leaf)
                except (OSError, ValueError, KeyError):
                    continue  # hurt by the case
                worst = self._of(run).unaccounted
                for name, labels, value in _samples(families):
                    if name == "petiole_unaccounted_readings":
                        worst[labels["class"]] = max(worst.get(labels["class"], 0.0), abs(value))

    def end(self) -> None:
        """Look no more."""
        self._ending.set()

    def _of(self, run: str) -> Metrics:
        return self.found.setdefault(run, Metrics())


@contextmanager
def scrapes(leaves: Sequence[Machine]) -> Iterator[Scrapes]:
    """Looks at these agents as long as the context lasts."""
    with following(Scrapes(leaves)) as one:
        yield one


def _settled(leaf: Machine) -> tuple[str, list[Metric]]:
    found: list[tuple[str, list[Metric]]] = []

    def settled() -> bool:
        found.append(_scrape(leaf))
        return any(not value for name, _, value in _samples(found[-1][1]) if name == _WAITING)

    wait_for(settled, f"all that {leaf.member.domain} accepted is stored")
    return found[-1]


def _scrape(leaf: Machine) -> tuple[str, list[Metric]]:
    """The run of an agent and its metrics. Raises `OSError`, and `ValueError` where it was started anew
    meanwhile."""
    run = str(leaf.status()["run"])
    families = list(text_string_to_metric_families(leaf.metrics()))
    if str(leaf.status()["run"]) != run:
        raise ValueError("another run answers")
    return run, families


def _samples(families: Sequence[Metric]) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in families:
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def asked(url: str, seed: Path, subject: str, payload: bytes = b"") -> dict[str, Any]:
    """What a server answers the registrar, whose key is `seed`. Raises what the connection or the request
    meets."""
    return asyncio.run(_asked(url, seed, subject, payload))


async def _asked(url: str, seed: Path, subject: str, payload: bytes) -> dict[str, Any]:
    nc = await nats.connect(
        url,
        nkeys_seed=str(seed),
        inbox_prefix=inbox_prefix("registrar").encode(),
        allow_reconnect=False,
        connect_timeout=2,
        error_cb=_quiet,
    )
    try:
        found: dict[str, Any] = json.loads((await nc.request(subject, payload, timeout=3)).data)
        return found
    finally:
        await nc.close()


async def _quiet(_error: Exception) -> None:
    """Errors are those that a request raises."""
