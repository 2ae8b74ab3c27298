"""Every subject that is tried on every identity: those of the contract, of JetStream's API and of the server.

Pure. A subject is a template: `{own}` stands for the domain of whoever tries it, `{other}` for one that is
not theirs. The contract's are found in `agent.contract` itself, so that a new one is tried as well;
JetStream's are compared with those that the server's binary holds.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

from agent import contract

EPOCH = "0123456789abc"
CLASS = "normal"
APP = "app"
AGGREGATE = contract.aggregate(0)
FLEET = f"KV_{contract.FLEET_BUCKET}"
HEARD = "plant.{own}.pump"
"""A subject on which local programs publish to the agent."""
_DOMAINS = {"own-domain": "{own}", "other-domain": "{other}"}
_SAMPLES = {
    "cls": [CLASS],
    "input_name": ["http"],
    "device": ["pump"],
    "metric": ["bar"],
    "epoch": [EPOCH],
    "app": [APP, "agent"],
    "verb": ["go"],
    "stream": [AGGREGATE],
}
_GIVERS = re.compile(r"(?!parse_).*(_subject|_subjects|_deliver)\Z")
_API_IN_BINARY = re.compile(rb"\$JS\.API\.((?:[A-Z_]+\.)+\*(?:\.\*)*)")

OPERATIONS = {
    "look": (
        *("INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.{s}"),
        *("CONSUMER.NAMES.{s}", "CONSUMER.LIST.{s}", "CONSUMER.INFO.{s}.{c}"),
    ),
    "read": (
        *("STREAM.MSG.GET.{s}", "DIRECT.GET.{s}", "DIRECT.GET.{s}.a.b", "CONSUMER.MSG.NEXT.{s}.{c}"),
        *("CONSUMER.CREATE.{s}", "CONSUMER.CREATE.{s}.{c}", "CONSUMER.CREATE.{s}.{c}.a.b"),
        "CONSUMER.DURABLE.CREATE.{s}.{c}",
    ),
    "change": (
        *("STREAM.CREATE.{s}", "STREAM.UPDATE.{s}", "STREAM.PURGE.{s}"),
        *("CONSUMER.DELETE.{s}.{c}", "CONSUMER.PAUSE.{s}.{c}", "CONSUMER.RESET.{s}.{c}"),
    ),
    "destroy": (
        *("STREAM.DELETE.{s}", "STREAM.MSG.DELETE.{s}", "STREAM.SNAPSHOT.{s}", "STREAM.RESTORE.{s}"),
        *("STREAM.LEADER.STEPDOWN.{s}", "STREAM.PEER.REMOVE.{s}", "STREAM.PEER.EVACUATE.{s}"),
        *("STREAM.CANCEL_MOVE.{s}", "CONSUMER.UNPIN.{s}.{c}", "CONSUMER.LEADER.STEPDOWN.{s}.{c}"),
        *("CONSUMER.PEER.REMOVE.{s}.{c}", "CONSUMER.PEER.EVACUATE.{s}.{c}"),
        *(
            "ACCOUNT.PURGE.PETIOLE",
            "ACCOUNT.STREAM.MOVE.PETIOLE.{s}",
            "ACCOUNT.STREAM.CANCEL_MOVE.PETIOLE.{s}",
        ),
        *("META.LEADER.STEPDOWN", "META.RESCUE", "SERVER.REMOVE", "SERVER.EVACUATE"),
    ),
}
"""What JetStream can be asked, of a stream `{s}` and a consumer `{c}` where it names one."""
STREAMS = {
    contract.leaf_stream("{own}", CLASS): (contract.link_consumer(EPOCH),),
    contract.leaf_stream("{other}", CLASS): (contract.link_consumer(EPOCH),),
    contract.COMMANDS: (contract.command_consumer("{own}"), contract.command_consumer("{other}"), APP),
    AGGREGATE: ("spy",),
    FLEET: ("spy",),
    "ELSE": ("spy",),
}
"""The streams, and the consumers of each."""
PREFIXES = (
    "$JS.API",
    *(contract.api_prefix(domain) for domain in ("{own}", "{other}", contract.HUB_DOMAIN)),
    contract.hub_api(tenant=True),
)
SERVER = (
    *("$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.LEAFZ", "$SYS.REQ.SERVER.PING.VARZ"),
    *("$SYS.REQ.SERVER.PING.HEALTHZ", "$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.SERVER.PING.JSZ"),
    *(
        "$SYS.REQ.SERVER.x.KICK",
        "$SYS.REQ.SERVER.x.LDM",
        "$SYS.REQ.SERVER.x.RELOAD",
        "$SYS.REQ.SERVER.x.VARZ",
    ),
    *("$SYS.REQ.ACCOUNT.PETIOLE.CONNZ", "$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.CLAIMS.UPDATE"),
    *("$SYS.REQ.USER.INFO", "$SYS.DEBUG.SUBSCRIBERS", "$SYS.ACCOUNT.PETIOLE.CONNECT"),
    *("$SYS.ACCOUNT.PETIOLE.DISCONNECT", "$SYS.ACCOUNT.TENANT_acme.CONNECT", "$SYS.SERVER.x.STATSZ"),
    *("$JS.EVENT.ADVISORY.STREAM.CREATED.x", "$JS.SNAPSHOT.ACK.x.y", "$MQTT.msgs.readings.normal.pump.bar"),
    *(
        "readings.normal._batch.x",
        "readings.normal._dead.x",
        "$MQTT.sess.x",
        "$MQTT.JSA.x.SP.a.b",
        "$NRG.AE.x",
        "$JSC.R.x",
        "$JSC.SYNC.x",
        "_R_.x",
    ),
)


@dataclass(frozen=True, slots=True)
class Subject:
    """One subject to try; `group` is the line of the table that it belongs to, `what` its part of that."""

    template: str
    group: str
    what: str = ""

    def of(self, own: str, other: str) -> str:
        """The subject for whoever has the domain `own`."""
        return self.template.replace("{own}", own).replace("{other}", other)


def subjects() -> list[Subject]:
    """All of them, each once."""
    found: dict[str, Subject] = {}
    for one in (*_contract(), *_acknowledgements(), *_inboxes(), *_server(), *_jetstream()):
        found.setdefault(one.template, one)
    return list(found.values())


def operations_of(binary: bytes) -> set[str]:
    """What the API of JetStream in a server's binary has, below `$JS.API.`, each token that varies as `*`."""
    return {found[1].decode() for found in _API_IN_BINARY.finditer(binary)}


