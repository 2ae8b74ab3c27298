"""Names and subjects. Both sides derive them; none is taken from a message or parsed back from a name."""

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
    "CHECK_SERVER",
    "DEFAULT_CLASS",
    "FLEET_BUCKET",
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
"""The identity of the hub's agent at its server."""
RESERVED_DOMAINS: Final = frozenset({HUB_DOMAIN, REGISTRAR, "jobs", "device"})
"""No leaf may have them: inboxes are named after domains and after these."""
CHECK_SERVER: Final = "petiole.check"
"""How the name of a connection begins that `petiole check` makes to the hub in the name of a leaf; no domain,
and so no server of a leaf, has a dot in its name."""
DEFAULT_CLASS: Final = "normal"
MAX_CLASSES: Final = 256
"""Classes of a leaf: an announcement holds up to 0.8 kB of each, and the hub reads no announcement above 256
KiB."""
AGENT_INPUT: Final = "agent"
"""The name under which the agent stores readings of itself."""
QOS0_INPUT: Final = "qos0"
"""The name under which it stores what MQTT devices send to its own server with QoS 0."""
RULES_INPUT: Final = "rules"
"""The name under which it stores aggregates."""
H_MQTT: Final = "Nmqtt-Pub"
"""The header by which nats-server marks what came over MQTT; its value is the QoS."""
SYNC_METADATA: Final = "petiole.sync_seconds"
"""In the metadata of an aggregate: how often its server syncs it, 0 before it acknowledges. Where this is
missing, too."""
MADE_METADATA: Final = "petiole.made."
"""In the metadata of an aggregate: the beginning of the key `petiole.made.<stream>.<time>`, by which a leaf's
server created that stream anew over its messages at that time. The value is when it was created first."""
MQTT_MESSAGES: Final = "$MQTT_msgs"
MQTT_RETAINED: Final = "$MQTT_rmsgs"
"""Streams of a leaf's server for MQTT: of messages with QoS 1 or 2, and of retained ones."""
MQTT_RETAINED_BYTES: Final = 16 * 2**20
"""The most that retained messages take; no user may subscribe to them."""
FLEET_BUCKET: Final = "petiole_fleet"
ACCOUNT: Final = "PETIOLE"
USER_API: Final = "JS.petiole.API"
"""The prefix behind which a user finds the streams of Petiole's that it may read. It is not
`$JS.<domain>.API`, which the server maps itself
(`findings/nats-import-under-the-servers-own-domain-is-dead.sh`)."""
USER_CONSUMERS: Final = "user-"
"""How the names of users' consumers begin."""

_TOKEN = re.compile(r"[^\s.*>\x00-\x1f]+\Z")
_EPOCH_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


def new_run(now_ns: int | None = None) -> str:
    """A UUIDv7 (RFC 9562) that names one start of an agent; `now_ns` is nanoseconds since 1970."""
    millis = (time.time_ns() if now_ns is None else now_ns) // 1_000_000
    value = (millis & (2**48 - 1)) << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62
    text = f"{value | secrets.randbits(62):032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def new_epoch() -> str:
    """A random epoch. Never a counter: two machines with one domain must not meet in one name."""
    return "".join(secrets.choice(_EPOCH_ALPHABET) for _ in range(13))


def leaf_stream(domain: str, cls: str) -> str:
    return f"TEL_{domain}_{cls}"


def aggregate(number: int) -> str:
    """The hub's stream that sources from many leaves."""
    return f"TELEMETRY_{number}"


def stream_metadata(domain: str, cls: str) -> dict[str, str]:
    """The metadata that says whose stream it is, since names are never parsed back."""
    return {"petiole.domain": domain, "petiole.class": cls, "petiole.version": str(VERSION)}


def api_prefix(domain: str) -> str:
    """The JetStream API of a domain as seen from another one."""
    return f"$JS.{domain}.API"


def tenant_account(tenant: str) -> str:
    """The account of a tenant's leaves on the hub's server."""
    return f"TENANT_{tenant}"


def user_account(user: str) -> str:
    """The account of a user's own streams, on whichever server has that user."""
    return f"USER_{user}"


def user_consumer(user: str) -> str:
    """The consumer of a stream of Petiole's through which a user reads it; fixed, for a permission cannot
    match part of a token."""
    return f"{USER_CONSUMERS}{user}"


