"""Names the place of a lake and its client: a directory, S3, Azure Blob or Data Lake Gen2, or Google Cloud
Storage.

No credential passes through here: delta-rs and Arrow read the environment (`AWS_…`, `AZURE_…`, `GOOGLE_…`) of
their own process. Arrow reads and writes S3; delta-rs serves the other stores.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Final

from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

_FORMS: Final = (
    "s3://bucket/name, gs://bucket/name, az://container/name or "
    "abfss://container@account.dfs.core.windows.net/name"
)
"""Address forms of a lake in a store."""
S3: Final = "s3://"
_SCHEMES: Final = (S3, "gs://", "az://", "abfss://")
_SAFE: Final = {"conditional_put": "etag", "AWS_S3_ALLOW_UNSAFE_RENAME": "false"}
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_SETTINGS: Final = ("AZURE_", "AZURITE_", "GOOGLE_")
_REFUSALS: Final = ("AWS Error", "Error performing", "Error getting credentials", "lacked")
"""Texts of stores that refuse access to a file."""
_MOST_SAID: Final = 400


@dataclass(frozen=True, order=True)
class ObjectPath:
    """A place in an object store with the parts of `Path` that the jobs use."""

    uri: str

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(f"{self.uri}/{name}")

    def __str__(self) -> str:
        return self.uri

    @property
    def name(self) -> str:
        return self.uri.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        return ObjectPath(self.uri.rpartition("/")[0])

    @property
    def key(self) -> str:
        """The object's name in its `store`."""
        _, authority, name = _split(self.uri)
        return f"{authority}/{name}" if self.uri.startswith(S3) else name

    @property
    def store(self) -> fs.FileSystem:
        return _filesystem(self.uri)

    def exists(self) -> bool:
        """Tell whether the object, or an object below it, exists."""
        return bool(self.store.get_file_info(self.key).type != fs.FileType.NotFound)

    def is_dir(self) -> bool:
        """Tell whether an object exists below it."""
        return bool(self.store.get_file_info(self.key).type == fs.FileType.Directory)

    def read_text(self) -> str:
        """Read an object. Raises `FileNotFoundError`."""
        with self.store.open_input_stream(self.key) as stream:
            return bytes(stream.read()).decode()

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Delete an object. Raises `FileNotFoundError` unless `missing_ok`."""
        try:
            self.store.delete_file(self.key)
        except FileNotFoundError:
            if not missing_ok:
                raise


Place = Path | ObjectPath


def parse_place(text: str) -> Place:
    """Parse a directory or a store address from a command line. Raises `argparse.ArgumentTypeError`."""
    if "://" not in text:
        return Path(text).absolute()
    shown = text.partition("?")[0]
    scheme, authority, name = _split(shown.rstrip("/"))
    wrong = argparse.ArgumentTypeError
    if scheme not in _SCHEMES:
        raise wrong(f"{scheme}… is neither a directory nor {_FORMS}")
    if shown != text or "#" in text or ":" in authority:
        raise wrong(
            f"{scheme}… holds more than names; credentials of a store belong into the environment or a file"
        )
    if not name or not authority:
        raise wrong(f"{shown} is a whole bucket or container; a lake is at {_FORMS}")
    if scheme == "abfss://" and not re.fullmatch(r"[^@]+@[^@.]+\.(dfs|blob)\.[^@]+", authority):
        raise wrong(f"{shown} names no account; a lake is at {_FORMS}")
    return ObjectPath(shown.rstrip("/"))


def delta_options(at: Place) -> dict[str, str] | None:
    """Return delta-rs options beyond the environment, None for a directory.

    For S3 they force conditional puts, search files and roles for credentials with a custom endpoint too, and
    allow HTTP endpoints. Other stores always use conditional puts.
    """
    if isinstance(at, Path):
        return None
    if not at.uri.startswith(S3):
        return {}
    plain_http = {"allow_http": "true"} if (_endpoint() or "").startswith("http://") else {}
    return {**_SAFE, "aws_force_credential_load": "true", **plain_http}


def spark_path(at: Place) -> str | None:
    """Return Spark's name of a place (S3 through S3A), None when its tasks must use Arrow."""
    if isinstance(at, Path):
        return str(at)
    return f"s3a://{at.key}" if at.uri.startswith(S3) else None


