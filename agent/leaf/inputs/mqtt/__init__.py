"""The options of the input `mqtt`, and what can be wrong with them."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from agent.base.files import open_regular
from agent.config import Seconds
from agent.config.keys import check_password, read_password
from agent.leaf.inputs.formats.message import TopicNames, fill_template, template_problem
from agent.leaf.inputs.shared import InputOptions, missing_extra, url_problem

if TYPE_CHECKING:
    from agent.leaf.inputs.mqtt.session import Broker

_MOST: Final = 65_535
_SHARED: Final = re.compile(r"\$share/[^/+#]+/")
_PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
_MIN_KEEPALIVE, _MAX_KEEPALIVE = 1.0, 3600.0


class MqttOptions(InputOptions, tag="mqtt", kw_only=True):
    """The options of one `mqtt` input. deploy/reference.toml says what each means."""

    name: str = "mqtt"
    url: Annotated[
        str, Meta(examples=["mqtt://127.0.0.1:1883"], extra={"also": ("server", "broker", "host", "address")})
    ]
    topics: list[TopicTemplate]
    user: str | None = None
    password_file: Path | None = None
    client_id: str | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    keepalive: Seconds = Seconds(30.0)


class TopicTemplate(Struct, forbid_unknown_fields=True, kw_only=True):
    """Topics to subscribe to, and what they say of their messages: in `device` and `metric` `{1}` is the
    first level, `{2}` the second, `{2+}` the second and all after it with dots between, `{0}` the whole
    topic. Without `device` it is the domain; an empty `metric` leaves it to the message. Messages of the
    format `sparkplug` say both themselves."""

    filter: str
    device: str = ""
    metric: str = "{0}"
    format: Literal["json", "sparkplug"] = "json"

    def problems(self) -> Iterator[str]:
        levels = _own(self.filter).split("/")
        wrong = (
            any(("#" in level or "+" in level) and len(level) > 1 for level in levels) or "#" in levels[:-1]
        )
        if wrong or not 1 <= len(self.filter.encode()) <= _MOST or not self.filter.isprintable():
            yield f"filter {self.filter!r:.80} is not a topic filter of MQTT, such as plant/+/#"
        for name, template in (("device", self.device), ("metric", self.metric)):
            if (problem := template_problem(template)) is not None:
                yield f"{name} {problem}"
        if self.format == "sparkplug":
            if not self.filter.startswith("spBv1.0/"):
                yield f"filter {self.filter!r:.80} is not of Sparkplug B; write it as spBv1.0/#"
            if self.device or self.metric != "{0}":
                yield "device and metric are said by Sparkplug B; leave them out of its topics"

    def matches(self, topic: str) -> bool:
        levels, filter_levels = topic.split("/"), _own(self.filter).split("/")
        if filter_levels[-1] == "#":
            filter_levels.pop()
            if len(levels) < len(filter_levels):
                return False
        elif len(levels) != len(filter_levels):
            return False
        return all(expected in ("+", level) for level, expected in zip(levels, filter_levels, strict=False))

    def place(self, topic: str) -> TopicNames:
        """What the topic says."""
        device = fill_template(self.device, topic, "/") or None
        return TopicNames(device, fill_template(self.metric, topic, "/") or None)


def template_of(topics: list[TopicTemplate], topic: str) -> TopicTemplate | None:
    """The first entry that covers a topic; None where none does."""
    return next((template for template in topics if template.matches(topic)), None)


def _own(filter_: str) -> str:
    """The filter of a shared subscription without its group."""
    return _SHARED.sub("", filter_, count=1)


def problems(options: MqttOptions) -> Iterator[str]:
    yield from _values(options)
    yield from missing_extra("mqtt", "paho")
    if any(topic.format == "sparkplug" for topic in options.topics):
        yield from missing_extra("sparkplug", "google", "google.protobuf")


def _values(options: MqttOptions) -> Iterator[str]:
    if (problem := url_problem(options.url, _PORTS, "mqtt://<host>:1883")) is not None:
        yield problem
    if not options.topics:
        yield 'topics is empty; write topics = [{ filter = "plant/+/#" }]'
    for topic in options.topics:
        yield from topic.problems()
    if not _MIN_KEEPALIVE <= options.keepalive <= _MAX_KEEPALIVE:
        yield f"keepalive is {options.keepalive} s; take 1s to 1h"
    if options.password_file is not None and options.user is None:
        yield "password_file stands without user; give both"
    if (options.tls_cert is None) != (options.tls_key is None):
        yield "tls_cert and tls_key go together; give both, or none"


def file_problems(options: MqttOptions) -> Iterator[str]:
    """What of the files that are named can't be used now."""
    if options.password_file is not None and (wrong := check_password(options.password_file)) is not None:
        yield wrong
    if options.url.startswith("mqtts:") and (options.tls_cert is None) == (options.tls_key is None):
        try:
            _tls(options)
        except (OSError, ValueError) as error:
            yield f"the files of TLS cannot be used: {error}; put them there in PEM"


def broker(options: MqttOptions, domain: str) -> Broker:
    """Where and as whom to connect. Raises `SeedError`, or `OSError` for a file of TLS."""
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
    context = ssl.create_default_context(cafile=options.tls_ca)
    if options.tls_cert is not None:
        # A key behind a password would ask for it on the terminal.
        context.load_cert_chain(options.tls_cert, options.tls_key, password=lambda: b"")
    return context
