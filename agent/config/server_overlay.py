"""Checks added nats-server settings, which are copied verbatim. Pure.

Rendered keys and access settings are refused. Secrets come from variables or included files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, Final

from agent.base.nats_server import INCLUDE, VARIABLE

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*\Z")
_SECRETS: Final = frozenset({"password", "pass", "passphrase", "token", "key", "prev_key", "nkey", "seed"})
_DOORS: Final = frozenset(
    {
        *("authorization", "users", "no_auth_user", "operator", "operators", "resolver", "resolver_preload"),
        *("trusted", "trusted_keys", "system", "mappings", "maps", "default_sentinel", "allow_non_tls"),
    }
)
"""Settings of access or subjects, on which permissions rest."""
_ALIASES: Final[Mapping[str, str]] = {
    "leaf": "leafnodes",
    "leafnode": "leafnodes",
    **{f"{table}.{key}": f"{table}.listen" for table in ("leafnodes", "cluster") for key in ("port", "host")},
    **{f"jetstream.{key}": "jetstream.store_dir" for key in ("store", "storedir")},
    "jetstream.max_file": "jetstream.max_file_store",
    "jetstream.max_mem": "jetstream.max_memory_store",
    "jetstream.sync": "jetstream.sync_interval",
}

_COMMON_TAKEN: Final = dict.fromkeys(
    (
        *("server_name", "listen", "pid_file", "log_file", "logfile_size_limit", "logfile_max_num"),
        *("max_payload", "ping_interval", "ping_max", "accounts", "system_account", "mqtt"),
        # The agents' own connections speak no TLS; they stay on the loopback.
        *("tls", "port", "host", "net", "addr", INCLUDE),
    ),
    True,
) | {
    "jetstream": dict.fromkeys(
        ("domain", "store_dir", "max_file_store", "max_memory_store", "sync_interval"), True
    )
}
HUB_TAKEN: Final[Mapping[str, Any]] = _COMMON_TAKEN | {
    "leafnodes": dict.fromkeys(
        ("listen", "no_advertise", "isolate_leafnode_interest", "authorization"), True
    ),
    "cluster": dict.fromkeys(("name", "listen", "no_advertise", "routes", INCLUDE), True),
    "feature_flags": {"js_api_reply_v2": True},
}
LEAF_TAKEN: Final[Mapping[str, Any]] = _COMMON_TAKEN | {"leafnodes": {"remotes": True}, "cluster": True}
REMOTE_TAKEN: Final[Mapping[str, Any]] = dict.fromkeys(
    (
        *("url", "urls", "account", "dial_timeout", "first_info_timeout", "disabled", INCLUDE),
        *("nkey", "credentials", "creds", "deny_import", "deny_imports", "deny_export", "deny_exports"),
    ),
    True,
)
TAKEN: Final = {"hub": HUB_TAKEN, "leaf": LEAF_TAKEN, "remote": REMOTE_TAKEN}
"""Rendered keys of hub, leaf and remote."""


def extra_problems(extra: Mapping[str, Any], taken: Any, at: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield problems of tables added at a rendered one that has `taken`: key, value, remedy."""
    for key, value in extra.items():
        place = f"{at}{key}"
        there = taken.get(key) if isinstance(taken, Mapping) else None
        if not _NAME.match(key):
            yield place, "is no key of nats-server", "write it in small letters, as its documentation does"
        elif key in _DOORS:
            yield place, "decides who is let in, which is rendered here", "remove it"
        elif place in _ALIASES:
            yield place, f"is another name of {_ALIASES[place]}, which is rendered here", "remove it"
        elif there is not None and not (isinstance(there, Mapping) and isinstance(value, Mapping)):
            yield place, "is kept as it is rendered here", "remove it"
        elif isinstance(value, Mapping):
            yield from extra_problems(value, there or {}, f"{place}.")
        else:
            yield from _value_problems(place, key, value)


def _value_problems(place: str, key: str, value: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(value, date | datetime | time):
        yield place, "is a time, which nats-server does not take", "write it as text"
    elif isinstance(value, str) and not value.isprintable():
        yield place, "holds a character that cannot stand there", "remove it"
    elif key in _SECRETS and not (isinstance(value, str) and VARIABLE.match(value)):
        yield (
            place,
            "would be a secret in this file",
            'name a variable of the server\'s environment, such as "$STORE_KEY", or include a file',
        )
    elif key == INCLUDE and (not isinstance(value, str) or "/" in value or value.startswith(".")):
        yield place, "is not the name of a file beside the server's configuration", 'write "store-key.conf"'
    elif isinstance(value, list):
        for number, item in enumerate(value, 1):
            if isinstance(item, Mapping):
                yield from extra_problems(item, {}, f"{place}[{number}].")
            else:
                yield from _value_problems(f"{place}[{number}]", key, item)


def named_files(added: Any) -> Iterator[Path]:
    """Yield files under keys ending in `_file`."""
    if isinstance(added, Mapping):
        for key, value in added.items():
            if str(key).endswith("_file") and isinstance(value, str):
                yield Path(value)
            else:
                yield from named_files(value)
    elif isinstance(added, list):
        for item in added:
            yield from named_files(item)


def placed_files(added: Any, directory: Path) -> Any:
    """Make their relative paths absolute; keeps variables."""
    if isinstance(added, Mapping):
        return {
            key: str(directory / value)
            if str(key).endswith("_file") and isinstance(value, str) and not VARIABLE.match(value)
            else placed_files(value, directory)
            for key, value in added.items()
        }
    return [placed_files(item, directory) for item in added] if isinstance(added, list) else added