def arrow_paths(at: list[Place]) -> dict[str, Any]:
    """Return the Arrow reader arguments for files in one kind of place."""
    if at and isinstance(at[0], ObjectPath):
        return {
            "source": [path.key for path in at if isinstance(path, ObjectPath)],
            "filesystem": at[0].store,
        }
    return {"source": [str(path) for path in at]}


def create(at: Place) -> BinaryIO:
    if isinstance(at, Path):
        return at.open("xb")
    sink: BinaryIO = at.store.open_output_stream(at.key)
    return sink


def close(sink: BinaryIO) -> None:
    """Close a file of `create`; it is durable on return."""
    if isinstance(sink, io.BufferedWriter):
        sink.flush()
        os.fsync(sink.fileno())
    sink.close()


def unwritable(directory: Path, room: int) -> str | None:
    """Return why a directory, or its nearest existing parent, is not writable with `room` bytes free, and the
    remedy.

    None when it is. Leaves nothing behind.
    """
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    try:
        # A file without a name. What else a file system may answer is that it knows no such files.
        os.close(os.open(directory, os.O_TMPFILE | os.O_WRONLY, 0o600))
        disk = os.statvfs(directory)
    except OSError as error:
        said = to_do(error)
        return f"nothing can be written to {directory}: {said}" if said else None
    left = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and left < room:
        return f"the disk of {directory} has {left // 2**20} MiB left: free {room // 2**20} MiB or more there"
    return None


def to_do(error: OSError) -> str:
    """Explain a file system error with its remedy, "" for other errors."""
    words = _TO_DO.get(error.errno or 0)
    return "" if words is None else f"{os.strerror(error.errno or 0).lower()}; {words}"


_FREE: Final = "free some room there, or raise the limit"
_GIVE: Final = "give it to the user of the jobs; where it is immutable, undo that (chattr -i)"
_MOUNT: Final = "mount its disk again, and run again"
_TO_DO: Final = {
    errno.EROFS: "mount it for writing; Linux mounts a damaged file system read-only, and its log says why",
    errno.EACCES: _GIVE,
    errno.EPERM: _GIVE,
    errno.ENOSPC: _FREE,
    errno.EDQUOT: _FREE,
    errno.EIO: _MOUNT,
    errno.ENODEV: _MOUNT,
    errno.ENOTCONN: _MOUNT,
    errno.ESTALE: _MOUNT,
    errno.ENOENT: _MOUNT,
}


def is_refusal(error: Exception) -> bool:
    """Tell whether a store refused access, which says nothing about the bytes."""
    return any(words in str(error) for words in _REFUSALS)


def plain(error: Exception | str | None) -> str:
    """Return delta-rs's error on one line, without colours and repeated answers."""
    words = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    return words if len(words) <= _MOST_SAID else f"{words[:_MOST_SAID]}…"


def _filesystem(uri: str) -> fs.FileSystem:
    if uri.startswith(S3):
        # Arrow finds credentials by itself, like delta-rs; not so these.
        return _s3(_endpoint(), os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"))
    scheme, authority, _ = _split(uri)
    settings = (item for item in os.environ.items() if item[0].startswith(_SETTINGS))
    return _by_delta_rs(f"{scheme}{authority}/", frozenset(settings))


def _split(uri: str) -> tuple[str, str, str]:
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
    """Return the client of a bucket. It caches the environment's settings, hence `settings`."""
    return fs.PyFileSystem(DeltaStorageHandler(root))
