"""What the leaf's streams and link consumers look like: plain configurations for the JetStream API, no
I/O."""

from __future__ import annotations

from typing import Any, Final

from agent import contract
from agent.config import StreamClass

DUPLICATE_WINDOW_NS: Final = 120_000_000_000
MAX_ACK_PENDING: Final = 10_000
"""Twice the rate of 1,000 over a link of 300 ms, and more brings nothing (measured on nats-server 2.15.1)."""

ORIGIN_METADATA: Final = "petiole.origin"


def leaf_stream(domain: str, cls: StreamClass, *, mqtt: bool = False) -> dict[str, Any]:
    """The stream of one class. `max_age` is 0 on purpose: the server compares it with the wall clock, and a
    clock that is set would expire the backlog. With `mqtt` it is also where nats-server stores what devices
    send with QoS 1 or 2, so that a device is answered when its reading is stored here, and only then."""
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
    """The streams that nats-server would make for MQTT by itself, which takes them as they are when they are
    there. `$MQTT_msgs` would store, and answer for, what devices send and drop it without a subscriber:
    here it gets a subject that is not used, so that only the streams of the classes answer."""
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
    """How fast the hub takes a class, in bits a second; 0 without a limit."""
    return 8 * (cls.link_rate or 0)


def link_consumer(domain: str, cls: StreamClass, epoch: str, start: int) -> dict[str, Any]:
    """The durable consumer through which the hub sources one epoch, from sequence `start` on. Every start
    sits on the consumer, for a source that names one may carry none (error 10215).

    Its server keeps it in memory, and has forgotten it after a restart. On disk it would go on by itself from
    counts that are not synced, and after a power cut skip what it had delivered and the hub had not taken
    (seen on nats-server 2.15.1); and it would replace a file at each delivery and each acknowledgement, which
    at one batch a second costs over four times what storing the batch costs."""
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
    """The leaf's mirror of its commands, over the hub's consumer of one epoch, behind the prefix `api`;
    `origin` is when the hub's stream was made, and is kept in the metadata, for a mirror cannot know if
    it is still the same."""
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
