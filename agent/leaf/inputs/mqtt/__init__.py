"""Defines and checks the options of the input `mqtt`."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, field, structs

from agent.base.files import open_regular
from agent.base.tls import client_context
from agent.config import Seconds
from agent.config.keys import check_password, read_password
from agent.leaf.inputs.formats.message import TopicNames, fill_template, template_problem
from agent.leaf.inputs.mqtt.filters import doubled, group_of, matches, overlap, unused, widest, without_group
from agent.leaf.inputs.shared import (
    HasMapping,
    InputOptions,
    MappedOptions,
    NamedMap,
    NamedPreset,
    missing_extra,
    url_problem,
)

if TYPE_CHECKING:
    from agent.leaf.inputs.mqtt.session import Broker

_MOST: Final = 65_535
_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
_MIN_KEEPALIVE, _MAX_KEEPALIVE = 1.0, 3600.0


class MqttOptions(MappedOptions, tag="mqtt", kw_only=True):
    """The options of one `mqtt` input. deploy/reference.toml says what each means."""

    name: str = "mqtt"
    url: Annotated[
        str, Meta(examples=["mqtt://127.0.0.1:1883"], extra={"also": ("server", "broker", "host", "address")})
    ]
    topics: list[TopicTemplate] = field(default_factory=list)
    user: str | None = None
    password_file: Path | None = None
    client_id: str | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    keepalive: Seconds = Seconds(30.0)
    retained: Literal["once", "tag", "skip"] = "once"

    @property
    def entries(self) -> list[TopicTemplate]:
        """Return `topics` with the mapping of the input where they have none; without `topics` those of the
        mapping.
        """
        given = self.mapping
        if given is None:
            return self.topics
        if self.topics:
            return [
                topic if topic.mapping or topic.format != "json" else structs.replace(topic, map=given)
                for topic in self.topics
            ]
        from agent.mapping.presets import complete

        return [TopicTemplate(filter=filter_, map=given) for filter_ in complete(given).topics or ()]

    @property
    def filters(self) -> list[str]:
        """Return the filters to subscribe, without covered ones."""
        return widest([topic.filter for topic in self.entries])

    def doubles(self, other: InputOptions) -> str | None:
        if not isinstance(other, MqttOptions) or _address(self) != _address(other):
            return None
        if self.client_id is not None and self.client_id == other.client_id:
            return "they have one client_id, so the broker disconnects each for the other; give each its own"
        for own in self.filters:
            for theirs in other.filters:
                # A group shares out the messages of one filter.
                if overlap(own, theirs) and not (own == theirs and group_of(own)):
                    return f"both receive what matches {own!r:.80} and {theirs!r:.80}; move it to one of them"
        return None


class TopicTemplate(HasMapping, Struct, forbid_unknown_fields=True, kw_only=True):
    """Topics to subscribe, with templates of device and metric.

    `{1}` is the first level, `{2+}` the second and later joined by dots, `{0}` the topic. Default device is
    the domain; an empty `metric` comes from the message. Format `sparkplug` names both itself.
    """

    filter: str
    device: str = ""
    metric: str = "{0}"
    format: Literal["json", "sparkplug"] = "json"
    map: NamedMap = None
    preset: NamedPreset = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return texts that differ where the readings of a message have other names."""
        if self.mapping is None:
            return self.device, self.metric
        return (msgspec.json.encode(self.mapping).decode(),)

    @property
    def most_readings(self) -> int:
        """Return the most readings of one value in a message."""
        if self.mapping is None:
            return 1
        from agent.mapping.presets import complete  # not held in memory without mappings

        return max(1, len(complete(self.mapping).record))

    def problems(self) -> Iterator[str]:
        levels = without_group(self.filter).split("/")
        wrong = (
            any(("#" in level or "+" in level) and len(level) > 1 for level in levels) or "#" in levels[:-1]
        )
        if wrong or not 1 <= len(self.filter.encode()) <= _MOST or not self.filter.isprintable():
            yield f"filter {self.filter!r:.80} is not a topic filter of MQTT, such as plant/+/#"
        for name, template in (("device", self.device), ("metric", self.metric)):
            if (problem := template_problem(template)) is not None:
                yield f"{name} {problem}"
        yield from self.map_problems(has_topic=True)
        if self.mapping is not None and (self.device or self.metric != "{0}" or self.format != "json"):
            yield f"filter {self.filter!r:.80} has a mapping beside device, metric or format; write it there"
        if self.format == "sparkplug":
            if not self.filter.startswith("spBv1.0/"):
                yield f"filter {self.filter!r:.80} is not of Sparkplug B; write it as spBv1.0/#"
            if self.device or self.metric != "{0}":
                yield "device and metric are said by Sparkplug B; leave them out of its topics"

    def matches(self, topic: str) -> bool:
        return matches(self.filter, topic)

    def place(self, topic: str) -> TopicNames:
        device = fill_template(self.device, topic, "/") or None
        return TopicNames(device, fill_template(self.metric, topic, "/") or None)


