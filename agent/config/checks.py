"""Checks across keys: repeated names, keys of the other role, equal ports, sizes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from agent import contract
from agent.base.files import without_password
from agent.base.http.access import is_loopback
from agent.base.listen_sockets import EVERYWHERE
from agent.config.schema import Config, aggregates, cells
from agent.config.server_checks import check_server
from agent.config.table_checks import check_links, check_maps, check_members, check_rules, check_users
from agent.config.values import (
    Problem,
    Window,
    contract_problem,
    duplicate,
    embedded_only,
    is_hub_url,
    listen_address,
    numbered,
    reserved_domain,
    unknown_class,
)
from agent.contract import COMMANDS_BYTES, MQTT_RETAINED_BYTES

_OWN_INPUTS: Final = frozenset(
    {contract.COMMANDS_INPUT, contract.AGENT_INPUT, contract.QOS0_INPUT, contract.RULES_INPUT}
)
_OTHER_HUB_STREAMS: Final = 128 * 2**20
"""Commands and fleet; see `agent.hub.registrar.aggregate`."""


def check(config: Config) -> Iterator[Problem]:
    """Yield all problems of a typed configuration without reading files; see
    `agent.config.server_checks.check_files`.
    """
    yield from _names(config)
    yield from _inputs(config)
    yield from _role(config)
    yield from _link(config)
    yield from check_members(config)
    yield from _hub_streams(config)
    yield from _addresses(config)
    yield from _admin(config)
    yield from check_links(config)
    yield from check_users(config)
    yield from check_server(config)
    yield from check_rules(config)
    yield from check_maps(config)
    yield from _sizes(config)


def _names(config: Config) -> Iterator[Problem]:
    yield from contract_problem("domain", contract.check_domain, config.domain, 'write it as "edge-1"')
    if not config.class_:
        yield Problem("class", "no class is left", f'write [[class]] with name = "{contract.DEFAULT_CLASS}"')
    if len(config.class_) > contract.MAX_CLASSES:
        text = f"{len(config.class_)} classes are declared, a leaf announces {contract.MAX_CLASSES} at most"
        yield Problem("class", text, "let inputs share a class; `device` and tags tell their readings apart")
    seen: set[str] = set()
    for number, cls in numbered(config.class_):
        key = f"class[{number}].name"
        yield from contract_problem(key, contract.check_class, cls.name, "choose another name")
        yield from duplicate(key, cls.name, seen)


def _inputs(config: Config) -> Iterator[Problem]:
    seen: set[str] = set()
    for number, input_ in numbered(config.input):
        key = f"input[{number}]"
        yield from contract_problem(f"{key}.name", contract.check_input, input_.name, "choose another name")
        yield from duplicate(f"{key}.name", input_.name, seen)
        if input_.name in _OWN_INPUTS:
            yield Problem(f"{key}.name", f'"{input_.name}" is the agent\'s own', "choose another name")
        if input_.pulls and input_.ack == "accepted":
            yield Problem(
                f"{key}.ack",
                '"accepted" would lose on a crash what the source of this input still has',
                'take "stored" or "hub"',
            )
        yield from unknown_class(key, input_.class_, config.class_names)
        for earlier, other in numbered(config.input[: number - 1]):
            if (clash := input_.doubles(other)) is not None:
                text, _, remedy = clash.partition("; ")
                yield Problem(key, f'beside input[{earlier}] "{other.name}" {text}', remedy)


def _role(config: Config) -> Iterator[Problem]:
    hub = contract.HUB_DOMAIN
    if config.role == "hub":
        if config.domain != hub:
            yield Problem("domain", f'"{config.domain}" cannot be the hub\'s', f'write domain = "{hub}"')
        if config.input:
            yield Problem("input", "the hub takes in no readings", "move it to a leaf")
        if config.nats.hub_urls:
            yield Problem("nats.hub_urls", "the hub dials no other server", "remove it")
        return
    if config.domain in contract.RESERVED_DOMAINS:
        yield reserved_domain("domain", config.domain, "give this machine another name")
    if config.leaf:
        yield Problem("leaf", "only the hub lets leaves in", 'remove it, or write role = "hub"')
    if config.nats.server == "embedded" and not config.nats.hub_urls:
        yield Problem(
            "nats.hub_urls",
            "is empty, so the leaf has no hub to dial",
            'write hub_urls = ["nats-leaf://<hub>:7422"]',
        )
    for url in config.nats.hub_urls:
        if not is_hub_url(url):
            shown = without_password(url)
            yield Problem(
                "nats.hub_urls", f'"{shown}" is not a server', 'write it as "nats-leaf://<hub>:7422"'
            )


def _link(config: Config) -> Iterator[Problem]:
    if config.link.tenant and config.role == "hub":
        yield Problem(
            "link.tenant", "the hub belongs to no tenant", "set it on the leaf, and tenant in its [[leaf]]"
        )
    for text in config.link.windows:
        try:
            Window.parse(text)
        except ValueError as error:
            yield Problem("link.windows", str(error), 'write it as "22:00-06:00", by local time')
    yield from _resume(config)
    if config.link.windows and config.role == "hub":
        yield Problem("link.windows", "the hub dials no other server", "set it on the leaf")
    elif config.link.windows and config.nats.server == "external":
        yield embedded_only("link.windows")


def _resume(config: Config) -> Iterator[Problem]:
    """Check the relays that keep a link over breaks of the line."""
    key, port = "link.resume_port", config.link.resume_port
    if port is None:
        if config.nats.resume_listen and config.role == "leaf":
            text = "stands without link.resume_port, the port of the hub's relay"
            yield Problem("nats.resume_listen", text, f"write {key}, or remove it")
        elif config.nats.resume_listen and config.nats.server == "external":
            yield embedded_only("nats.resume_listen")
        return
    if config.role == "hub":
        yield Problem(key, "the hub dials no other server", "write nats.resume_listen here")
        return
    if config.nats.server == "external":
        yield embedded_only(key)
    if "proxy" in config.nats.remote:
        text = "cannot be with nats.remote.proxy: the link goes through the agent's own relay"
        yield Problem(key, text, "remove either")
    for url in config.nats.hub_urls:
        if is_hub_url(url) and urlsplit(url).scheme in ("ws", "wss"):
            text = f'cannot be with the websocket "{without_password(url)}"; the hub relays its leaf port'
            yield Problem(key, text, "remove it, or dial nats-leaf:// or tls://")
        elif is_hub_url(url) and urlsplit(url).port == port:
            text = f'is the port of the hub\'s server in "{without_password(url)}"'
            yield Problem(key, text, "give the port of the hub's nats.resume_listen")
    with suppress(ValueError):  # `_addresses` reports it
        if not is_loopback(listen_address(config.resume_listen)[0]):
            text = f'"{config.resume_listen}" is open to other machines'
            yield Problem("nats.resume_listen", text, "listen on 127.0.0.1: only this leaf's server dials it")


def _hub_streams(config: Config) -> Iterator[Problem]:
    if config.role != "hub" or config.nats.server != "embedded":
        return
    if config.registrar.replicas > 1 and not config.nats.cluster.on:
        yield Problem(
            "registrar.replicas",
            "an embedded server stands alone, so it cannot keep copies on others",
            "write replicas = 1, or name the hub's other servers in nats.cluster.routes",
        )
    names = aggregates(config)
    total = bytes_needed(config)
    if total > config.nats.max_file_store:
        yield Problem(
            "nats.max_file_store",
            f"{config.nats.max_file_store} bytes do not hold {len(names)} aggregates of "
            f"{config.registrar.max_bytes}, the hub's other streams and its users', which may take {total}: "
            f"{config.registrar.max_sources} classes of leaves go into an aggregate",
            "make registrar.max_bytes smaller, or registrar.max_sources larger; where the disk has the room, "
            f"make it at least {total}",
        )


def server_listeners(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the listen addresses of server and relay with keys."""
    yield "nats.listen", config.nats.listen
    if config.resume_listen:
        yield "nats.resume_listen", config.resume_listen
    if config.role == "hub":
        yield "nats.leaf_listen", config.nats.leaf_listen
        if config.nats.cluster.on:
            yield "nats.cluster.listen", config.nats.cluster.listen
    elif config.nats.mqtt.on:
        yield "nats.mqtt.listen", config.nats.mqtt.listen


