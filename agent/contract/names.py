"""Derives names and subjects on both sides; none is parsed back from a name."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass
from typing import Final, Literal

from agent.contract.checks import VERSION, ContractError, check_class, check_domain, check_input, matching

__all__ = [
    "ACCOUNT",
    "AGENT_INPUT",
    "AGGREGATES",
    "CHECK_SERVER",
    "DEFAULT_CLASS",
    "FLEET_BUCKET",
    "HOME",
    "HUB_DOMAIN",
    "H_MQTT",
    "MADE_METADATA",
    "MAX_CLASSES",
    "MQTT_MESSAGES",
    "MQTT_RETAINED",
    "MQTT_RETAINED_BYTES",
    "QOS0_INPUT",
    "REGISTRAR",
    "RESERVED_DOMAINS",
    "RULES_INPUT",
    "SYNC_METADATA",
    "USER_API",
    "USER_CONSUMERS",
    "Subject",
    "aggregate",
    "announce_subject",
    "api_prefix",
    "batch_subject",
    "cell_account",
    "cell_api",
    "cell_of",
    "clock_subject",
    "committed_subject",
    "cursor_subject",
    "dead_subject",
    "deliver_subject",
    "direct_subject",
    "hub_api",
    "inbox_prefix",
    "leaf_stream",
    "leaf_subjects",
    "ledger_subject",
    "link_consumer",
    "link_deliver",
    "mqtt_store_subject",
    "mqtt_subject",
    "mqtt_text",
    "new_epoch",
    "new_run",
    "numbered_subjects",
    "own_subjects",
    "parse_subject",
    "reading_subjects",
    "server_name",
    "stream_metadata",
    "tenant_account",
    "user_account",
    "user_consumer",
    "verify_subject",
]

HUB_DOMAIN: Final = "hub"
REGISTRAR: Final = "registrar"
"""Identity of the hub's agent."""
RESERVED_DOMAINS: Final = frozenset({HUB_DOMAIN, REGISTRAR, "jobs", "device"})
"""Forbidden domains, as inboxes use these names."""
CHECK_SERVER: Final = "petiole.check"
"""Name prefix of connections by `petiole check`; domains have no dot."""
DEFAULT_CLASS: Final = "normal"
MAX_CLASSES: Final = 256
"""Classes per leaf: an announcement has 0.8 kB each, and the hub reads up to 256 KiB."""
AGENT_INPUT: Final = "agent"
"""Input name of the agent's own readings."""
QOS0_INPUT: Final = "qos0"
"""Input name of MQTT QoS 0 messages."""
RULES_INPUT: Final = "rules"
"""Input name of aggregates."""
H_MQTT: Final = "Nmqtt-Pub"
"""nats-server's header for MQTT messages; its value is the QoS."""
SYNC_METADATA: Final = "petiole.sync_seconds"
"""Aggregate metadata: server sync interval, 0 or missing for before acks."""
MADE_METADATA: Final = "petiole.made."
"""Prefix of aggregate metadata `petiole.made.<stream>.<time>` for recreated leaf streams; the value is the
first creation.
"""
MQTT_MESSAGES: Final = "$MQTT_msgs"
MQTT_RETAINED: Final = "$MQTT_rmsgs"
"""nats-server's MQTT streams: QoS 1 or 2, and retained messages."""
MQTT_RETAINED_BYTES: Final = 16 * 2**20
"""Limit of retained messages, which no user may subscribe."""
FLEET_BUCKET: Final = "petiole_fleet"
AGGREGATES: Final = "aggregates.known"
"""The key of the record in that bucket that names all aggregates; a domain has no dot."""
ACCOUNT: Final = "PETIOLE"
"""Petiole's account on a server; at the hub that of its first cell, with the records of the fleet."""
HOME: Final = ""
"""The first cell."""
USER_API: Final = "JS.petiole.API"
"""Prefix of a user's view of streams. It is not `$JS.<domain>.API`, which the server maps itself
(`findings/nats-import-under-the-servers-own-domain-is-dead.sh`).
"""
USER_CONSUMERS: Final = "user-"
"""Prefix of users' consumers."""

