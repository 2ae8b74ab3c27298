"""The certificates and keys that an added table of nats-server names. What stands in them is a part of the
configuration: a new one at the same path is a change, although the table reads as before. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def named_files(added: Any) -> Iterator[Path]:
    """The files that stand anywhere in it under a key that ends in `_file`, as `cert_file` does."""
    if isinstance(added, Mapping):
        for key, value in added.items():
            if str(key).endswith("_file") and isinstance(value, str):
                yield Path(value)
            else:
                yield from named_files(value)
    elif isinstance(added, list):
        for one in added:
            yield from named_files(one)