def _listeners(config: Config) -> Iterator[tuple[str, str]]:
    yield from server_listeners(config)
    yield "admin.listen", config.admin.listen
    for number, input_ in numbered(config.input):
        if hasattr(input_, "listen"):
            scheme, found, address = input_.listen.rpartition("://")
            if not found or scheme == "tcp":
                yield f"input[{number}].listen", address


def _addresses(config: Config) -> Iterator[Problem]:
    taken: list[tuple[str, str, int]] = []
    for key, text in _listeners(config):
        try:
            host, port = listen_address(text)
        except ValueError:
            stood = f'"{text}" is not an address with a port of at most 65535'
            yield Problem(key, stood, 'write it as "127.0.0.1:8080"')
            continue
        for other, its_host, its_port in taken:
            if port and port == its_port and (host == its_host or {host, its_host} & EVERYWHERE):
                yield Problem(key, f"port {port} is also that of {other}", "give one of them another port")
        taken.append((key, host, port))


def _admin(config: Config) -> Iterator[Problem]:
    admin = config.admin
    if (admin.tls_cert is None) != (admin.tls_key is None):
        missing = "tls_key" if admin.tls_key is None else "tls_cert"
        yield Problem(f"admin.{missing}", "is missing", "give both tls_cert and tls_key, or none")
    try:
        host = listen_address(admin.listen)[0]
    except ValueError:
        return  # `_addresses` reports it
    if admin.token_file is None and not is_loopback(host):
        yield Problem(
            "admin.listen",
            f'"{admin.listen}" is open to other machines, and would show them everything',
            "give it a token_file (and tls_cert and tls_key), or listen on 127.0.0.1",
        )


