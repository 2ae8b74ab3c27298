"""The accounts of tenants and users on a server. Pure.

A **tenant** of the hub has an account in which only the links of its leaves are. What a leaf and the hub's
own account need of each other crosses by exports and imports, subject by subject.
The source on a leaf's stream uses the prefix `$JS.<domain>.API` unchanged, the leaf's mirror of its commands
one of its own (`hub_api`).

A **user** is a program with an account of its own: there it makes streams and buckets as it likes, and
nothing that it does reaches Petiole's account. A permission would not do: it cannot match part of a token, so
it cannot allow streams by a prefix of their names; and a user who may make a stream can have it take any
subject, copy any other stream and publish under any subject. What a user may read of Petiole's streams is
imported, one request at a time, below `USER_API`. The agent makes its consumer, for the maker of a consumer
decides where it delivers.

The account of a user on a leaf can be linked to the one of the same name at the hub, so that each side
reaches the other's JetStream by its domain. What is imported does not cross that link.
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
"""Tenant, domain and classes of each leaf."""


def tenant_blocks(leaves: Leaves, users: Mapping[str, list[Any]]) -> dict[str, Any]:
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


_MEMORY_BYTES: Final = 16 * 2**20
_MAX_STREAMS: Final = 100
_MAX_CONSUMERS: Final = 1000
_KEPT_HERE: Final = (f"{USER_API}.>", "$MQTT.>")
"""What a link may not carry: questions to Petiole's streams, and what nats-server lets a link use unless that
is denied."""


def user_link() -> Permissions:
    """A leaf's server that links an account of a user."""
    return Permissions((">",), (">",), deny_publish=_KEPT_HERE, deny_subscribe=_KEPT_HERE)


def user_blocks(users: Iterable[AccountUser]) -> dict[str, Any]:
    """The accounts of users, without who is let into them."""
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
    """What users may ask of Petiole's accounts, by account: each what it may read."""
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
    """The file beside a leaf's configuration that holds the seed with which it links a user's account."""
    return f"link-{user}.conf"


def link_variable(user: str) -> Variable:
    """The variable that stands for that seed where the agent does not run the server."""
    return Variable(f"$LINK_{user.upper().replace('-', '_')}_KEY")


def _reading(user: AccountUser, stream: str) -> Iterator[tuple[str, bool]]:
    """What to ask to read a stream, and whether there are several answers to one question."""
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
