"""Resolves declared links and builds their streams' configurations. Pure.

nats-server identifies sources by name, API prefix, filter and transforms; a changed start or deliver prefix
alone has no effect (`findings/nats-source-start-is-not-updated.sh`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from msgspec import Struct

from agent import config as settings
from agent.contract import HUB_DOMAIN, VERSION, api_prefix, link_deliver

KIND_METADATA: Final = "petiole.declared"
ORIGIN_METADATA: Final = "petiole.origin"

Key = tuple[str, str, str, tuple[tuple[str, str], ...]]


class ResolvedOrigin(Struct, frozen=True):
    """A link's origin. `api` "" is this server; `domain` "" if declared by prefix; `start_time` RFC 3339."""

    stream: str
    domain: str
    api: str
    deliver: str
    start_sequence: int = 0
    start_time: str = ""
    filter: str = ""
    transforms: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> Key:
        """Identifies it among its stream's sources."""
        return self.stream, self.api, self.filter, self.transforms

    @property
    def subjects(self) -> tuple[str, ...]:
        """Taken subjects; empty for all."""
        return (self.filter,) if self.filter else tuple(src for src, _ in self.transforms)

    @property
    def place(self) -> str:
        """Stream and place in words."""
        where = f"domain {self.domain}" if self.domain else self.api or "this server"
        return f"{self.stream} of {where}"

    def entry(self, after: int = 0) -> dict[str, Any]:
        """Return the JetStream entry, continuing after sequence `after`."""
        entry: dict[str, Any] = {"name": self.stream}
        if self.api:
            entry["external"] = {"api": self.api, "deliver": self.deliver}
        if after or self.start_sequence:
            entry["opt_start_seq"] = after + 1 if after else self.start_sequence
        elif self.start_time:
            entry["opt_start_time"] = self.start_time
        if self.filter:
            entry["filter_subject"] = self.filter
        if self.transforms:
            entry["subject_transforms"] = [{"src": src, "dest": dest} for src, dest in self.transforms]
        return entry


class Declared(Struct, frozen=True):
    """A declared mirror, or stream of sources."""

    name: str
    kind: Literal["mirror", "source"]
    origins: tuple[ResolvedOrigin, ...]
    max_bytes: int
    recreate: bool = False

    def link(self, origin: ResolvedOrigin) -> str:
        """Return a link's name for sentences, `/status` and metrics."""
        if self.kind == "mirror":
            return self.name
        return f"{self.name} from {origin.stream}@{origin.domain or origin.api or 'here'}"

    def stream(self) -> dict[str, Any]:
        """Return the configuration without origins. A full mirror drops oldest copies; a full stream of
        sources blocks.
        """
        return {
            "name": self.name,
            "storage": "file",
            "compression": "s2",
            "retention": "limits",
            "discard": "old" if self.kind == "mirror" else "new",
            "max_bytes": self.max_bytes,
            "max_age": 0,
            "max_consumers": -1,
            "allow_direct": True,
            "metadata": {KIND_METADATA: self.kind, "petiole.version": str(VERSION)},
        }

    def made(self, created: str) -> dict[str, Any]:
        """Return the configuration for creation; `created` is the origin's creation time, "" if unknown."""
        config = self.stream()
        if self.kind == "source":
            return {**config, "duplicate_window": 0, "sources": [origin.entry() for origin in self.origins]}
        metadata = config["metadata"] | ({ORIGIN_METADATA: created} if created else {})
        return {**config, "metadata": metadata, "mirror": self.origins[0].entry()}


def key_of(entry: Mapping[str, Any]) -> Key:
    """Return the key of a JetStream entry."""
    transforms = tuple((row["src"], row["dest"]) for row in entry.get("subject_transforms") or [])
    return (
        entry["name"],
        (entry.get("external") or {}).get("api", ""),
        entry.get("filter_subject", ""),
        transforms,
    )


def declared(config: settings.Config) -> list[Declared]:
    mirrors = [
        Declared(
            mirror.name,
            "mirror",
            (_origin(config.domain, mirror, mirror.name),),
            int(mirror.max_bytes),
            mirror.recreate,
        )
        for mirror in config.mirror
    ]
    sources = [
        Declared(
            source.name,
            "source",
            tuple(_origin(config.domain, origin, source.name) for origin in source.from_),
            int(source.max_bytes),
        )
        for source in config.source
    ]
    return mirrors + sources


def _origin(own: str, origin: settings.OriginConfig, name: str) -> ResolvedOrigin:
    domain = "" if origin.api else origin.domain or HUB_DOMAIN
    foreign = bool(domain) and domain != own
    return ResolvedOrigin(
        stream=origin.of or name,
        domain=domain,
        api=origin.api or (api_prefix(domain) if foreign else ""),
        deliver=origin.deliver or (link_deliver(domain, own, name) if foreign else ""),
        start_sequence=origin.start_sequence or 0,
        start_time="" if origin.start_time is None else _rfc3339(origin.start_time),
        filter=origin.filter,
        transforms=tuple((transform.src, transform.dest) for transform in origin.transforms),
    )


def _rfc3339(time: datetime) -> str:
    text = time.astimezone(UTC).isoformat().removesuffix("+00:00")
    return (text.rstrip("0") if "." in text else text) + "Z"
