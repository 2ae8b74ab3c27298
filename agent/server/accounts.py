"""Defines accounts of tenants and users on a server. Pure.

A tenant's account has its leaves' links only; exports and imports cross subject by subject. The source on a
leaf's stream uses `$JS.<domain>.API`, the command mirror its own prefix (`hub_api`).

A user is a program with an own account for streams and buckets. Permissions can't confine it: they can't
match parts of tokens, and the maker of a stream can take any subject. Readable streams are imported request
by request below `USER_API`; the agent makes the consumer, whose maker decides its deliver subject. A user's
account may link to the same name at the hub, by JetStream domain; imports do not cross that link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from agent.base.nats_server import Variable
from agent.contract import (
    ACCOUNT,
    COMMANDS,
    USER_API,
    aggregate,
    announce_subject,
    api_prefix,
    cell_account,
    cell_api,
    cell_of,
    command_consumer,
    command_deliver,
    cursor_subject,
    deliver_subject,
    hub_api,
    leaf_stream,
    tenant_account,
    user_account,
    user_consumer,
    verify_subject,
)
from agent.server.permissions import Permissions
from agent.server.values import AccountUser

Leaves = Iterable[tuple[str, str, Sequence[str]]]
"""Tenant, domain and classes of leaves."""


def tenant_blocks(leaves: Leaves, users: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return all tenants' accounts, with `users` by tenant."""
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
    """Return the hub account's exports and imports for tenants."""
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


def cell_imports(cells: Iterable[str]) -> list[dict[str, Any]]:
    """What the first cell imports of the others: their JetStream, in which the jobs may read the aggregates
    (`cell_api`). nats-server compares each import with all others, so a cell has one."""
    return [
        {
            **_imported("service", cell_account(cell), "$JS.API.>"),
            "to": f"{cell_api(aggregate(0, cell))}.>",
        }
        for cell in cells
    ]


def hub_reset(domain: str) -> str:
    """Return the subject for redelivery of a tenant leaf's commands."""
    return f"{hub_api(tenant=True)}.CONSUMER.RESET.{COMMANDS}.{command_consumer(domain)}"


def _imported(kind: str, account: str, subject: str) -> dict[str, Any]:
    return {kind: {"account": account, "subject": subject}}


def _asked(domain: str, classes: Iterable[str]) -> list[str]:
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
    return [
        announce_subject(domain),
        cursor_subject(domain),
        verify_subject(domain),
        f"$JS.FC.{COMMANDS}.{command_consumer(domain)}.>",
    ]


def _reset(domain: str) -> str:
    return f"$JS.API.CONSUMER.RESET.{COMMANDS}.{command_consumer(domain)}"


_MEMORY_BYTES: Final = 16 * 2**20
_MAX_STREAMS: Final = 100
_MAX_CONSUMERS: Final = 1000
_KEPT_HERE: Final = (f"{USER_API}.>", "$MQTT.>")
"""Subjects that links must not carry, including those that nats-server allows unless denied."""


def user_link() -> Permissions:
    """Return permissions of a leaf's server linking a user."""
    return Permissions((">",), (">",), deny_publish=_KEPT_HERE, deny_subscribe=_KEPT_HERE)


def user_blocks(users: Iterable[AccountUser]) -> dict[str, Any]:
    """Return users' accounts without logins."""
    return {
        user_account(user.name): {
            "jetstream": {
                "max_file": user.max_bytes,
                "max_memory": _MEMORY_BYTES,
                "max_streams": _MAX_STREAMS,
                "max_consumers": _MAX_CONSUMERS,
            },
            "users": [],
            "imports": [
                _asked_by_user(subject, cell_account(cell_of(stream)))
                for stream in user.reads
                for subject, _ in _reading(user, stream)
            ],
        }
        for user in users
    }


def user_exports(users: Iterable[AccountUser]) -> dict[str, list[dict[str, Any]]]:
    """Return exports for users' readable streams."""
    found: dict[str, list[dict[str, Any]]] = {}
    for user in users:
        for stream in user.reads:
            found.setdefault(cell_account(cell_of(stream)), []).extend(
                {
                    "service": subject,
                    "accounts": [user_account(user.name)],
                    **({"response_type": "stream"} if many else {}),
                }
                for subject, many in _reading(user, stream)
            )
    return found


def link_include(user: str) -> str:
    """Return the included file with a user link's seed."""
    return f"link-{user}.conf"


def link_variable(user: str) -> Variable:
    """Return the variable for that seed with an external server."""
    return Variable(f"$LINK_{user.upper().replace('-', '_')}_KEY")


def _reading(user: AccountUser, stream: str) -> Iterator[tuple[str, bool]]:
    """Yield requests for reading a stream, and whether they have several answers."""
    consumer = f"{stream}.{user_consumer(user.name)}"
    yield f"$JS.API.STREAM.INFO.{stream}", False
    yield f"$JS.API.STREAM.MSG.GET.{stream}", False
    yield f"$JS.API.DIRECT.GET.{stream}", True
    yield f"$JS.API.DIRECT.GET.{stream}.>", False
    yield f"$JS.API.CONSUMER.INFO.{consumer}", False
    yield f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", True
    yield f"$JS.ACK.{consumer}.>", False


def _asked_by_user(subject: str, account: str) -> dict[str, Any]:
    found = _imported("service", account, subject)
    if subject.startswith("$JS.API."):
        found["to"] = USER_API + subject.removeprefix("$JS.API")
    return found
