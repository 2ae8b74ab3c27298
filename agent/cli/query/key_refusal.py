"""Whether the hub refuses this leaf's key. The agent only sees that the link is down, so the hub is asked
once, as the leaf's server dials it, and left at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from agent.cli.checks.leafnode_probe import Joined, LeafRefused, dial, shown
from agent.cli.checks.machine import remote_tls
from agent.config import Config
from agent.leaf.link.states import LinkState
from agent.server.permissions import Permissions
from agent.server.setup import link_key_file

_REFUSED = "Authorization Violation"


def refusal(config: Config, status: Mapping[str, Any]) -> str | None:
    """Why a link that is down does not come up by itself, in a sentence; None where the hub would let this
    leaf in, or can't be reached."""
    if status["role"] != "leaf" or status["link"]["state"] != LinkState.DOWN:
        return None
    return asyncio.run(_asked(config))


async def _asked(config: Config) -> str | None:
    seed, tls = link_key_file(config), remote_tls(config)
    nothing = Permissions((), ())
    dialled = await asyncio.gather(*(dial(url, seed, nothing, tls) for url in config.nats.hub_urls))
    if any(isinstance(probe.outcome, Joined) for probe in dialled):
        return None
    for probe in dialled:
        if isinstance(probe.outcome, LeafRefused) and probe.outcome.why == _REFUSED:
            return (
                f"the hub at {shown(probe.url)} refuses the key of {config.domain} ({_REFUSED}); let it in: "
                "petiole enrol here, petiole fleet add at the hub"
            )
    return None
