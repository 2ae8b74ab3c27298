"""Checks a topology across keys: repeated names, voting clusters, tenants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import msgspec

from agent import contract
from agent.base.logs import listed
from agent.cli.site import SiteHub, SiteLeaf, SiteServer, Topology, conflicts, hub_table, leaf_table
from agent.config import Problem, listen_address
from agent.config.keys import is_public_key, is_seed
from agent.config.server_checks import CLUSTER_TLS
from agent.config.server_overlay import HUB_TAKEN, LEAF_TAKEN, REMOTE_TAKEN, extra_problems
from agent.config.values import contract_problem, duplicate, is_hub_url, numbered


def check(site: Topology) -> Iterator[Problem]:
    """Yield all problems of a typed topology."""
    yield from _hub(site.hub)
    yield from _tenants(site)
    yield from _leaves(site)
    yield from _added(site)


def _hub(hub: SiteHub) -> Iterator[Problem]:
    if not hub.urls:
        yield Problem("hub.urls", "is empty", 'write where leaves dial: ["nats-leaf://hub.example:7422"]')
    for url in hub.urls:
        if not is_hub_url(url) or urlsplit(url).password is not None:
            yield Problem(
                "hub.urls", f'"{url}" is not a server', 'write it as "nats-leaf://hub.example:7422"'
            )
    if not hub.server:
        yield Problem("hub.server", "there is none", "leave it out for one server, or write [[hub.server]]")
    servers = list(numbered(hub.server))
    if len(hub.server) % 2 == 0 and hub.server:
        yield Problem(
            "hub.server",
            f"{len(hub.server)} servers cannot outvote each other when one is lost",
            "have one, three or five",
        )
    given = [name for name in CLUSTER_TLS if getattr(hub, f"cluster_{name}") is not None]
    if given and len(servers) == 1:
        yield Problem(f"hub.cluster_{given[0]}", "there is one server only", "remove it")
    for name in CLUSTER_TLS if given else ():
        if name not in given:
            stated = listed([f"cluster_{name}" for name in CLUSTER_TLS])
            yield Problem(f"hub.cluster_{name}", "is missing", f"give {stated}, or none of them")
    names: set[str] = set()
    for number, server in servers:
        yield from _server(f"hub.server[{number}]", server, len(hub.server) > 1, names)


def _server(key: str, server: SiteServer, cluster: bool, names: set[str]) -> Iterator[Problem]:
    yield from _named(f"{key}.name", contract.check_domain, server.name)
    yield from duplicate(f"{key}.name", server.name, names)
    addresses: dict[tuple[str, int], str] = {}
    for name in ("listen", "leaf_listen", "cluster_listen"):
        text = getattr(server, name)
        if name == "cluster_listen" and not text:
            if cluster:
                yield Problem(f"{key}.{name}", "is missing", 'write it as "10.0.0.1:6222"')
            continue
        try:
            address = listen_address(text)
        except ValueError:
            yield Problem(f"{key}.{name}", f'"{text}" is not an address', 'write it as "10.0.0.1:7422"')
            continue
        if address in addresses:
            yield Problem(f"{key}.{name}", f"is also {addresses[address]}", "give it another port")
        addresses[address] = name
        if name == "cluster_listen" and address[0] in ("0.0.0.0", "::"):  # noqa: S104 - refused
            yield Problem(
                f"{key}.{name}", f'"{text}" is not an address that others can dial', "write this server's own"
            )


def _tenants(site: Topology) -> Iterator[Problem]:
    seen: set[str] = set()
    for name in site.tenants:
        yield from _named("tenants", contract.check_tenant, name)
        yield from duplicate("tenants", name, seen)


def _leaves(site: Topology) -> Iterator[Problem]:
    domains: set[str] = set()
    keys: set[str] = set()
    for number, leaf in numbered(site.leaf):
        yield from _leaf(f"leaf[{number}]", site, leaf, domains, keys)


def _leaf(key: str, site: Topology, leaf: SiteLeaf, domains: set[str], keys: set[str]) -> Iterator[Problem]:
    yield from _named(f"{key}.domain", contract.check_domain, leaf.domain)
    yield from duplicate(f"{key}.domain", leaf.domain, domains)
    if leaf.domain in contract.RESERVED_DOMAINS:
        yield Problem(f"{key}.domain", f'"{leaf.domain}" is a name of petiole itself', "rename it")
    places = [(f"{key}.key", leaf.key)] if leaf.key else []
    for place, text in [*places, *((f"{key}.revoked", text) for text in leaf.revoked)]:
        if not is_public_key(text):
            stood = "is the seed of a key, which never leaves its machine" if is_seed(text) else ""
            yield Problem(
                place, stood or f'"{text:.60}" is not a public key', "copy what `petiole enrol` prints there"
            )
        elif text in keys:
            yield Problem(place, f'"{text}" is there twice', "make a key for each leaf, never use one again")
        keys.add(text)
    if leaf.forgotten and leaf.key:
        yield Problem(f"{key}.forgotten", "stands beside a key, which would let it in", "remove one of them")
    if leaf.tenant and leaf.tenant not in site.tenants:
        yield Problem(f"{key}.tenant", f'there is no tenant "{leaf.tenant}"', "add it to tenants")
    if leaf.tenant and (leaf.takes or leaf.gives):
        yield Problem(f"{key}.takes", "cannot cross accounts, and this leaf is a tenant's", "remove it")


def _added(site: Topology) -> Iterator[Problem]:
    bare_hub = Topology(hub=msgspec.structs.replace(site.hub, config={}))
    yield from conflicts(hub_table(bare_hub, {}), site.hub.config, "hub.config")
    bare = Topology(leaves=type(site.leaves)(embedded=site.leaves.embedded))
    rendered = leaf_table(bare, SiteLeaf("x"))
    yield from conflicts(rendered, site.leaves.config, "leaves.config")
    for number, leaf in numbered(site.leaf):
        yield from conflicts(rendered, leaf.config, f"leaf[{number}].config")
    for place, extra, taken in (
        ("hub.extra", site.hub.extra, HUB_TAKEN),
        ("leaves.extra", site.leaves.extra, LEAF_TAKEN),
        ("leaves.remote", site.leaves.remote, REMOTE_TAKEN),
    ):
        for key, stood, remedy in extra_problems(extra, taken):
            yield Problem(f"{place}.{key}", stood, remedy)


def _named(key: str, rule: Callable[[str], str], value: str) -> Iterator[Problem]:
    yield from contract_problem(key, rule, value, "choose another name")
