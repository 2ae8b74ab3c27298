"""Permissions of a leaf's link: the user as which its server dials the hub, and what the leaf denies the hub.

Pure. What the link needs was found by taking each entry away in turn. A missing
permission is silent: nothing flows, nothing is logged. Permissions at the hub do not hold against the hub, so
the leaf renders its denials into its own remote.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.contract import (
    COMMANDS,
    HUB_DOMAIN,
    REGISTRAR,
    announce_subject,
    api_prefix,
    command_consumer,
    command_deliver,
    cursor_subject,
    deliver_subject,
    hub_api,
    inbox_prefix,
    leaf_stream,
    link_deliver,
    verify_subject,
)
from agent.server.permissions import DEVICE, MQTT_READINGS, Permissions

_STREAM_CHANGES = (
    *("CREATE", "UPDATE", "DELETE", "PURGE", "SNAPSHOT", "RESTORE", "MSG.DELETE", "TEMPLATE"),
    *("PEER", "LEADER", "CANCEL_MOVE"),
)
_CONSUMER_CHANGES = ("DURABLE", "DELETE", "NAMES", "LIST", "MSG", "PAUSE", "UNPIN", "LEADER", "PEER")
_MQTT_BY_ITSELF = "$MQTT.>"
"""nats-server before 2.15.2 lets a link use it whatever is allowed, unless it is denied by name. It lets a
link use `_R_.>`, and before 2.15.3 `$JS.ACK.>`, even against a denial."""


def leaf_link(
    domain: str,
    classes: Iterable[str],
    takes: Iterable[str] = (),
    gives: Iterable[str] = (),
    *,
    tenant: bool = False,
) -> Permissions:
    """The user as which a leaf's server dials the hub, publish and subscribe from the leaf's view. `takes`
    are streams of the hub that it may mirror or source, `gives` its own that the hub may. In the account of a
    `tenant` the hub's questions come with reply subjects of the server's own making, below `_R_`.

    Each server answers the other's RESET of a durable consumer below `$JSC.R`: the hub's under the name of
    the leaf that it asks (`js_api_reply_v2` in `agent.server.render`), the leaf's, and a hub's without that
    flag, under one token. `allow_responses` does not cover it.
    """
    streams = [leaf_stream(domain, cls) for cls in classes]
    consumer, api = command_consumer(domain), api_prefix(domain)
    taken = _taken(api_prefix(HUB_DOMAIN), takes)
    given = _taken(api, gives)
    return Permissions(
        publish=(
            *taken,
            *((f"{link_deliver(domain, HUB_DOMAIN, '')}>",) if given else ()),
            *(deliver_subject(domain, cls, "*") for cls in classes),
            announce_subject(domain),
            cursor_subject(domain),
            verify_subject(domain),
            f"{hub_api(tenant=tenant)}.CONSUMER.RESET.{COMMANDS}.{consumer}",
            f"$JS.FC.{COMMANDS}.{consumer}.>",
            *(("_R_.>",) if tenant else ("$JSC.R.*", answers_to_hub(domain), f"{leaf_inbox(domain)}.>")),
        ),
        subscribe=(
            *given,
            *((f"{link_deliver(HUB_DOMAIN, domain, '')}>",) if taken else ()),
            *(f"{api}.CONSUMER.RESET.{stream}.*" for stream in streams),
            *(f"{api}.CONSUMER.INFO.{stream}.*" for stream in streams),
            *(f"{api}.STREAM.INFO.{stream}" for stream in streams),
            *(f"$JS.FC.{stream}.>" for stream in streams),
            command_deliver(domain, "*"),
            "$JSC.R.*",
            f"{inbox_prefix(domain)}.>",
        ),
        deny_publish=(_MQTT_BY_ITSELF,),
        deny_subscribe=(_MQTT_BY_ITSELF,),
    )


def _taken(api: str, streams: Iterable[str]) -> tuple[str, ...]:
    """What the side that takes streams asks the side that has them. The server makes and drops the consumer
    of a link by itself; STREAM.MSG.GET tells the newest message that a filter lets through."""
    return tuple(
        subject
        for stream in streams
        for subject in (
            f"{api}.CONSUMER.CREATE.{stream}",
            f"{api}.CONSUMER.CREATE.{stream}.>",
            f"{api}.STREAM.INFO.{stream}",
            f"{api}.STREAM.MSG.GET.{stream}",
            f"$JS.FC.{stream}.>",
        )
    )


def answers_to_hub(domain: str) -> str:
    """Where a leaf's server answers what the hub's server itself asks it."""
    return f"$JSC.R.{domain}.>"


def leaf_inbox(domain: str) -> str:
    """Where a leaf's server answers what the registrar asks its JetStream: a part of the registrar's inbox
    for that leaf alone, for who may publish to all of it may forge the hub's own answers."""
    return f"{inbox_prefix(REGISTRAR)}.leaf.{domain}"


def kept_from_hub(domain: str, heard: Iterable[str] = ()) -> tuple[str, ...]:
    """The subjects that a leaf denies its hub in both directions, whatever that hub lets itself do: readings,
    acknowledgements of local programs and answers to them, what the agent has `heard` from them, questions to
    the server, and every call of JetStream that changes a stream or takes messages away. What a source needs
    stays allowed: to look, to read through a consumer, to restart it."""
    api = api_prefix(domain)
    return (
        "tel.>",
        "$MQTT.>",
        MQTT_READINGS,
        "$JS.ACK.>",
        "$SYS.>",
        "$KV.>",
        "cmd.>",
        f"{inbox_prefix(DEVICE)}.>",
        *heard,
        f"{api}.INFO",
        *(f"{api}.{part}.>" for part in ("META", "SERVER", "ACCOUNT", "DIRECT")),
        *(f"{api}.STREAM.{verb}" for verb in ("NAMES", "LIST")),
        *(f"{api}.STREAM.{verb}.>" for verb in _STREAM_CHANGES),
        *(f"{api}.CONSUMER.{verb}.>" for verb in _CONSUMER_CHANGES),
    )
