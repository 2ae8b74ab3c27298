"""The declared links of a configuration as a service, or none: imports their keeper only where it is needed,
so that a leaf without declared links does not hold it in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import structlog

from agent.base.metrics import Metrics
from agent.config import Config
from agent.server.permissions import LinkRights, declared_link
from agent.server.setup import identities, link_rights

if TYPE_CHECKING:
    from agent.config.mirrors import Declared
    from agent.mirrors.controller import DeclaredLinks

log = structlog.get_logger("link")


def declared_links(config: Config, identity: str, metrics: Metrics) -> DeclaredLinks | None:
    """The keeper of the declared links, None where none is declared; `identity` is the agent's at its own
    server."""
    if not config.mirror and not config.source:
        return None
    from agent.config.mirrors import declared
    from agent.mirrors.controller import DeclaredLinks

    links = declared(config)
    if config.nats.server == "external":
        for one in needs(links, link_rights(config)):
            log.info("declared links need", permissions=one)
    url, seed_file = f"nats://{config.nats.listen}", identities(config).account
    return DeclaredLinks(links, config.domain, identity, url, seed_file, metrics)


def needs(links: Iterable[Declared], rights: Iterable[LinkRights]) -> list[str]:
    """What servers that are not rendered here must allow, one sentence for the agent's user and one for each
    link."""
    from agent.mirrors.decide import needed

    own = f"the agent's user must be allowed to publish {', '.join(declared_link(rights))}"
    ways = [
        f"{one.link(origin)}: to and from {origin.place} must pass {', '.join(needed(origin))}"
        for one in links
        for origin in one.origins
        if origin.api
    ]
    return [own, *ways]
