"""Who may publish and subscribe to what on a server: one function an identity, the least that works.

Pure. Links between servers are in `agent.server.link_permissions`. A permission can't match part of a token,
and it is checked against the subject on the wire (the deliver subject, `$JS.<domain>.API.…` before it is
mapped), not against the subject of the message within.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct

from agent.contract import (
    ACCOUNT,
    AGGREGATES,
    COMMANDS,
    FLEET_BUCKET,
    HUB_LAKE,
    MQTT_MESSAGES,
    MQTT_RETAINED,
    REGISTRAR,
    announce_subject,
    api_prefix,
    audited_subject,
    cell_api,
    command_subject,
    committed_subject,
    cursor_subject,
    inbox_prefix,
    lake_subject,
    leaf_stream,
    mqtt_subject,
    verify_subject,
)

JOBS = "jobs"
DEVICE = "device"

KICK = "$SYS.REQ.SERVER.{}.KICK"
"""The subject on which the server of this id ends one of its connections, of clients or of leaves."""

AGENT_TRACES = f"$JS.ACK.{COMMANDS}.petiole-check"
REGISTRAR_TRACES = f"$JS.FC.KV_{FLEET_BUCKET}.petiole-check"
"""Where `petiole check` has servers tell what they would do with a message: subjects that no stream stores
and no program subscribes to."""

_API = "$JS.API"
MQTT_READINGS = "readings.>"
_FLEET_STREAM = f"KV_{FLEET_BUCKET}"
_STREAM_VERBS = ("CREATE", "UPDATE", "INFO", "PURGE", "MSG.GET")
_CONSUMER_VERBS = ("INFO", "DELETE", "PAUSE", "MSG.NEXT")
_PLACING_VERBS = (*_CONSUMER_VERBS, "RESET")
"""What gives a recreated consumer the place that it had."""


class Permissions(Struct, frozen=True):
    """What one user may do; `replies` lets it answer each request that reaches it, once, within a minute."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    deny_publish: tuple[str, ...] = ()
    deny_subscribe: tuple[str, ...] = ()
    replies: bool = False


def registrar(
    aggregates: Iterable[str],
    leaves: Iterable[tuple[str, Iterable[str]]],
    links: Iterable[LinkRights] = (),
    *,
    users: bool = False,
    several: bool = False,
    home: bool = True,
) -> Permissions:
    """The hub's agent in one cell: owns the streams there, answers leaves, asks their JetStream for state
    only. `leaves` are pairs of domain and classes. With `users` it keeps their consumers of the aggregates;
    where the hub has `several` servers it may have another one lead a stream. In the first cell, its `home`,
    it also keeps the fleet and answers the jobs."""
    aggregates, fleet = tuple(aggregates), (_FLEET_STREAM,) if home else ()
    asked = tuple(
        f"{api_prefix(domain)}.{question}"
        for domain, classes in leaves
        for cls in classes
        for question in (
            f"STREAM.INFO.{leaf_stream(domain, cls)}",
            f"CONSUMER.INFO.{leaf_stream(domain, cls)}.*",
        )
    )
    return Permissions(
        publish=(
            f"{_API}.INFO",
            *(subject for stream in aggregates for subject in (*_stream_api(stream), *_reader_api(stream))),
            *(f"{_API}.CONSUMER.NAMES.{stream}" for stream in (aggregates if users else ())),
            *(f"{_API}.CONSUMER.LIST.{stream}" for stream in aggregates),
            *_stream_api(COMMANDS),
            *_consumer_api(COMMANDS),
            *(
                f"{_API}.STREAM.LEADER.STEPDOWN.{stream}"
                for stream in ((*aggregates, COMMANDS, *fleet) if several else ())
            ),
            *(
                subject
                for stream in fleet
                for subject in (
                    *_stream_api(stream),
                    f"{_API}.DIRECT.GET.{stream}",
                    REGISTRAR_TRACES,
                    f"$KV.{FLEET_BUCKET}.>",
                    lake_subject(),
                )
            ),
            "cmd.>",
            *asked,
            *declared_link(links),
        ),
        subscribe=(
            f"{inbox_prefix(REGISTRAR)}.>",
            announce_subject("*"),
            cursor_subject("*"),
            verify_subject("*"),
            *((committed_subject("*"), audited_subject(), lake_subject()) if home else ()),
        ),
        replies=True,
    )