def _sizes(config: Config) -> Iterator[Problem]:
    if config.publish.batch_bytes > contract.MAX_BODY_BYTES:
        yield Problem(
            "publish.batch_bytes",
            f"{config.publish.batch_bytes} bytes are more than a batch may have",
            f"make it at most {contract.MAX_BODY_BYTES}",
        )
    if config.publish.in_flight < config.publish.batch_bytes:
        yield Problem(
            "publish.in_flight",
            f"{config.publish.in_flight} bytes do not hold one batch of {config.publish.batch_bytes}",
            "make it larger than publish.batch_bytes",
        )
    total = bytes_needed(config)
    if config.nats.server == "embedded" and config.role == "leaf" and total > config.nats.max_file_store:
        yield Problem(
            "nats.max_file_store",
            f"{config.nats.max_file_store} bytes do not hold the classes, the declared links, the users "
            f"and the mirror of the commands, which may take {total}",
            f"make max_bytes of the classes smaller; where the disk has the room, make it at least {total}",
        )


def bytes_needed(config: Config) -> int:
    """Return the streams' total bytes, the least `nats.max_file_store`."""
    if config.role == "hub":
        more = (len(cells(config)) - 1) * COMMANDS_BYTES
        of_aggregates = len(aggregates(config)) * config.registrar.max_bytes
        return of_aggregates + _OTHER_HUB_STREAMS + more + _users_bytes(config)
    streams = [*numbered(config.class_), *numbered(config.mirror), *numbered(config.source)]
    total: int = sum(stream.max_bytes for _, stream in streams) + COMMANDS_BYTES + _users_bytes(config)
    return total + MQTT_RETAINED_BYTES if config.nats.mqtt.on else total


def _users_bytes(config: Config) -> int:
    return sum(user.max_bytes for user in config.users)
