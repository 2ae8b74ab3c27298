"""Defines permissions of leaf links, both the hub's user and the leaf's denials. Pure.

Found by removing each entry; a missing one causes silence. Hub permissions do not bind the hub, so leaves
deny.
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
"""nats-server before 2.15.2 allows it to links unless denied; `_R_.>`, and before 2.15.3 `$JS.ACK.>`, even if
denied.
"""


def leaf_link(
    domain: str,
    classes: Iterable[str],
    takes: Iterable[str] = (),
    gives: Iterable[str] = (),
    *,
    tenant: bool = False,
) -> Permissions:
    """Return the user of a leaf's server at the hub, from the leaf's view.

    `takes` are hub streams that it may copy, `gives` own ones. For a `tenant`, replies are below `_R_`. Each
    server answers the other's consumer RESET below `$JSC.R`: the hub's under the leaf's name
    (`js_api_reply_v2`), the leaf's under one token. `allow_responses` does not cover it.
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
    """Return requests for taking streams; STREAM.MSG.GET shows the newest filtered message."""
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
    """Return reply subjects for the hub's server."""
    return f"$JSC.R.{domain}.>"


def leaf_inbox(domain: str) -> str:
    """Return this leaf's part of the registrar's inbox; all of it would allow forged answers."""
    return f"{inbox_prefix(REGISTRAR)}.leaf.{domain}"


def kept_from_hub(domain: str, heard: Iterable[str] = ()) -> tuple[str, ...]:
    """Return subjects denied to the hub both ways: readings, local acks and answers, `heard` subjects, server
    questions, and changing JetStream calls. Sources may look, read and restart consumers.
    """
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
