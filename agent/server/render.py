"""Renders nats-server configurations from values. Pure and without secrets.

The leaf's seed is in an included file (`LINK_INCLUDE`, mode 0600); nats-server resolves includes relative to
the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from agent.base.nats_server import INCLUDE, Rows, Variable, block, merged, quoted, with_variables
from agent.config import listen_address
from agent.contract import (
    ACCOUNT,
    HOME,
    HUB_DOMAIN,
    REGISTRAR,
    cell_account,
    cell_of,
    tenant_account,
    user_account,
)
from agent.server import link_permissions, permissions
from agent.server.link_permissions import kept_from_hub
from agent.server.permissions import Permissions
from agent.server.values import (
    PING_SECONDS,
    AccountUser,
    ClusterConfig,
    HubConfig,
    LeafConfig,
    LeafUser,
    MqttListener,
    ServerConfig,
)

LINK_INCLUDE = "link.conf"
LINK_KEY = Variable("$LINK_KEY")

_SYSTEM_ACCOUNT = "SYS"
_QUESTIONS = ("LEAFZ", "VARZ", "HEALTHZ")
_MEMORY_STORE = 64 * 1024 * 1024
_LOG_FILE_SIZE = 8 * 1024 * 1024
_LOG_FILES = 3
_LINK_COMPRESSION = "off"
"""Off: batches are compressed, and adaptive compressors take megabytes per link (docs/security.md;
https://github.com/nats-io/nats-server/issues/7037).
"""


def render(config: ServerConfig) -> str:
    """Return the text. Raises `RenderError`."""
    return "".join(pieces(config))


def pieces(config: ServerConfig) -> Iterator[str]:
    """Yield the text in pieces, as a large hub's takes long. Raises `RenderError`."""
    yield "# Written by petiole; what is changed here by hand is lost.\n"
    body = _hub(config) if isinstance(config, HubConfig) else _leaf(config)
    yield from block(merged(body, with_variables(config.extra)))


def _hub(config: HubConfig) -> dict[str, Any]:
    from agent.server.accounts import (  # not held in memory on a leaf
        cell_imports,
        crossing,
        tenant_blocks,
    )

    tenants: dict[str, list[LeafUser]] = {}
    for leaf in config.leaves:
        if leaf.tenant:
            tenants.setdefault(leaf.tenant, []).append(leaf)
    crossed = [(leaf.tenant, leaf.domain, leaf.classes) for leaf in config.leaves if leaf.tenant]
    watched = [*map(tenant_account, sorted(tenants)), *map(cell_account, config.cells)]
    accounts = _accounts(
        _cell_users(config, HOME, config.registrar, _user(config.jobs, permissions.jobs(config.aggregates))),
        [_user(config.registrar_system, permissions.system(REGISTRAR, _QUESTIONS, watched, cuts=True))],
    )
    accounts[ACCOUNT] |= crossing(crossed)
    for cell, key in config.cells.items():
        accounts[cell_account(cell)] = {
            "jetstream": "enabled",
            "users": _cell_users(config, cell, key),
            "exports": [{"service": "$JS.API.>", "accounts": [ACCOUNT], "response_type": "stream"}],
        }
    if config.cells:
        imports = [*accounts[ACCOUNT].get("imports", []), *cell_imports(config.cells)]
        accounts[ACCOUNT]["imports"] = imports
    return {
        **_common(config, HUB_DOMAIN),
        "leafnodes": {
            "listen": config.leaf_listen,
            "no_advertise": True,  # else a leaf learns other addresses and goes around the one it was given
            "isolate_leafnode_interest": True,
            "compression": "accept",  # what the leaf's remote asks for; see `_LINK_COMPRESSION`
            "authorization": {"timeout": 10},
        },
        # A leaf answers the server on a subject of its own; by default each link hears of all such subjects
        # (findings/nats-question-to-an-absent-leaf-crosses-all-links.sh).
        "feature_flags": {"js_api_reply_v2": True},
        **({} if config.cluster is None else {"cluster": _cluster(config.cluster)}),
        "accounts": _with_users(accounts, config.users)
        | tenant_blocks(crossed, {tenant: [_leaf_users(leaves)] for tenant, leaves in tenants.items()}),
        "system_account": _SYSTEM_ACCOUNT,
    }


def _cell_users(config: HubConfig, cell: str, registrar: str, *others: dict[str, Any]) -> list[Any]:
    """Who is let into a cell: the registrar, the `others` and its leaves. The registrar asks the leaves of
    tenants from the first cell."""
    leaves = [leaf for leaf in config.leaves if leaf.cell == cell]
    allowed = permissions.registrar(
        [name for name in config.aggregates if cell_of(name) == cell],
        [(leaf.domain, leaf.classes) for leaf in leaves],
        () if cell else config.links,
        users=bool(config.users),
        several=config.cluster is not None,
        home=cell == HOME,
    )
    return [_user(registrar, allowed), *others, _leaf_users([leaf for leaf in leaves if not leaf.tenant])]


def _leaf_users(leaves: list[LeafUser]) -> Rows:
    return Rows(lambda: map(_leaf_user, leaves))


def _leaf_user(leaf: LeafUser) -> dict[str, Any]:
    allowed = link_permissions.leaf_link(
        leaf.domain, leaf.classes, leaf.takes, leaf.gives, tenant=bool(leaf.tenant)
    )
    return _user(leaf.key, allowed, "LEAFNODE", "LEAFNODE_WS")


def _cluster(config: ClusterConfig) -> dict[str, Any]:
    body: dict[str, Any] = {"name": config.name, "listen": config.listen, "no_advertise": True}
    if config.tls is not None:
        cert, key, authority = map(str, config.tls)
        # As client and as server each proves itself: nats-server would verify here even without being asked.
        body["tls"] = {
            "cert_file": cert,
            "key_file": key,
            "ca_file": authority,
            "verify": True,
            "timeout": 10,
        }
    return {**body, INCLUDE: config.include}


def cluster_include(password: str, addresses: Iterable[str]) -> str:
    """Return the secret include with the cluster's password and routes."""
    user, urls = f"{HUB_DOMAIN}:{quote(password, safe='')}", []
    for address in addresses:
        host, port = listen_address(address)
        shown = f"[{host}]" if ":" in host else host
        urls.append(f"  {quoted(f'nats-route://{user}@{shown}:{port}')}\n")
    return (
        f"authorization: {{ user: {HUB_DOMAIN}, password: {quoted(password)}, timeout: 10 }}\n"
        f"routes: [\n{''.join(urls)}]\n"
    )


def _leaf(config: LeafConfig) -> dict[str, Any]:
    return {
        **_common(config, config.domain),
        "leafnodes": {
            "remotes": [
                _remote(
                    config,
                    ACCOUNT,
                    {"nkey": LINK_KEY} if config.identity else {INCLUDE: LINK_INCLUDE},
                    kept_from_hub(config.domain, config.heard),
                ),
                *_user_remotes(config),
            ]
        },
        "accounts": _with_users(_leaf_accounts(config), config.users),
        "system_account": _SYSTEM_ACCOUNT,
        **({} if config.mqtt is None or config.mqtt.shut else {"mqtt": config.mqtt.block()}),
    }


def _remote(
    config: LeafConfig, account: str, seed: dict[str, Any], kept: Iterable[str] = ()
) -> dict[str, Any]:
    """Return an account's remote."""
    body = {
        "urls": list(config.hub_urls),
        "account": account,
        # The default second is too short (findings/nats-leaf-link-fails-at-satellite-round-trips.sh).
        "dial_timeout": "10s",
        "first_info_timeout": "10s",
        "compression": _LINK_COMPRESSION,
        "disabled": not config.link_open,
        # From nats-server 2.15.3 on a denied import no longer keeps the hub from hearing the subject, as it
        # did before; a denied export does on each version.
        **({"deny_imports": list(kept), "deny_exports": list(kept)} if kept else {}),
        **seed,
    }
    return merged(body, with_variables(config.remote))


def _user_remotes(config: LeafConfig) -> list[dict[str, Any]]:
    linked = [user for user in config.users if user.link_key_file is not None]
    if not linked:
        return []
    from agent.server.accounts import (  # not held in memory where there are no users
        link_include,
        link_variable,
    )

    return [
        _remote(
            config,
            user_account(user.name),
            {"nkey": link_variable(user.name)} if config.identity else {INCLUDE: link_include(user.name)},
        )
        for user in linked
    ]


def _with_users(accounts: dict[str, Any], users: Sequence[AccountUser]) -> dict[str, Any]:
    """Add users' accounts and exports."""
    if not users:
        return accounts
    from agent.server.accounts import user_blocks, user_exports, user_link  # as above

    blocks = user_blocks(users)
    for user in users:
        entries = blocks[user_account(user.name)]["users"]
        if user.key:
            entries.append({"nkey": user.key, "allowed_connection_types": ["STANDARD", "WEBSOCKET"]})
        entries += [_user(key, user_link(), "LEAFNODE", "LEAFNODE_WS") for key in user.link_keys]
    exported = {
        account: accounts[account] | {"exports": [*accounts[account].get("exports", []), *exports]}
        for account, exports in user_exports(users).items()
    }
    return accounts | exported | blocks


def _leaf_accounts(config: LeafConfig) -> dict[str, Any]:
    rights = permissions.agent(
        config.domain, config.classes, config.links, bool(config.mqtt), config.heard, config.removed
    )
    return _accounts(
        [
            _user(config.agent, rights),
            _user(
                config.device, permissions.device(config.domain, config.classes, config.apps, config.heard)
            ),
            *_mqtt_users(config.mqtt),
        ],
        [_user(config.agent_system, permissions.system(config.domain, _QUESTIONS))],
    )


def _mqtt_users(listener: MqttListener | None) -> list[dict[str, Any]]:
    if listener is None or not listener.open:
        return []
    return [
        {"user": user.name, INCLUDE: include, **_granted(permissions.mqtt(), "MQTT")}
        for include, user in listener.includes()
    ]


def _common(config: ServerConfig, domain: str) -> dict[str, Any]:
    head: dict[str, Any] = {INCLUDE: config.identity} if config.identity else {}
    if config.server_name or not config.identity:
        head["server_name"] = config.server_name
    head["listen"] = config.listen
    if config.pid_file is not None:
        head["pid_file"] = str(config.pid_file)
    if config.log_file is not None:
        head |= {
            "log_file": str(config.log_file),
            "logfile_size_limit": _LOG_FILE_SIZE,
            "logfile_max_num": _LOG_FILES,
        }
    return head | {
        "max_payload": config.max_payload,
        # Of 5 s: a dead link is noticed by the leaf in 15 s, by the hub in 20 s; by default it may take six
        # minutes.
        "ping_interval": f"{config.ping_seconds if isinstance(config, LeafConfig) else PING_SECONDS}s",
        "ping_max": 2,
        "jetstream": {
            "domain": domain,
            "store_dir": str(config.store_dir),
            "max_file_store": config.max_file_store,
            "max_memory_store": _MEMORY_STORE,
            "sync_interval": _sync_interval(config),
        },
    }


def _sync_interval(config: ServerConfig) -> str:
    """Return the sync interval: a leaf's always, while a hub's may be later, as leaves keep copies."""
    seconds = config.sync_seconds if isinstance(config, HubConfig) else 0.0
    return f"{round(seconds * 1000)}ms" if seconds else "always"


def _accounts(users: list[Any], system_users: list[dict[str, Any]]) -> dict[str, Any]:
    return {ACCOUNT: {"jetstream": "enabled", "users": users}, _SYSTEM_ACCOUNT: {"users": system_users}}


def _user(key: str, allowed: Permissions, *connections: str) -> dict[str, Any]:
    return {"nkey": key, **_granted(allowed, *(connections or ("STANDARD",)))}


def _granted(allowed: Permissions, *connections: str) -> dict[str, Any]:
    publish: dict[str, Any] = {"allow": [Rows(lambda: allowed.publish)]}
    if allowed.deny_publish:
        publish["deny"] = list(allowed.deny_publish)
    subscribe = {"allow": list(allowed.subscribe)} if allowed.subscribe else {}
    if allowed.deny_subscribe:
        subscribe["deny"] = list(allowed.deny_subscribe)
    granted: dict[str, Any] = {"publish": publish, "subscribe": subscribe}
    if allowed.replies:
        granted["allow_responses"] = {"max": 1, "expires": "1m"}
    return {"allowed_connection_types": list(connections), "permissions": granted}
