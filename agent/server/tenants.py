"""Tenants on the hub's server: an account each, in which only the links of its leaves are. What a leaf and
the hub's own account need of each other crosses by exports and imports, subject by subject. Pure.

Seen on nats-server 2.15.1: the source on a leaf's stream works with the prefix `$JS.<domain>.API` unchanged,
the leaf's mirror of its commands only with one that does not begin with `$` (`hub_api`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent.contract import (
    ACCOUNT,
    COMMANDS,
    announce_subject,
    api_prefix,
    command_consumer,
    command_deliver,
    cursor_subject,
    deliver_subject,
    hub_api,
    leaf_stream,
    tenant_account,
    verify_subject,
)

Leaves = Iterable[tuple[str, str, Sequence[str]]]
"""Tenant, domain and classes of each leaf."""


def tenant_blocks(leaves: Leaves, users: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The accounts of all tenants, `users` by tenant."""
    found: dict[str, Any] = {
        tenant_account(tenant): {"users": rows, "exports": [], "imports": []}
        for tenant, rows in sorted(users.items())
    }
    for tenant, domain, classes in leaves:
        account = found[tenant_account(tenant)]
        account["exports"] += [
            *({"service": subject, "accounts": [ACCOUNT]} for subject in _asked(domain, classes)),
            *({"stream": subject, "accounts": [ACCOUNT]} for subject in _delivered(domain, classes)),
        ]
        account["imports"] += [
            *(_imported("service", ACCOUNT, subject) for subject in _answered(domain)),
            {**_imported("service", ACCOUNT, _reset(domain)), "to": hub_reset(domain)},
            _imported("stream", ACCOUNT, command_deliver(domain, "*")),
        ]
    return found


def crossing(leaves: Leaves) -> dict[str, Any]:
    """What the hub's own account exports to the tenants and imports of them; empty where there are none."""
    exports: list[dict[str, Any]] = []
    imports: list[dict[str, Any]] = []
    for tenant, domain, classes in leaves:
        account = tenant_account(tenant)
        exports += [
            *(
                {"service": subject, "accounts": [account]}
                for subject in (*_answered(domain), _reset(domain))
            ),
            {"stream": command_deliver(domain, "*"), "accounts": [account]},
        ]
        imports += [
            *(_imported("service", account, subject) for subject in _asked(domain, classes)),
            *(_imported("stream", account, subject) for subject in _delivered(domain, classes)),
        ]
    return {"exports": exports, "imports": imports} if exports else {}


def hub_reset(domain: str) -> str:
    """The subject on which a tenant's leaf asks the hub to redeliver its commands from a sequence on."""
    return f"{hub_api(tenant=True)}.CONSUMER.RESET.{COMMANDS}.{command_consumer(domain)}"


def _imported(kind: str, account: str, subject: str) -> dict[str, Any]:
    return {kind: {"account": account, "subject": subject}}


def _asked(domain: str, classes: Iterable[str]) -> list[str]:
    """What the hub asks of a leaf's server."""
    api = api_prefix(domain)
    return [
        subject
        for stream in (leaf_stream(domain, cls) for cls in classes)
        for subject in (
            f"{api}.CONSUMER.RESET.{stream}.*",
            f"{api}.CONSUMER.INFO.{stream}.*",
            f"{api}.STREAM.INFO.{stream}",
            f"$JS.FC.{stream}.>",
        )
    ]


def _delivered(domain: str, classes: Iterable[str]) -> list[str]:
    return [deliver_subject(domain, cls, "*") for cls in classes]


def _answered(domain: str) -> list[str]:
    """What the hub answers to a leaf."""
    return [
        announce_subject(domain),
        cursor_subject(domain),
        verify_subject(domain),
        f"$JS.FC.{COMMANDS}.{command_consumer(domain)}.>",
    ]


def _reset(domain: str) -> str:
    return f"$JS.API.CONSUMER.RESET.{COMMANDS}.{command_consumer(domain)}"
