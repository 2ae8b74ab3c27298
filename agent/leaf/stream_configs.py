"""Builds configurations of the leaf's streams and link consumers. No I/O."""

from __future__ import annotations

from typing import Any, Final

from agent import contract
from agent.config import StreamClass

DUPLICATE_WINDOW_NS: Final = 120_000_000_000
MAX_ACK_PENDING: Final = 2
"""Messages under way in a new epoch, until `agent.leaf.link.window` sets the limit."""

ORIGIN_METADATA: Final = "petiole.origin"


def leaf_stream(domain: str, cls: StreamClass, *, mqtt: bool = False) -> dict[str, Any]:
    """Return a class's stream. `max_age` is 0, because a set clock would expire the backlog.

    With `mqtt` it also stores QoS 1 and 2 messages, so that devices are answered only once their reading is
    stored.
    """
    subjects = [contract.leaf_subjects(domain, cls.name)]
    if mqtt:
        subjects.append(contract.mqtt_store_subject(cls.name))
    return {
        "name": contract.leaf_stream(domain, cls.name),
        "subjects": subjects,
        **(_from_mqtt(domain, cls.name) if mqtt else {}),
        "retention": "limits",
        "storage": "file",
        "compression": "s2",
        "discard": cls.discard,
        "max_bytes": int(cls.max_bytes),
        "max_age": 0,
        "max_msgs": -1,
        "max_consumers": -1,
        "num_replicas": 1,
        "duplicate_window": DUPLICATE_WINDOW_NS,
        "allow_direct": True,
        "metadata": contract.stream_metadata(domain, cls.name),
    }


def _from_mqtt(domain: str, cls: str) -> dict[str, Any]:
    stored = contract.leaf_subjects(domain, cls).replace(">", "{{wildcard(1)}}.{{wildcard(2)}}")
    return {"subject_transform": {"src": contract.mqtt_store_subject(cls), "dest": stored}}


def mqtt_streams() -> list[dict[str, Any]]:
    """Return nats-server's own MQTT streams, which it uses if present.

    `$MQTT_msgs` gets an unused subject; otherwise it would answer for messages and drop them without
    subscribers.
    """
    common = {"storage": "file", "num_replicas": 1}
    return [
        {**common, "name": contract.MQTT_MESSAGES, "subjects": ["$MQTT.msgs.none"], "retention": "interest"},
        {
            **common,
            "name": contract.MQTT_RETAINED,
            "subjects": ["$MQTT.rmsgs.>"],
            "retention": "limits",
            "max_msgs_per_subject": 1,
            "max_bytes": contract.MQTT_RETAINED_BYTES,
            "discard": "new",
        },
    ]


def rate_limit(cls: StreamClass) -> int:
    """Return a class's link rate in bits a second; 0 for no limit."""
    return 8 * (cls.link_rate or 0)


def link_consumer(domain: str, cls: StreamClass, epoch: str, start: int) -> dict[str, Any]:
    """Return the durable consumer of one epoch from sequence `start`; a source with named consumer allows no
    start (10215).

    It is in memory, so a restart forgets it. On disk, unsynced counts would skip messages after a power cut,
    and each delivery and ack would rewrite a file, at four times the cost of storing a batch.
    """
    name = contract.link_consumer(epoch)
    config: dict[str, Any] = {
        "name": name,
        "durable_name": name,
        "deliver_subject": contract.deliver_subject(domain, cls.name, epoch),
        "ack_policy": "flow_control",
        "max_ack_pending": MAX_ACK_PENDING,
        "flow_control": True,
        "idle_heartbeat": 1_000_000_000,
        "replay_policy": "instant",
        "deliver_policy": "all",
        "rate_limit_bps": rate_limit(cls),
        "mem_storage": True,
    }
    if start > 1:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
    return config


def command_mirror(domain: str, epoch: str, origin: str, api: str) -> dict[str, Any]:
    """Return the command mirror over the hub's consumer behind the prefix `api`.

    Metadata has `origin`, the hub stream's creation time, since a mirror can't detect a new one.
    """
    return {
        "name": contract.COMMANDS,
        "mirror": {
            "name": contract.COMMANDS,
            "external": {"api": api, "deliver": ""},
            "consumer": {
                "name": contract.command_consumer(domain),
                "deliver_subject": contract.command_deliver(domain, epoch),
            },
        },
        "storage": "file",
        "compression": "s2",
        "retention": "limits",
        "discard": "old",
        "max_bytes": contract.COMMANDS_BYTES,
        "max_consumers": -1,
        "allow_direct": True,
        "metadata": {
            "petiole.domain": domain,
            "petiole.version": str(contract.VERSION),
            ORIGIN_METADATA: origin,
        },
    }
