"""How many aggregates the configured leaves need. The server's permissions name each of them, so their number
follows from the configuration alone and not from what the hub holds."""

from __future__ import annotations

from agent.config.schema import Config
from agent.contract import aggregate


def aggregates(config: Config) -> tuple[str, ...]:
    """The names of the hub's aggregates: enough for every class of every configured leaf, and as many as
    `[registrar] aggregates` asks for."""
    sources = sum(len(leaf.classes) for leaf in config.leaf if leaf is not None)
    needed = -(-sources // config.registrar.max_sources)
    return tuple(aggregate(number) for number in range(max(1, needed, config.registrar.aggregates)))
