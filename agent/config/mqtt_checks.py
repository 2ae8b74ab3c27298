"""What no single key of [nats.mqtt] shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from agent.config.problem import Problem
from agent.config.schema import Config

_USER: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}\Z")


def check_mqtt(config: Config) -> Iterator[Problem]:
    """All problems of the listener for MQTT devices. Looks at no file that it names."""
    mqtt = config.nats.mqtt
    if mqtt.on and config.role == "hub":
        yield Problem("nats.mqtt", "readings are taken in on leaves", "move it to a leaf")
    elif mqtt.on and config.nats.server == "external":
        yield Problem(
            "nats.mqtt",
            'is for an embedded server only, and nats.server is "external"',
            'remove it, or let the agent run the server: server = "embedded"',
        )
    for name, given, other in (("tls_cert", mqtt.tls_cert, "tls_key"), ("tls_key", mqtt.tls_key, "tls_cert")):
        if given is not None and getattr(mqtt, other) is None:
            yield Problem(f"nats.mqtt.{name}", f"stands without {other}", "give both, or none")
    seen: set[str] = set()
    for number, user in enumerate(mqtt.users, 1):
        if user is None:
            continue  # could not be read, which was told
        key = f"nats.mqtt.users[{number}]"
        if _USER.match(user.name) is None:
            yield Problem(
                f"{key}.name",
                f'"{user.name:.60}" is not 1 to 64 letters, digits, ".", "_", "@" or "-"',
                "choose another name",
            )
        if user.name in seen:
            yield Problem(f"{key}.name", f'"{user.name}" is there twice', "let each have a name of its own")
        seen.add(user.name)
