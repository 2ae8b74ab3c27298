"""Judges server versions, health, storage and domain. Pure.

Known defects cite nats-io/nats-server, or `measured` by this project.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from agent.base.files import Room
from agent.base.nats_server import MINIMUM, Version, parse_version
from agent.base.storage import FLUSHING, storage
from agent.cli.checks import Cause, Finding, Group
from agent.contract import ACCOUNT, Exit
from agent.server.health import MOVE, diagnose, sync_seconds, unsynced

SERVER: Final = Group("server")
DISK: Final = Group("disk")
DOMAIN: Final = Group("domain")
LINK: Final = Group("link")
_MIB: Final = 2**20
_GIB: Final = 2**30

_NEXT_VERSION: Final = (2, 16, 0)
_UPGRADE: Final = f"install nats-server {'.'.join(map(str, MINIMUM))} and restart it"


class KnownDefect(NamedTuple):
    """A fault from `first` to before `fixed`, worst first."""

    first: Version
    fixed: Version
    what: str
    source: str


KNOWN_DEFECTS: Final = (
    KnownDefect((0, 0, 0), (2, 14, 0), "it has no durable sources, over which the link runs", "#7613"),
    KnownDefect(
        (2, 14, 0),
        (2, 15, 0),
        "the hub skips without a word what a leaf sends whose stream was made again",
        "#8346",
    ),
    KnownDefect(
        (2, 14, 0), (2, 14, 1), "every leaf that connects restarts the sources of all other leaves", "#8111"
    ),
    KnownDefect(
        (2, 15, 0), (2, 15, 1), "a source that waits for flow control stops without an error", "#8633"
    ),
)
"""Refused version ranges with their worst fault."""


def judge_version(server: str, text: str) -> Finding:
    version = parse_version(text)
    if version is None:
        return SERVER.failure(f"{server} tells no version ({text:.40})", _UPGRADE)
    if version < MINIMUM:
        fault = next(defect for defect in KNOWN_DEFECTS if defect.first <= version < defect.fixed)
        return SERVER.failure(f"{server} is nats-server {text}: {fault.what} ({fault.source})", _UPGRADE)
    if version >= _NEXT_VERSION:
        return SERVER.warning(
            f"{server} is nats-server {text}, newer than this release knows: from 2.16 on flow control uses "
            "other subjects, which no permission here lets pass",
            _UPGRADE,
        )
    return SERVER.ok(f"{server} is nats-server {text}")


def health(healthz: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield an unhealthy server's own statement."""
    trouble = diagnose(healthz)
    if trouble is None:
        return
    streams = f" of {', '.join(sorted(trouble.streams))}" if trouble.streams else ""
    remedy = "free some room on its disk, then restart it" if trouble.wants_room else "restart it"
    sentence = f"the server says of itself{streams}: {trouble.why}"
    finding = SERVER.failure(sentence, remedy, Exit.LOSS if trouble.needs_start else Exit.FAILED)
    yield finding.causing(Cause.SERVER).after(Cause.DISK)


def synced(varz: Mapping[str, Any], interval: float = 0.0) -> Finding:
    """Judge whether acks follow syncs, or a hub syncs each `interval` seconds."""
    if interval and sync_seconds(varz) == interval:
        kept = "leaves keep their copies until a disk has them"
        return SERVER.ok(f"the server syncs its disk each {interval:g} s, and {kept}")
    if (why := unsynced(varz)) is None:
        return SERVER.ok("the server syncs its disk before it acknowledges")
    sentence, _, remedy = why.partition("; ")
    return SERVER.warning(sentence, f"{remedy}, and restart it")


def kept(places: Mapping[str, Path]) -> Iterator[Finding]:
    """Judge whether file systems keep synced data; one finding per fault."""
    faults: dict[str, list[str]] = {}
    for what, path in places.items():
        if (problem := storage(path).problem) is not None:
            faults.setdefault(problem, []).append(f"{what} ({path})")
    for problem, names in faults.items():
        yield DISK.warning(f"a power cut may take {' and '.join(names)}: {problem}", MOVE)
    if places and not faults:
        yield DISK.ok(f"the file system keeps what is synced of {' and '.join(places)}")


def flushes(kind: str | None) -> Iterator[Finding]:
    """Judge whether a file system keeps files replaced without sync, as nats-server does."""
    if kind not in FLUSHING:
        yield DISK.warning(
            f"the store is on a file system ({kind or 'unknown'}) that may lose a file which is replaced "
            "without a sync, so the server syncs each message and not at registrar.sync_interval",
            'set that to "always", or move the store to ext4 or btrfs',
        )


