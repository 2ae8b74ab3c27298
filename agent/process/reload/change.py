"""What of a configuration is another than before. A file that it names counts as a part of it, so that a new
token or certificate at the same path is a change."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import fields

from agent.config import Config, Seconds, Size

_MOST: Final = 1024 * 1024
"""Bytes up to which a file that is named is compared by its content; a larger one is no secret of ours."""
_LIVE: Final = frozenset({"rule", "log"})
"""What a running agent applies in addition to its inputs; for anything else it restarts."""

Parts = Mapping[str, bytes]
"""A digest for each part: the tables at the top, and `input.<name>` for each input."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """What has to happen: inputs that `end`, and those that `begin`, a changed one both; whether rules and
    logging are others; and the parts for which the agent has to start again, which does all of it."""

    end: tuple[str, ...] = ()
    begin: tuple[str, ...] = ()
    rules: bool = False
    log: bool = False
    restart: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != ConfigChange()

    def __str__(self) -> str:
        """What happens, in words."""
        if self.restart:
            return f"the agent restarts, for {_listed(self.restart)} changed"
        if not self:
            return "nothing in it has changed"
        both = set(self.end) & set(self.begin)
        said = [
            f"{verb} {_listed(names)}"
            for verb, names in (
                ("input restarted:", sorted(both)),
                ("input ended:", sorted(set(self.end) - both)),
                ("input begun:", sorted(set(self.begin) - both)),
            )
            if names
        ]
        said += ["rules taken in"] if self.rules else []
        said += ["logging taken in"] if self.log else []
        return "; ".join(said)


def parts(config: Config) -> Parts:
    """The parts of a configuration. Reads the files that it names."""
    found = {
        one.encode_name: _digest(getattr(config, one.name)) for one in fields(config) if one.name != "input"
    }
    if config.nats.extra or config.nats.remote:
        from agent.config.server_overlay import named_files  # not held in memory where nothing is added

        added = [*named_files(config.nats.extra), *named_files(config.nats.remote)]
        found["nats"] = _digest([config.nats, added])
    return found | {f"input.{one.name}": _digest(one) for one in config.input}


def change(before: Parts, after: Parts, reserved: frozenset[str] = frozenset()) -> ConfigChange:
    """What is to be done to come from one to the other. For inputs with `reserved` names the agent starts
    again, as for the tables that it can't take in while it runs."""
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    inputs = {name for name in changed if name.startswith("input.")}
    restart = sorted(
        {name for name in changed - inputs if name not in _LIVE}
        | {name for name in inputs if name.removeprefix("input.") in reserved}
    )
    return ConfigChange(
        tuple(sorted(name.removeprefix("input.") for name in inputs & before.keys())),
        tuple(sorted(name.removeprefix("input.") for name in inputs & after.keys())),
        "rule" in changed,
        "log" in changed,
        tuple(restart),
    )


def _digest(part: Any) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(part, enc_hook=_plain, order="deterministic")).digest()


def _plain(value: object) -> object:
    """The representation of a value of a type of ours; for a path what is in the file too."""
    if isinstance(value, Seconds):
        return float(value)
    if isinstance(value, Size):
        return int(value)
    if not isinstance(value, Path):
        raise NotImplementedError(f"{type(value).__name__} in a configuration")
    try:
        if value.is_file() and value.stat().st_size <= _MOST:
            return [str(value), hashlib.blake2b(value.read_bytes()).hexdigest()]
    except OSError:
        pass  # who uses the file says what is wrong with it
    return str(value)


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names)