def jobs(aggregates: Iterable[str]) -> Permissions:
    """The jobs: read the aggregates through consumers of their own, say what they have committed and what an
    audit found, and look up the newest record of a leaf in the fleet, of the hub's lake, and of the names of
    the aggregates.

    For a client of the hub `$JS.hub.API` is mapped to `$JS.API` before the check, so that both work.
    """
    return Permissions(
        publish=(
            *(
                subject
                for stream in aggregates
                for subject in (
                    f"{cell_api(stream)}.STREAM.INFO.{stream}",
                    f"{cell_api(stream)}.STREAM.MSG.GET.{stream}",
                    f"{cell_api(stream)}.DIRECT.GET.{stream}",
                    f"{cell_api(stream)}.DIRECT.GET.{stream}.>",
                    *_reader_api(stream, cell_api(stream)),
                    committed_subject(stream),
                )
            ),
            f"{_API}.DIRECT.GET.{_FLEET_STREAM}.$KV.{FLEET_BUCKET}.*",
            *(
                f"{_API}.DIRECT.GET.{_FLEET_STREAM}.$KV.{FLEET_BUCKET}.{key}"
                for key in (HUB_LAKE, AGGREGATES)
            ),
            audited_subject(),
        ),
        subscribe=(f"{inbox_prefix(JOBS)}.>",),
    )


def agent(
    domain: str,
    classes: Iterable[str],
    links: Iterable[LinkRights] = (),
    mqtt: bool = False,
    hears: Collection[str] = (),
    removed: Iterable[str] = (),
) -> Permissions:
    """A leaf's agent on its own server. It may delete its mirror of the commands, for a mirror can't be given
    another consumer, and recreates the consumers of local programs with it; it may not delete a stream of
    telemetry. With `mqtt` it makes two of the streams that nats-server would make for MQTT, and subscribes to
    what devices send, to store what came with QoS 0. `hears` are subjects of local programs, whose requests
    it answers. It reads the streams of `removed` classes, which say where pull inputs are and which
    requests were stored."""
    streams = [leaf_stream(domain, cls) for cls in classes]
    return Permissions(
        publish=(
            f"tel.{domain}.>",
            f"{_API}.INFO",
            *(subject for stream in streams for subject in (*_stream_api(stream), *_consumer_api(stream))),
            *(
                subject
                for stream in (leaf_stream(domain, cls) for cls in removed)
                for subject in (
                    f"{_API}.STREAM.INFO.{stream}",
                    f"{_API}.STREAM.MSG.GET.{stream}",
                    *_reader_api(stream),
                )
            ),
            *(
                f"{_API}.STREAM.{verb}.{COMMANDS}"
                for verb in ("CREATE", "UPDATE", "INFO", "MSG.GET", "MSG.DELETE", "DELETE")
            ),
            f"{_API}.CONSUMER.LIST.{COMMANDS}",
            f"{_API}.CONSUMER.CREATE.{COMMANDS}.>",
            *(f"{_API}.CONSUMER.{verb}.{COMMANDS}.*" for verb in _PLACING_VERBS),
            AGENT_TRACES,
            *declared_link(links),
            announce_subject(domain),
            cursor_subject(domain),
            verify_subject(domain),
            *(
                f"{_API}.STREAM.{verb}.{stream}"
                for stream in ((MQTT_MESSAGES, MQTT_RETAINED) if mqtt else ())
                for verb in ("CREATE", "UPDATE", "INFO")
            ),
        ),
        subscribe=(f"{inbox_prefix(domain)}.>", *((MQTT_READINGS,) if mqtt else ()), *hears),
        replies=bool(hears),
    )


def mqtt() -> Permissions:
    """A user of MQTT devices: readings of any device, and nothing to read. Below `readings` all is allowed,
    for nats-server answers what it refuses as if it were stored, but not what no stream takes: a topic of a
    class that is not there, or of another depth, is not answered. Only subjects that would become the agent's
    own are refused."""
    return Permissions(
        publish=(MQTT_READINGS,),
        deny_publish=tuple(
            mqtt_subject("*").replace("*.*.*", f"*.{token}.>") for token in ("_batch", "_dead")
        ),
        subscribe=(),
        deny_subscribe=(">",),  # an empty list of what is allowed allows all
    )