def tried_operations() -> set[str]:
    """What is tried, written alike."""
    every = (one for several in OPERATIONS.values() for one in several)
    return {re.sub(r"\{[sc]\}|PETIOLE", "*", one) for one in every}


def _contract() -> Iterator[Subject]:
    for name, giver in inspect.getmembers(contract, inspect.isfunction):
        if _GIVERS.match(name):
            for subject in _given(giver):
                yield Subject(subject, subject)
    yield Subject(HEARD, HEARD)


def _given(giver: object) -> Iterator[str]:
    """What a function of the contract gives for every sample of its parameters."""
    assert callable(giver)
    rows: list[dict[str, str]] = [{}]
    for parameter in inspect.signature(giver).parameters:
        values = _SAMPLES.get(parameter, [*_DOMAINS])
        rows = [{**row, parameter: value} for row in rows for value in values]
    for row in rows:
        given = giver(**row)
        for subject in given if isinstance(given, list) else [given]:
            for sample, shown in _DOMAINS.items():
                subject = subject.replace(sample, shown)
            yield re.sub(r"[*>]", "x", subject)


def _acknowledgements() -> Iterator[Subject]:
    for kind, tail in (("ACK", ".1.1.1.1.0"), ("FC", ".x")):
        for stream, consumers in STREAMS.items():
            for consumer in consumers:
                subject = f"$JS.{kind}.{stream}.{consumer}{tail}"
                yield Subject(subject, subject)
    for domain in _DOMAINS.values():
        yield Subject(f"$KV.{contract.FLEET_BUCKET}.{domain}", f"$KV.{contract.FLEET_BUCKET}.{domain}")


def _inboxes() -> Iterator[Subject]:
    for identity in (*_DOMAINS.values(), *sorted(contract.RESERVED_DOMAINS)):
        subject = f"{contract.inbox_prefix(identity)}.x"
        yield Subject(subject, subject)
    for domain in _DOMAINS.values():
        subject = f"{contract.inbox_prefix('registrar')}.leaf.{domain}.x"
        yield Subject(subject, subject)
    yield Subject("_INBOX.x", "_INBOX.x")


def _server() -> Iterator[Subject]:
    for subject in SERVER:
        yield Subject(subject, subject)


def _jetstream() -> Iterator[Subject]:
    for prefix in PREFIXES:
        for kind, operations in OPERATIONS.items():
            for operation in operations:
                for stream, consumers in STREAMS.items() if "{s}" in operation else [("", ("",))]:
                    of = f"{stream}: " if stream else ""
                    for consumer in consumers if "{c}" in operation else ("",):
                        shown = operation.replace(".{s}", "").replace(".{c}", f" {consumer}")
                        subject = operation.replace("{s}", stream).replace("{c}", consumer)
                        yield Subject(f"{prefix}.{subject}", f"{prefix} {of}{kind}", shown)
    # An app's own consumer, as the contract has it made: its subject says what it is of.
    own = contract.command_subject("{own}", APP, ">")
    made = f"$JS.API.CONSUMER.CREATE.{contract.COMMANDS}.{APP}.{own}"
    yield Subject(made, f"$JS.API {contract.COMMANDS}: read", f"CONSUMER.CREATE {APP}.{own}")
