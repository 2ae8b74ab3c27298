"""What a round is drawn from, and which values exclude each other. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum, StrEnum
from typing import Any, Final

from tests.faults.oracle.journal import Level


class Fault(StrEnum):
    """What is hurt."""

    AGENT_KILLED = "agent killed"
    AGENT_STOPPED = "agent stopped"
    LEAF_SERVER_KILLED = "leaf server killed"
    HUB_SERVER_KILLED = "hub server killed"
    HUB_AGENT_KILLED = "hub agent killed"
    LINK_CUT = "link cut"
    LINK_STALLED = "link stalled"
    DISK_FULL = "disk full"
    STREAM_FULL = "stream full"
    LEAF_STORE_LOST = "leaf store lost"
    LEAF_STORE_RESTORED = "leaf store restored"
    HUB_STORE_LOST = "hub store lost"
    HUB_STORE_RESTORED = "hub store restored"
    RELOAD = "reload"
    RELOAD_REFUSED = "reload refused"
    LEAF_REVOKED = "leaf revoked"


class Moment(StrEnum):
    """When the second fault meets the first."""

    WHILE_IT_LASTS = "while it lasts"
    BEFORE_START = "before the agent starts"
    IN_FLIGHT = "between request and answer"
    AFTER_ANSWER = "right after an answer"
    DURING_REPAIR = "during its repair"
    AT_DRAIN = "at drain"
    AT_RECONNECT = "at reconnect"
    DURING_JOBS = "during the jobs"


class Input(StrEnum):
    """Who sends, beside one device over HTTP and one that publishes to the leaf's server."""

    HTTP = "http"
    HTTP_REPEATED = "http repeated"
    LINE_PROTOCOL = "line protocol"
    SOCKET = "socket"
    FILE = "file"
    NATS = "nats"
    MQTT = "mqtt"
    EXEC = "exec"
    DIRECT = "direct"
    MQTT_DEVICE = "mqtt device"


class Policy(StrEnum):
    """What the class does when it is full, and the profile of the link."""

    NEW = "discard new"
    OLD = "discard old"
    THIN = "thin link"


class Server(StrEnum):
    """Who runs the leaf's server."""

    EMBEDDED = "embedded"
    EXTERNAL = "external"


class Rule(StrEnum):
    """What the leaf's rules do."""

    NONE = "no rule"
    DEADBAND = "deadband"
    TAGS = "tags"
    CLASS = "class"
    DROP = "drop"


class Headers(StrEnum):
    """What somebody with the device key forges meanwhile."""

    HONEST = "honest"
    MESSAGE_ID = "forged id"
    PETIOLE = "forged petiole"
    SERVER = "forged server"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One round; its fields but `seed` are the dimensions."""

    seed: int
    first: Fault
    second: Fault
    moment: Moment
    input: Input
    level: Level
    policy: Policy
    server: Server
    rule: Rule
    headers: Headers

    def __str__(self) -> str:
        two = f"{self.first} + {self.second} {self.moment}"
        around = (self.input, self.level, self.policy, self.server, self.rule, self.headers)
        return f"{two} | {', '.join(around)}"

    def has(self, *faults: Fault) -> bool:
        """Whether one of these is among its faults."""
        return self.first in faults or self.second in faults


Value = tuple[str, Any]
"""A dimension by its name, and one of its values."""

_TYPES: Final[Mapping[str, type[Enum]]] = {
    "first": Fault,
    "second": Fault,
    "moment": Moment,
    "input": Input,
    "level": Level,
    "policy": Policy,
    "server": Server,
    "rule": Rule,
    "headers": Headers,
}
DIMENSIONS: Final[Mapping[str, tuple[Any, ...]]] = {name: tuple(kind) for name, kind in _TYPES.items()}
assert list(DIMENSIONS) == [one.name for one in fields(Scenario)][1:]


def go_together(one: Value, other: Value) -> bool:
    """Whether two values of two dimensions can meet in a round."""
    return not (_exclude(one, other) or _exclude(other, one))


def settled(row: Mapping[str, Any]) -> dict[str, Any]:
    """A round as it is played: only an embedded server has a listener for MQTT devices. To exclude the two
    from each other would draw all other rounds of a block again, and their seeds would be others."""
    listens = row["input"] is Input.MQTT_DEVICE
    return {**row, "server": Server.EMBEDDED} if listens else {**row}


def pairs() -> Iterator[frozenset[Value]]:
    """Every two values of two dimensions that can meet in a round as it is played."""
    never = frozenset({("input", Input.MQTT_DEVICE), ("server", Server.EXTERNAL)})
    return (one for one in drawn_pairs() if one != never)


def drawn_pairs() -> Iterator[frozenset[Value]]:
    """Every two values of two dimensions that are drawn together. In which order two faults meet is the
    moment's matter: both orders are one pair."""
    names = list(DIMENSIONS)
    for at, name in enumerate(names):
        for other in names[at + 1 :]:
            for value in DIMENSIONS[name]:
                for second in DIMENSIONS[other]:
                    if go_together((name, value), (other, second)):
                        yield pair((name, value), (other, second))


def pair(one: Value, other: Value) -> frozenset[Value]:
    """Two values as they are counted."""
    if {one[0], other[0]} == {"first", "second"}:
        low, high = sorted((one[1], other[1]))
        return frozenset({("first", low), ("second", high)})
    return frozenset({one, other})


def _exclude(one: Value, other: Value) -> bool:
    (name, value), (_, second) = one, other
    if name == "first":
        return bool(other[0] == "second" and value == second)
    if value is Policy.THIN:
        # Its pings take a minute and a half to find a stalled link.
        return second is Fault.LINK_STALLED
    # Another key of the link has to be rendered into a server that its agent does not run.
    return value is Server.EXTERNAL and second is Fault.LEAF_REVOKED