def template_of(topics: list[TopicTemplate], topic: str) -> TopicTemplate | None:
    """Return the first entry that covers a topic, or None."""
    return next((template for template in topics if template.matches(topic)), None)


def problems(options: MqttOptions) -> Iterator[str]:
    yield from _values(options)
    yield from missing_extra("mqtt", "paho")
    if options.map is not None and options.preset is not None:
        yield from options.map_problems(has_topic=True)
    if any(topic.format == "sparkplug" for topic in options.topics):
        yield from missing_extra("sparkplug", "google", "google.protobuf")


def _values(options: MqttOptions) -> Iterator[str]:
    if (problem := url_problem(options.url, _PORTS, "mqtt://<host>:1883")) is not None:
        yield problem
    if not options.entries:
        yield 'topics is empty; write topics = [{ filter = "plant/+/#" }]'
    for topic in options.entries:
        yield from topic.problems()
    filters = [topic.filter for topic in options.entries]
    for first, second in unused(filters):
        yield f"filter {second!r:.80} has no effect behind {first!r:.80}; write it before, or leave it out"
    for first, second in doubled(filters):
        yield (
            f"filters {first!r:.80} and {second!r:.80} overlap, so a broker may send their messages twice; "
            "add a filter that covers both behind them, or make them distinct"
        )
    if not _MIN_KEEPALIVE <= options.keepalive <= _MAX_KEEPALIVE:
        yield f"keepalive is {options.keepalive} s; take 1s to 1h"
    if options.password_file is not None and options.user is None:
        yield "password_file stands without user; give both"
    if (options.tls_cert is None) != (options.tls_key is None):
        yield "tls_cert and tls_key go together; give both, or none"


def _address(options: MqttOptions) -> tuple[str, int]:
    try:
        parts = urlsplit(options.url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return options.url, 0  # another problem
    return "127.0.0.1" if host in ("localhost", "::1") else host, port


def file_problems(options: MqttOptions) -> Iterator[str]:
    """Yield faults of the named files."""
    if options.password_file is not None and (wrong := check_password(options.password_file)) is not None:
        yield wrong
    if options.url.startswith("mqtts:") and (options.tls_cert is None) == (options.tls_key is None):
        try:
            _tls(options)
        except (OSError, ValueError) as error:
            yield f"the files of TLS cannot be used: {error}; put them there in PEM"


def broker(options: MqttOptions, domain: str) -> Broker:
    """Return the broker's address and login. Raises `SeedError`, or `OSError` for a TLS file."""
    from agent.leaf.inputs.mqtt.session import Broker  # with paho, where it is needed

    parts = urlsplit(options.url)
    secret = options.password_file
    return Broker(
        parts.hostname or "",
        parts.port or _PORTS[parts.scheme],
        options.client_id or f"petiole-{domain}-{options.name}",
        options.user,
        None if secret is None else read_password(secret),
        _tls(options) if parts.scheme == "mqtts" else None,
        round(options.keepalive),
    )


def _tls(options: MqttOptions) -> ssl.SSLContext:
    for path in (options.tls_ca, options.tls_cert, options.tls_key):
        if path is not None:
            open_regular(path).close()
    context = client_context(options.tls_ca)
    if options.tls_cert is not None:
        # A key behind a password would ask for it on the terminal.
        context.load_cert_chain(options.tls_cert, options.tls_key, password=lambda: b"")
    return context
