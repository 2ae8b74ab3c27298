"""What follows from the configured leaves as a whole, such as how many aggregates they need. The server's
permissions name each aggregate, so their number follows from the configuration alone and not from what the
hub holds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from agent.config.schema import Config, LeafMember
from agent.contract import aggregate


def aggregates(config: Config) -> tuple[str, ...]:
    """The names of the hub's aggregates: enough for every class of every configured leaf, and as many as
    `[registrar] aggregates` asks for."""
    sources = sum(len(leaf.classes) for leaf in config.leaf if leaf is not None)
    needed = -(-sources // config.registrar.max_sources)
    return tuple(aggregate(number) for number in range(max(1, needed, config.registrar.aggregates)))


def members_digest(leaves: Iterable[LeafMember]) -> str:
    """A digest of the [[leaf]] tables, by which one sees whether a running agent has taken them in."""
    rows = sorted((msgspec.to_builtins(one) for one in leaves), key=lambda row: row["domain"])
    return hashlib.sha256(msgspec.json.encode(rows)).hexdigest()[:16]
