"""What follows from the configured leaves as a whole, such as how many aggregates they need. The server's
permissions name each aggregate, so their number follows from the configuration alone and not from what the
hub holds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from agent.config.schema import Config, LeafMember, User
from agent.contract import aggregate, user_consumer


def aggregates(config: Config) -> tuple[str, ...]:
    """The names of the hub's aggregates: enough for every class of every configured leaf, and as many as
    `[registrar] aggregates` asks for."""
    sources = sum(len(leaf.classes) for leaf in config.leaf if leaf is not None)
    needed = -(-sources // config.registrar.max_sources)
    return tuple(aggregate(number) for number in range(max(1, needed, config.registrar.aggregates)))


def readers(config: Config, what: str) -> list[str]:
    """The consumers of the users that may read this class of a leaf, or this aggregate of the hub."""
    return [user_consumer(user.name) for user in config.user if user.key and what in user.reads]


def members_digest(leaves: Iterable[LeafMember]) -> str:
    """A digest of the [[leaf]] tables, by which one sees whether a running agent has taken them in."""
    return _digest(sorted((msgspec.to_builtins(leaf) for leaf in leaves), key=lambda row: row["domain"]))


def users_digest(users: Iterable[User]) -> str:
    """The same of the [[user]] tables."""
    rows = [msgspec.to_builtins(user, enc_hook=int) for user in users]
    return _digest(sorted(rows, key=lambda row: row["name"]))


def _digest(rows: list[dict[str, Any]]) -> str:
    return hashlib.sha256(msgspec.json.encode(rows)).hexdigest()[:16]
