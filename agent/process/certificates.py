"""Watches validity of certificates: configured files and those shown by the hub."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
from msgspec import Struct

from agent.base.certificates import Validity, validity, validity_of_file
from agent.base.logs import LogEdge
from agent.base.metrics import Metrics
from agent.config import Config
from agent.config.certificates import named_certificates

LOOK_SECONDS: Final = 60.0
_Signature = tuple[int, int, int]

log = structlog.get_logger("certificates")


class _Seen(Struct):
    """State of a certificate or file."""

    edge: LogEdge
    signature: _Signature | bytes | None = None
    valid: Validity | None = None
    problem: str = ""
    """Why it is unreadable."""


def fault(valid: Validity | None, problem: str, now: datetime) -> tuple[str, dict[str, Any]] | None:
    """Return a certificate's log event and facts, None if well. Pure."""
    if valid is None:
        return "certificate not read", {"why": problem}
    if now < valid.begins:
        return "certificate not yet valid", {"begins": f"{valid.begins:%Y-%m-%d %H:%M} UTC"}
    if now > valid.ends:
        return "certificate expired", {"ended": f"{valid.ends:%Y-%m-%d %H:%M} UTC"}
    if now > valid.renewal:
        return "certificate expires soon", {"ends": f"{valid.ends:%Y-%m-%d %H:%M} UTC"}
    return None


class CertificateWatch:
    """Watches certificates of `config` and `shown`."""

    def __init__(self, config: Config, metrics: Metrics, shown: Callable[[], Mapping[str, bytes]]) -> None:
        self.config = config
        self._metrics, self._shown = metrics, shown
        self._seen: dict[str, _Seen] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self.look(datetime.now(UTC))
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self, now: datetime) -> None:
        """Reread changes and judge all."""
        known = await asyncio.to_thread(self._read, self.config, dict(self._shown()))
        for gone in self._seen.keys() - known.keys():
            self._metrics.certificate_expiry.remove(gone)
            self._metrics.certificate_renewal.remove(gone)
            self._metrics.certificate_begin.remove(gone)
        self._seen = known
        self._judge(now)

    def rows(self) -> list[dict[str, Any]]:
        """Return faulty certificates for `/status`."""
        now, found = datetime.now(UTC), []
        for name, seen in sorted(self._seen.items()):
            if (what := fault(seen.valid, seen.problem, now)) is not None:
                found.append({"certificate": name, "state": what[0], **what[1]})
        return found

    def _read(self, config: Config, shown: Mapping[str, bytes]) -> dict[str, _Seen]:
        """Read changed certificates, in a thread."""
        now, known = datetime.now(UTC), {}
        for one in named_certificates(config):
            name, signature = f"{one.name} ({one.path})", _signature(one.path)
            seen = known[name] = self._entry(name)
            if signature is None or signature != seen.signature:
                _take(seen, partial(validity_of_file, one.path, now, authorities=one.authorities))
                seen.signature = signature
        for address, der in shown.items():
            name = f"shown by {address}"
            seen = known[name] = self._entry(name)
            if seen.signature != der:
                _take(seen, partial(validity, der))
                seen.signature = der
        return known

    def _entry(self, name: str) -> _Seen:
        return self._seen.get(name) or _Seen(LogEdge(log.bind(certificate=name), "certificate valid"))

    def _judge(self, now: datetime) -> None:
        for name, seen in self._seen.items():
            begins = ends = renewal = 0.0
            if seen.valid is not None:
                ends, renewal = seen.valid.ends.timestamp(), seen.valid.renewal.timestamp()
                begins = seen.valid.begins.timestamp()
            self._metrics.certificate_expiry.labels(name).set(ends)
            self._metrics.certificate_renewal.labels(name).set(renewal)
            self._metrics.certificate_begin.labels(name).set(begins)
            what = fault(seen.valid, seen.problem, now)
            if what is None:
                seen.edge.end()
            else:
                seen.edge.begin(what[0], **what[1])


def _take(seen: _Seen, read: Callable[[], Validity]) -> None:
    try:
        seen.valid, seen.problem = read(), ""
    except OSError as error:
        seen.valid, seen.problem = None, error.strerror or str(error)
    except ValueError as error:
        seen.valid, seen.problem = None, str(error)


def _signature(path: Path) -> _Signature | None:
    """Return a mark that changes with a file's content."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a text may hold what a Path does not take
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
