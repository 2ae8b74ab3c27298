"""The object stores in which a lake may lie: S3, Azure's Blob storage and Data Lake Gen2, and Google's Cloud
Storage; and the client that reads and writes files in each.

No option or credential of a store passes through here. delta-rs and Arrow find them in the environment of
their own process or where that says (`AWS_…`, `AZURE_…`, `GOOGLE_…`), on the driver and on every executor, so
no plan, log or argument can hold them. In S3 Arrow's own client reads and writes files. In the others it is
the client of delta-rs, so that whatever credential commits also reads.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Final

from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

FORMS: Final = (
    "s3://bucket/name, gs://bucket/name, az://container/name or "
    "abfss://container@account.dfs.core.windows.net/name"
)
"""The addresses of a lake in a store."""
S3: Final = "s3://"
_SCHEMES: Final = (S3, "gs://", "az://", "abfss://")
_SAFE: Final = {"conditional_put": "etag", "AWS_S3_ALLOW_UNSAFE_RENAME": "false"}
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_SETTINGS: Final = ("AZURE_", "AZURITE_", "GOOGLE_")
_REFUSALS: Final = ("AWS Error", "Error performing", "Error getting credentials", "lacked")
"""What is said of a store that does not give a file out."""
_MOST_SAID: Final = 400


class AddressError(ValueError):
    """A text is not an address of a lake in a store; the text says why."""


def parse(text: str) -> str | None:
    """The address of a lake in a store, None for what is a path. Raises `AddressError`."""
    if "://" not in text:
        return None
    shown = text.partition("?")[0]
    scheme, authority, name = _split(shown.rstrip("/"))
    if scheme not in _SCHEMES:
        raise AddressError(f"{scheme}… is neither a directory nor {FORMS}")
    if shown != text or "#" in text or ":" in authority:
        raise AddressError(
            f"{scheme}… holds more than names; credentials of a store belong into the environment or a file"
        )
    if not name or not authority:
        raise AddressError(f"{shown} is a whole bucket or container; a lake is at {FORMS}")
    if scheme == "abfss://" and not re.fullmatch(r"[^@]+@[^@.]+\.(dfs|blob)\.[^@]+", authority):
        raise AddressError(f"{shown} names no account; a lake is at {FORMS}")
    return shown.rstrip("/")


def key(uri: str) -> str:
    """The name by which the client of its store knows an object."""
    _, authority, name = _split(uri)
    return f"{authority}/{name}" if uri.startswith(S3) else name


def filesystem(uri: str) -> fs.FileSystem:
    """The client for the store of an address."""
    if uri.startswith(S3):
        # Arrow finds credentials by itself, like delta-rs; not so these.
        return _s3(_endpoint(), os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"))
    scheme, authority, _ = _split(uri)
    settings = (item for item in os.environ.items() if item[0].startswith(_SETTINGS))
    return _by_delta_rs(f"{scheme}{authority}/", frozenset(settings))


def commit_options(uri: str) -> dict[str, str]:
    """What delta-rs needs beyond its environment. In S3: that a commit is a put which fails where the object
    is there, whatever the environment says; that credentials are looked for in files and roles also where an
    endpoint is given; and that an endpoint without TLS is meant. In the others a commit is always such a
    put."""
    if not uri.startswith(S3):
        return {}
    plain_http = {"allow_http": "true"} if (_endpoint() or "").startswith("http://") else {}
    return {**_SAFE, "aws_force_credential_load": "true", **plain_http}


def is_refusal(error: Exception) -> bool:
    """Whether a store did not give a file out, which says nothing about its bytes."""
    return any(words in str(error) for words in _REFUSALS)


def plain(error: Exception | str | None) -> str:
    """What delta-rs says, on one line: it colours its causes, and repeats whole answers of a store."""
    words = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    return words if len(words) <= _MOST_SAID else f"{words[:_MOST_SAID]}…"


def _split(uri: str) -> tuple[str, str, str]:
    """The scheme with its slashes, the bucket or container, and the name in it."""
    scheme, _, rest = uri.partition("://")
    authority, _, name = rest.partition("/")
    return f"{scheme}://", authority, name


def _endpoint() -> str | None:
    return next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)


@cache
def _s3(endpoint: str | None, region: str | None) -> fs.FileSystem:
    return fs.S3FileSystem(endpoint_override=endpoint, region=region)


@cache
def _by_delta_rs(root: str, settings: frozenset[tuple[str, str]]) -> fs.FileSystem:
    """The client of a bucket; it knows what the environment said when it was made, hence `settings`."""
    return fs.PyFileSystem(DeltaStorageHandler(root))