def hub_api(*, tenant: bool) -> str:
    """The hub's JetStream API as a leaf's mirror of its commands names it. In an account of its `tenant` it
    is imported, which needs another prefix than that of the server's own domain
    (`findings/nats-import-under-the-servers-own-domain-is-dead.sh`)."""
    prefix = api_prefix(HUB_DOMAIN)
    return prefix.removeprefix("$") if tenant else prefix


def link_consumer(epoch: str) -> str:
    """The durable consumer on a leaf stream through which the hub sources one epoch."""
    return f"hub-{epoch}"


def deliver_subject(domain: str, cls: str, epoch: str) -> str:
    """Where that consumer delivers."""
    return f"petiole.deliver.{domain}.{cls}.{epoch}"


def link_deliver(origin: str, target: str, stream: str) -> str:
    """The prefix below which the server of domain `origin` delivers a declared link to a stream of domain
    `target`. The server's own prefix is the same for all, so a permission for it would open every link."""
    return f"petiole.link.{origin}.{target}.{stream}"


def server_name(domain: str, machine: str) -> str:
    """A nats-server's name; it holds the machine, since two servers of one name evict each other."""
    return f"{domain}-{machine}"


def inbox_prefix(identity: str) -> str:
    """The inbox prefix of one identity: a user who may subscribe to `_INBOX.>` reads all answers."""
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
    """The subjects of all messages that have a number `n`: batches and dead letters."""
    return [batch_subject(domain, cls, ">"), dead_subject(domain, cls, ">")]


def own_subjects(domain: str, cls: str) -> list[str]:
    """The subjects of all messages that an agent publishes itself."""
    return [*numbered_subjects(domain, cls), ledger_subject(domain, cls), clock_subject(domain, cls)]


def reading_subjects(domain: str, cls: str) -> str:
    """The subjects of all messages that may hold readings: batches, dead letters and what devices publish
    themselves, but neither ledger records nor clock corrections."""
    return f"tel.{domain}.{cls}.*.>"


def direct_subject(domain: str, cls: str, device: str, metric: str) -> str:
    """The subject on which a device publishes a reading of its own; raises `ContractError`."""
    for name, token in (("device", device), ("metric", metric)):
        matching(_TOKEN, token, name, "one subject token (no dot, blank, '*' or '>')")
        if token.startswith("_"):
            raise ContractError(f"{name} {token!r} begins with '_', which is the agent's own")
    return f"tel.{domain}.{cls}.{device}.{metric}"


def mqtt_subject(cls: str) -> str:
    """Where readings of MQTT devices arrive, with every QoS: the topic `readings/<class>/<device>/<metric>`
    as nats-server makes a subject of it. No stream takes them from here."""
    return f"readings.{cls}.*.*"


def mqtt_store_subject(cls: str) -> str:
    """Where nats-server stores them with QoS 1 or 2; it answers the device once a stream has."""
    return f"$MQTT.msgs.{mqtt_subject(cls)}"


def mqtt_text(token: str) -> str:
    """A level of an MQTT topic as its device wrote it: in a subject nats-server writes a dot as `//`."""
    return token.replace("//", ".")


def announce_subject(domain: str) -> str:
    """The hub's service that answers announcements of a leaf."""
    return f"petiole.v1.announce.{domain}"


def cursor_subject(domain: str) -> str:
    """The hub's service that says which message of a leaf it holds."""
    return f"petiole.v1.cursor.{domain}"


def verify_subject(domain: str) -> str:
    """The hub's service that says which batches of a leaf it lacks."""
    return f"petiole.v1.verify.{domain}"


def committed_subject(stream: str) -> str:
    """Where `ingest` tells the registrar what of an aggregate is safe in the table."""
    return f"petiole.v1.committed.{stream}"


@dataclass(frozen=True, slots=True)
class Subject:
    """A telemetry subject taken apart. `name` is the input of a batch or dead letter, the device of a direct
    message; `metric` is set for a direct message only."""

    kind: Literal["batch", "ledger", "clock", "dead", "direct"]
    domain: str
    cls: str
    name: str = ""
    metric: str = ""


def parse_subject(subject: str) -> Subject:
    """Take a subject below `tel.` apart; raises `ContractError` for one that is not in the contract."""
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