_TELEMETRY: Final = "TELEMETRY_"
_TOKEN = re.compile(r"[^\s.*>\x00-\x1f]+\Z")
_EPOCH_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


def new_run(now_ns: int | None = None) -> str:
    """Return a UUIDv7 (RFC 9562) for an agent's run; `now_ns` in ns since 1970."""
    millis = (time.time_ns() if now_ns is None else now_ns) // 1_000_000
    value = (millis & (2**48 - 1)) << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62
    text = f"{value | secrets.randbits(62):032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def new_epoch() -> str:
    """Return a random epoch; counters of two machines with one domain could collide."""
    return "".join(secrets.choice(_EPOCH_ALPHABET) for _ in range(13))


def leaf_stream(domain: str, cls: str) -> str:
    return f"TEL_{domain}_{cls}"


def aggregate(number: int, cell: str = HOME) -> str:
    """Return a hub aggregate's name."""
    return f"{_TELEMETRY}{cell}_{number}" if cell else f"{_TELEMETRY}{number}"


def cell_of(stream: str) -> str:
    """Return the cell of an aggregate, `HOME` for any other stream."""
    return stream.removeprefix(_TELEMETRY).rpartition("_")[0] if stream.startswith(_TELEMETRY) else HOME


def cell_account(cell: str) -> str:
    """Return the account of a cell on the hub's server."""
    return f"CELL_{cell}" if cell else ACCOUNT


def cell_api(stream: str) -> str:
    """Return the JetStream API for an aggregate in the account of the first cell. A prefix that begins with
    `$` does not cross accounts (seen on nats-server 2.15.1)."""
    cell = cell_of(stream)
    return f"JS.{cell_account(cell)}.API" if cell else "$JS.API"


def stream_metadata(domain: str, cls: str) -> dict[str, str]:
    """Return metadata with the stream's owner."""
    return {"petiole.domain": domain, "petiole.class": cls, "petiole.version": str(VERSION)}


def api_prefix(domain: str) -> str:
    """Return a domain's JetStream API prefix."""
    return f"$JS.{domain}.API"


def tenant_account(tenant: str) -> str:
    """Return the hub account of a tenant's leaves."""
    return f"TENANT_{tenant}"


def user_account(user: str) -> str:
    """Return a user's account."""
    return f"USER_{user}"


def user_consumer(user: str) -> str:
    """Return a user's fixed consumer; permissions can't match parts of tokens."""
    return f"{USER_CONSUMERS}{user}"


def hub_api(*, tenant: bool) -> str:
    """Return the hub's API for a leaf's command mirror. A tenant imports it under another
    prefix than that of the server's own domain
    (`findings/nats-import-under-the-servers-own-domain-is-dead.sh`).
    """
    prefix = api_prefix(HUB_DOMAIN)
    return prefix.removeprefix("$") if tenant else prefix


def link_consumer(epoch: str) -> str:
    """Return the durable consumer of one epoch on a leaf stream."""
    return f"hub-{epoch}"


def deliver_subject(domain: str, cls: str, epoch: str) -> str:
    """Return that consumer's deliver subject."""
    return f"petiole.deliver.{domain}.{cls}.{epoch}"


def link_deliver(origin: str, target: str, stream: str) -> str:
    """Return the deliver prefix of a declared link; nats-server's own is equal for all, so can't be permitted
    singly.
    """
    return f"petiole.link.{origin}.{target}.{stream}"


def server_name(domain: str, machine: str) -> str:
    """Return a nats-server's name with the machine, since equal names evict each other."""
    return f"{domain}-{machine}"


def inbox_prefix(identity: str) -> str:
    """Return an identity's inbox prefix; `_INBOX.>` would expose all answers."""
    return f"_INBOX_{identity}"


def leaf_subjects(domain: str, cls: str) -> str:
    return f"tel.{domain}.{cls}.>"


