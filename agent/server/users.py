"""Programs that have an account of their own on a server: there they make streams and buckets as they like,
and nothing that they do reaches Petiole's account. Pure.

Why an account: a permission cannot match part of a token, so streams cannot be let by a prefix of their
names; and a user who may make a stream can have it take any subject, copy any other stream and publish under
any subject. What a user may read of Petiole's streams is imported, one request at a time, below `USER_API`.
The agent makes its consumer, for the maker of a consumer decides where it delivers.

The account on a leaf can be linked to that of the same name at the hub, so that each side reaches the other's
JetStream by its domain. What is imported does not cross that link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from agent.base.nats_conf_quoting import Variable
from agent.contract import ACCOUNT, USER_API, user_account, user_consumer
from agent.server.permissions import Permissions
from agent.server.values import AccountUser

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
            "imports": [_imported(subject) for stream in user.reads for subject, _ in _reading(user, stream)],
        }
        for user in users
    }


def user_exports(users: Iterable[AccountUser]) -> list[dict[str, Any]]:
    """What Petiole's account lets users ask, each what it may read."""
    return [
        {
            "service": subject,
            "accounts": [user_account(user.name)],
            **({"response_type": "stream"} if many else {}),
        }
        for user in users
        for stream in user.reads
        for subject, many in _reading(user, stream)
    ]


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


def _imported(subject: str) -> dict[str, Any]:
    found: dict[str, Any] = {"service": {"account": ACCOUNT, "subject": subject}}
    if subject.startswith("$JS.API."):
        found["to"] = USER_API + subject.removeprefix("$JS.API")
    return found
