"""The declared links of a configuration as a service, or none: imports their keeper only where it is needed,
so that a leaf without declared links does not hold it in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.config import Config
from agent.metrics import Metrics
from agent.server.setup import identities

if TYPE_CHECKING:
    from agent.link.declared.keeper import DeclaredLinks


def declared_links(config: Config, identity: str, metrics: Metrics) -> DeclaredLinks | None:
    """The keeper of the declared links, None where none is declared; `identity` is the agent's at its own
    server."""
    if not config.mirror and not config.source:
        return None
    from agent.link.declared.keeper import DeclaredLinks
    from agent.link.declared.plan import declared

    url, seed_file = f"nats://{config.nats.listen}", identities(config).account
    return DeclaredLinks(declared(config), config.domain, identity, url, seed_file, metrics)