def batch_subject(domain: str, cls: str, input_name: str) -> str:
    return f"tel.{domain}.{cls}._batch.{input_name}"


def ledger_subject(domain: str, cls: str) -> str:
    return f"tel.{domain}.{cls}._ledger"


def clock_subject(domain: str, cls: str) -> str:
    return f"tel.{domain}.{cls}._clock"


def dead_subject(domain: str, cls: str, input_name: str) -> str:
    return f"tel.{domain}.{cls}._dead.{input_name}"


def numbered_subjects(domain: str, cls: str) -> list[str]:
    """Return subjects with numbered messages: batches and dead letters."""
    return [batch_subject(domain, cls, ">"), dead_subject(domain, cls, ">")]


def own_subjects(domain: str, cls: str) -> list[str]:
    """Return all subjects that the agent publishes."""
    return [*numbered_subjects(domain, cls), ledger_subject(domain, cls), clock_subject(domain, cls)]


def reading_subjects(domain: str, cls: str) -> str:
    """Return subjects with possible readings, without ledgers and corrections."""
    return f"tel.{domain}.{cls}.*.>"


def direct_subject(domain: str, cls: str, device: str, metric: str) -> str:
    """Return a device's own subject; raises `ContractError`."""
    for name, token in (("device", device), ("metric", metric)):
        matching(_TOKEN, token, name, "one subject token (no dot, blank, '*' or '>')")
        if token.startswith("_"):
            raise ContractError(f"{name} {token!r} begins with '_', which is the agent's own")
    return f"tel.{domain}.{cls}.{device}.{metric}"


def mqtt_subject(cls: str) -> str:
    """Return nats-server's subject of topic `readings/<class>/<device>/<metric>`, any QoS. No stream stores
    it.
    """
    return f"readings.{cls}.*.*"


def mqtt_store_subject(cls: str) -> str:
    """Return nats-server's subject of stored QoS 1 and 2 messages, which gates the device's answer."""
    return f"$MQTT.msgs.{mqtt_subject(cls)}"


def mqtt_text(token: str) -> str:
    """Return an MQTT level as written; nats-server writes a dot as `//`."""
    return token.replace("//", ".")


def announce_subject(domain: str) -> str:
    """Return the hub's announcement service."""
    return f"petiole.v1.announce.{domain}"


def cursor_subject(domain: str) -> str:
    """Return the hub's cursor service."""
    return f"petiole.v1.cursor.{domain}"


def verify_subject(domain: str) -> str:
    """Return the hub's verification service."""
    return f"petiole.v1.verify.{domain}"


def committed_subject(stream: str) -> str:
    """Return the subject for ingest's commits of an aggregate."""
    return f"petiole.v1.committed.{stream}"


@dataclass(frozen=True, slots=True)
class Subject:
    """A parsed telemetry subject. `name` is the input, or a direct message's device; `metric` only then."""

    kind: Literal["batch", "ledger", "clock", "dead", "direct"]
    domain: str
    cls: str
    name: str = ""
    metric: str = ""


def parse_subject(subject: str) -> Subject:
    """Parse a subject below `tel.`; raises `ContractError`."""
    head, *rest = subject.split(".")
    if head != "tel" or not 3 <= len(rest) <= 4:
        raise ContractError(f"subject {subject!r:.160} is not tel.<domain>.<class>.… of the contract")
    domain, cls = check_domain(rest[0]), check_class(rest[1])
    match rest[2:]:
        case ["_ledger"]:
            return Subject("ledger", domain, cls)
        case ["_clock"]:
            return Subject("clock", domain, cls)
        case ["_batch", name]:
            return Subject("batch", domain, cls, check_input(name))
        case ["_dead", name]:
            return Subject("dead", domain, cls, check_input(name))
        case [device, metric] if not device.startswith("_") and device and metric:
            return Subject("direct", domain, cls, device, metric)
    raise ContractError(
        f"subject {subject!r:.160} is neither a batch, a ledger, a correction, a dead letter "
        "nor device.metric"
    )
