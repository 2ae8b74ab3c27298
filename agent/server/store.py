"""Whether what is in the store of a hub's server was stored by as many servers as the hub has now.

Alone a server drops what says which streams several have stored, and leaves their messages where they are: a
stream that is created under the same name begins with them, and its sources store all of them again. In a
cluster a server brings in the messages that it stored alone, which the others don't have (both seen on
nats-server 2.15.1).
"""

from __future__ import annotations

import json
from pathlib import Path

from agent.contract import ACCOUNT, COMMANDS, FLEET_BUCKET
from agent.server.values import HubConfig


def store_problem(config: HubConfig) -> str | None:
    """Why the server must not start with its store, None where it may, or where the store is encrypted."""
    several = config.cluster is not None
    streams = config.store_dir / "jetstream" / ACCOUNT / "streams"
    for name in (*config.aggregates, COMMANDS, f"KV_{FLEET_BUCKET}"):
        replicas = _replicas(streams / name / "meta.inf")
        if replicas is not None and (replicas > 1) is not several:
            was, is_now = ("one machine", "several") if several else ("several machines", "one")
            return (
                f"{config.store_dir} is the store of a hub of {was}, and this hub is one of {is_now}: stop "
                "the agent and move the store away; the leaves send again what they hold "
                "(docs/hub-cluster.md)"
            )
    return None


def _replicas(meta: Path) -> int | None:
    """On how many servers a stream was stored, None where that cannot be read."""
    try:
        return int(json.loads(meta.read_bytes())["num_replicas"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