def device(
    domain: str, classes: Iterable[str], apps: Iterable[str] = (), heard: Iterable[str] = ()
) -> Permissions:
    """A local program that publishes readings of its own, or on subjects that the agent has `heard`; the
    agent's own subjects are closed to it.

    For each of `apps` it may have one pull consumer of the commands, named like the app: the subject of that
    request names consumer and filter, which the server compares with the request. The names are listed one by
    one because an asterisk would match another's consumer, and a filter that holds an asterisk itself.
    """
    return Permissions(
        publish=(
            *(f"tel.{domain}.{cls}.*.*" for cls in classes),
            *heard,
            *(
                subject
                for app in apps
                for subject in (
                    f"{_API}.CONSUMER.CREATE.{COMMANDS}.{app}.{command_subject(domain, app, '>')}",
                    f"{_API}.CONSUMER.INFO.{COMMANDS}.{app}",
                    f"{_API}.CONSUMER.MSG.NEXT.{COMMANDS}.{app}",
                    f"$JS.ACK.{COMMANDS}.{app}.>",
                )
            ),
        ),
        deny_publish=(
            f"tel.{domain}.*._batch.>",
            f"tel.{domain}.*._ledger",
            f"tel.{domain}.*._clock",
            f"tel.{domain}.*._dead.>",
        ),
        subscribe=(f"{inbox_prefix(DEVICE)}.>",),
    )


def system(
    identity: str, questions: Iterable[str], accounts: Iterable[str] = (), *, cuts: bool = False
) -> Permissions:
    """A user of the system account that hears who connects to our account and to these, and asks its server
    these questions; if it `cuts` links, it may end any connection to the server."""
    return Permissions(
        publish=(
            *(f"$SYS.REQ.SERVER.PING.{question}" for question in questions),
            *((KICK.format("*"),) if cuts else ()),
        ),
        subscribe=(
            *(f"$SYS.ACCOUNT.{account}.>" for account in (ACCOUNT, *accounts)),
            f"{inbox_prefix(identity)}.>",
        ),
    )


def _stream_api(stream: str) -> tuple[str, ...]:
    return tuple(f"{_API}.STREAM.{verb}.{stream}" for verb in _STREAM_VERBS)


def _reader_api(stream: str, api: str = _API) -> tuple[str, ...]:
    """Reading through a consumer of one's own."""
    return (
        f"{api}.CONSUMER.CREATE.{stream}.>",
        f"{api}.CONSUMER.DELETE.{stream}.*",
        f"{api}.CONSUMER.MSG.NEXT.{stream}.*",
    )


def _consumer_api(stream: str) -> tuple[str, ...]:
    return (
        f"{_API}.CONSUMER.CREATE.{stream}.>",
        f"{_API}.CONSUMER.NAMES.{stream}",
        f"{_API}.CONSUMER.LIST.{stream}",
        *(f"{_API}.CONSUMER.{verb}.{stream}.*" for verb in _CONSUMER_VERBS),
    )


class LinkRights(Struct, frozen=True):
    """What the agent needs for one declared stream of its own server: the stream's name, the API prefix and
    name of each origin, to ask for, and whether it may delete it, as a mirror that can't go on must be."""

    stream: str
    origins: tuple[tuple[str, str], ...]
    deletes: bool = False


def declared_link(links: Iterable[LinkRights]) -> tuple[str, ...]:
    """What an agent publishes to keep declared links: about its own streams, and questions to the origins."""
    return tuple(
        subject
        for link in links
        for subject in (
            *(f"{_API}.STREAM.{verb}.{link.stream}" for verb in ("CREATE", "UPDATE", "INFO", "MSG.GET")),
            *((f"{_API}.STREAM.DELETE.{link.stream}",) if link.deletes else ()),
            *(f"{api}.STREAM.{verb}.{of}" for api, of in link.origins for verb in ("INFO", "MSG.GET")),
        )
    )
