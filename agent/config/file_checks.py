"""Files that [nats] names. A key, a password or a certificate that is not there yet may come with the next
mount: the configuration is right, and the agent waits for what it names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.base.credentials import named, others_may
from agent.base.files import open_regular
from agent.config.passwords import check_password
from agent.config.problem import Problem
from agent.config.schema import Config, Mqtt

_SEEDS: Final = ("seed_file", "system_seed_file", "link_seed_file", "jobs_seed_file", "device_seed_file")


def check_files(config: Config) -> Iterator[Problem]:
    """What is wrong with these files now."""
    for name in _SEEDS:
        file: Path | None = getattr(config.nats, name)
        if file is not None:
            yield from _seed(f"nats.{name}", file)
    yield from _mqtt(config.nats.mqtt)


def _seed(key: str, file: Path) -> Iterator[Problem]:
    try:
        with open_regular(file) as opened:
            mode = os.fstat(opened.fileno()).st_mode
    except OSError as error:
        yield Problem(key, f"{named(file)} cannot be read ({error.strerror})", "put the seed there")
        return
    if others_may(file, mode):
        shown = f"{mode & 0o777:04o}"
        yield Problem(key, f"{file} may be read by others (mode {shown})", f"run chmod 600 {file}")


def _mqtt(mqtt: Mqtt) -> Iterator[Problem]:
    for name, given in (("tls_cert", mqtt.tls_cert), ("tls_key", mqtt.tls_key)):
        if given is None:
            continue
        try:
            open_regular(given).close()
        except OSError as error:
            yield Problem(
                f"nats.mqtt.{name}", f"{named(given)} cannot be read ({error.strerror})", "name a file in PEM"
            )
    for number, user in enumerate(mqtt.users, 1):
        if (wrong := check_password(user.password_file)) is not None:
            key = f"nats.mqtt.users[{number}].password_file"
            yield Problem(key, wrong, "put the password there, readable by its owner only")