def judge_room(limit: int, used: int, left: Room | None, key: str, needed: int = 0) -> Finding:
    """Judge disk space for a store of `limit` bytes. `key` is its setting; streams need `needed`."""
    if left is None:
        return DISK.warning(
            "how much room the server's disk has is not known", "run this where the server runs"
        )
    if left.low and not left.few_files:
        return DISK.failure(
            f"the disk of the server's store has {_size(left.free)} left, and below "
            f"{_size(left.reserve)} nothing is taken in",
            f"free at least {_size(2 * left.reserve)} there",
            Exit.LOSS,
        ).causing(Cause.DISK)
    if left.few_files:
        return DISK.failure(
            f"the file system of the server's store has {left.files} inodes left: soon no file can be made "
            "there, whatever room is free",
            "remove files there, or make the file system again with more inodes",
            Exit.LOSS,
        ).causing(Cause.DISK)
    missing = limit - used - left.free + left.reserve
    if missing > 0:
        fitting = max(0, limit - missing) // _MIB
        remedy = f"set {key} to {fitting}MiB or less, or free {_size(missing)}"
        if (beyond := needed - fitting * _MIB) > 0:
            remedy = (
                f"free {_size(missing)}; or make max_bytes of what is stored there smaller by "
                f"{-(-beyond // _MIB)}MiB in all, and set {key} to {fitting}MiB"
            )
        return DISK.warning(
            f"the store may take {_size(limit - used)} more, and its disk has only {_size(left.free)} left",
            remedy,
        )
    return DISK.ok(f"the disk has {_size(left.free)} left, and the store may take {_size(limit - used)}")


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{max(0, count) / _MIB:.0f} MiB"


def jetstream(
    configured: str, info: Mapping[str, Any] | None, hub: Mapping[str, Any] | None, shares_system: bool
) -> Iterator[Finding]:
    """Judge domains of local and hub server. `info` None if JetStream seems absent; `shares_system` for
    joined accounts.
    """
    block = f"jetstream {{ domain: {configured} }}"
    restart = f"write {block} into its configuration and restart it"
    if info is None:
        yield DOMAIN.failure("the local server has no JetStream for this account", restart)
        return
    own_domain, hub_domain = (
        str(info.get("domain") or ""),
        "" if hub is None else str(hub.get("domain") or ""),
    )
    if hub is not None and hub.get("jetstream") and shares_system and own_domain == hub_domain:
        both = f"both are in the domain {own_domain}" if own_domain else "neither has a domain"
        yield DOMAIN.failure(
            f"this server extends the hub's JetStream, for {both} and the link joins their system accounts: "
            "a stream made on one side appears on the other",
            f"{restart}, or take the remote of the system account out of leafnodes",
        )
    elif not own_domain:
        yield DOMAIN.failure("the local server's JetStream has no domain", restart)
    elif own_domain != configured:
        yield DOMAIN.failure(
            f"the local server's domain is {own_domain}, this configuration's {configured}", restart
        )
    else:
        yield DOMAIN.ok(f"the local server's domain is {own_domain}")


def message_sizes(own: Mapping[str, Any], hub: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge whether the hub accepts this leaf's messages; a larger one closes the link again and again."""
    ours, theirs = own.get("max_payload"), hub.get("max_payload")
    if isinstance(ours, int) and isinstance(theirs, int) and theirs < ours:
        yield LINK.warning(
            f"the hub's server takes messages of up to {theirs} bytes, the one of this leaf of up to {ours}: "
            "one between the two would stop the link",
            f"set max_payload = {ours} at the hub's server",
        )


def hub_jetstream(hub: Mapping[str, Any], expected: str) -> Finding:
    """Judge the hub's domain by its greeting."""
    restart = f"write jetstream {{ domain: {expected} }} into its configuration and restart it"
    if not hub.get("jetstream"):
        return DOMAIN.failure("the hub's server has no JetStream", restart)
    if not (domain := str(hub.get("domain") or "")):
        return DOMAIN.failure("the hub's JetStream has no domain, so no leaf can ask for it", restart)
    if domain != expected:
        return DOMAIN.failure(f"the hub's domain is {domain}; leaves look for {expected}", restart)
    return DOMAIN.ok(f"the hub's domain is {domain}")


def is_linked(leafz: Mapping[str, Any]) -> bool:
    """Tell whether the watched account has a link."""
    return any(link.get("account") == ACCOUNT for link in leafz.get("leafs") or [])


def linked(leafz: Mapping[str, Any]) -> Finding:
    """Judge whether the leaf's server has its link."""
    links = leafz.get("leafs") or []
    ours = [str(link.get("name")) for link in links if link.get("account") == ACCOUNT]
    if ours:
        return LINK.ok(f"the local server is linked to {', '.join(sorted(ours))}")
    others = sorted({str(link.get("account")) for link in links})
    if others:
        return LINK.failure(
            f"the local server's link is of account {', '.join(others)}, and the agent watches {ACCOUNT}",
            f"call the account {ACCOUNT} in the local server's configuration, or bind the remote to it",
        )
    return LINK.failure(
        "the local server has no link to the hub",
        f"see the log of the local server; a server of your own needs a remote of account {ACCOUNT} in its "
        "leafnodes",
        Exit.UNREACHABLE,
    ).after(Cause.HUB, Cause.CLOCK)


def shares_system(varz: Mapping[str, Any], leafz: Mapping[str, Any]) -> bool:
    """Tell whether a link binds the system account."""
    system = varz.get("system_account")
    return any(link.get("account") == system for link in leafz.get("leafs") or [])
