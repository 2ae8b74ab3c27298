"""Defines each identity's least permissions on a server. Pure.

Permissions can't match parts of tokens, and apply to subjects on the wire (`$JS.<domain>.API.…`, deliver
subjects).
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
"""Subject to end a connection at this server."""

AGENT_TRACES = f"$JS.ACK.{COMMANDS}.petiole-check"
REGISTRAR_TRACES = f"$JS.FC.KV_{FLEET_BUCKET}.petiole-check"
"""Reply subjects for traces of `petiole check`, unused otherwise."""

_API = "$JS.API"
MQTT_READINGS = "readings.>"
_FLEET_STREAM = f"KV_{FLEET_BUCKET}"
_STREAM_VERBS = ("CREATE", "UPDATE", "INFO", "PURGE", "MSG.GET")
_CONSUMER_VERBS = ("INFO", "DELETE", "PAUSE", "MSG.NEXT")
_PLACING_VERBS = (*_CONSUMER_VERBS, "RESET")
"""Requests that restore a consumer's place."""


class Permissions(Struct, frozen=True):
    """A user's permissions; `replies` allows one answer per request within a minute."""

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
    """Return the hub agent's: owns hub streams, answers leaves, reads their JetStream state.

    `leaves` are domain and classes. `users` adds their consumers; `several` servers add leader moves.
    """
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
    """Return the jobs': read aggregates, report commits and audits, read leaf and lake records.

    Clients' `$JS.hub.API` is mapped before the check, so both forms work.
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
    """Return a leaf agent's on its own server.

    It may recreate the command mirror with its consumers, but delete no telemetry stream. `mqtt` adds streams
    and QoS 0, `hears` local subjects, `removed` classes' streams for positions and requests.
    """
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
    """Return MQTT users': publish readings only. Wrong topics stay unanswered; only the agent's own subjects
    are refused, as nats-server acknowledges refused messages.
    """
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
    """Return a local program's: own readings and `heard` subjects.

    For each of `apps`, one pull consumer of that name: its request names consumer and filter, which the
    server checks. Names are listed, since wildcards would match others' consumers and filters.
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
    """Return a system user's: connection events and `questions`; `cuts` adds ending connections."""
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
    """Return requests for reading by an own consumer."""
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
    """Needs of a declared stream: name, origins' prefixes and names, and whether it may be deleted, as a
    mirror.
    """

    stream: str
    origins: tuple[tuple[str, str], ...]
    deletes: bool = False


def declared_link(links: Iterable[LinkRights]) -> tuple[str, ...]:
    """Return what declared links publish."""
    return tuple(
        subject
        for link in links
        for subject in (
            *(f"{_API}.STREAM.{verb}.{link.stream}" for verb in ("CREATE", "UPDATE", "INFO", "MSG.GET")),
            *((f"{_API}.STREAM.DELETE.{link.stream}",) if link.deletes else ()),
            *(f"{api}.STREAM.{verb}.{of}" for api, of in link.origins for verb in ("INFO", "MSG.GET")),
        )
    )
