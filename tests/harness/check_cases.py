"""Checks of servers that a test runs."""

from __future__ import annotations

from pathlib import Path

from agent.cli.checks.finding import Finding, Level
from agent.cli.checks.run import online
from agent.config import Config, LeafMember, Nats, StreamClass
from tests.harness.servers import Hub, Leaf


def config_of(leaf: Leaf, state: Path, hub_urls: tuple[str, ...] | None = None) -> Config:
    """The configuration of an agent beside a leaf's server, with what it needs to dial the hub."""
    state.mkdir(mode=0o700, exist_ok=True)
    return Config(
        domain=leaf.domain,
        state_dir=state,
        nats=Nats(
            server="external",
            listen=leaf.config.listen,
            seed_file=leaf.keys["agent"],
            system_seed_file=leaf.keys["agent_system"],
            hub_urls=list(leaf.config.hub_urls if hub_urls is None else hub_urls),
            link_seed_file=leaf.config.link_key_file,
        ),
        class_=[StreamClass(name) for name in leaf.config.classes],
    )


def hub_config_of(hub: Hub, state: Path) -> Config:
    """The configuration of an agent beside a hub's server."""
    state.mkdir(mode=0o700, exist_ok=True)
    return Config(
        domain="hub",
        role="hub",
        state_dir=state,
        nats=Nats(
            server="external",
            listen=hub.config.listen,
            leaf_listen=hub.config.leaf_listen,
            seed_file=hub.keys["registrar"],
            system_seed_file=hub.keys["registrar_system"],
        ),
        leaf=[LeafMember(one.domain, one.key, list(one.classes)) for one in hub.config.leaves],
    )


async def check(config: Config) -> list[Finding]:
    """All findings but that no agent runs beside these servers."""
    found = await online(config, Path("petiole.toml"), lambda _: ([], []))
    assert all(bool(one.remedy) is (one.level is not Level.OK) for one in found), found
    return [one for one in found if one.group != "agent"]


def bad(found: list[Finding]) -> list[str]:
    """The sentences of what is not well; the clock is the machine's own, which a test has not set."""
    return [one.sentence for one in found if one.level is not Level.OK and one.group != "clock"]


def of(found: list[Finding], words: str) -> Finding:
    """The one finding with these words in its sentence."""
    matching = [one for one in found if words in one.sentence]
    assert len(matching) == 1, (words, [one.sentence for one in found])
    return matching[0]
