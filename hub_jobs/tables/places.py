"""Where a lake lies: a directory, or a name in an object store, which is S3, Azure's Blob storage or Data
Lake Gen2, or Google's Cloud Storage; and the client that reads and writes files in each.

No option or credential of a store passes through here. delta-rs and Arrow find them in the environment of
their own process or where that says (`AWS_…`, `AZURE_…`, `GOOGLE_…`), on the driver and on every executor, so
no plan, log or argument can hold them. In S3 Arrow's own client reads and writes files. In the others it is
the client of delta-rs, so that whatever credential commits also reads.
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
"""The addresses of a lake in a store."""
S3: Final = "s3://"
_SCHEMES: Final = (S3, "gs://", "az://", "abfss://")
_SAFE: Final = {"conditional_put": "etag", "AWS_S3_ALLOW_UNSAFE_RENAME": "false"}
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_SETTINGS: Final = ("AZURE_", "AZURITE_", "GOOGLE_")
_REFUSALS: Final = ("AWS Error", "Error performing", "Error getting credentials", "lacked")
"""What is said of a store that does not give a file out."""
_MOST_SAID: Final = 400


@dataclass(frozen=True, order=True)
class ObjectPath:
    """A place in an object store. It can do what the jobs ask of a `Path`, and nothing is ever renamed."""

    uri: str

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(f"{self.uri}/{name}")

    def __str__(self) -> str:
        return self.uri

    @property
    def name(self) -> str:
        """The last part."""
        return self.uri.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """All but the last part."""
        return ObjectPath(self.uri.rpartition("/")[0])

    @property
    def key(self) -> str:
        """The name by which its `store` knows it."""
        _, authority, name = _split(self.uri)
        return f"{authority}/{name}" if self.uri.startswith(S3) else name

    @property
    def store(self) -> fs.FileSystem:
        """The client that reads and writes it."""
        return _filesystem(self.uri)

    def exists(self) -> bool:
        """Whether there is such an object, or one below it."""
        return bool(self.store.get_file_info(self.key).type != fs.FileType.NotFound)

    def is_dir(self) -> bool:
        """Whether there is an object below it."""
        return bool(self.store.get_file_info(self.key).type == fs.FileType.Directory)

    def read_text(self) -> str:
        """The whole of an object. Raises `FileNotFoundError`."""
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
    """What a command line calls a lake: a directory, or an address in a store. Raises
    `argparse.ArgumentTypeError`."""
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
    """What delta-rs needs beyond its environment, None in a directory. In S3: that a commit is a put which
    fails where the object is there, whatever the environment says; that credentials are looked for in files
    and roles also where an endpoint is given; and that an endpoint without TLS is meant. In the others a
    commit is always such a put."""
    if isinstance(at, Path):
        return None
    if not at.uri.startswith(S3):
        return {}
    plain_http = {"allow_http": "true"} if (_endpoint() or "").startswith("http://") else {}
    return {**_SAFE, "aws_force_credential_load": "true", **plain_http}


def spark_path(at: Place) -> str | None:
    """The name by which Spark reads it: of an object in S3 by Hadoop's S3A. None where its tasks must read it
    by Arrow."""
    if isinstance(at, Path):
        return str(at)
    return f"s3a://{at.key}" if at.uri.startswith(S3) else None


def arrow_paths(at: list[Place]) -> dict[str, Any]:
    """The arguments of Arrow's readers for these files, all in one kind of place."""
    if at and isinstance(at[0], ObjectPath):
        return {
            "source": [path.key for path in at if isinstance(path, ObjectPath)],
            "filesystem": at[0].store,
        }
    return {"source": [str(path) for path in at]}


def create(at: Place) -> BinaryIO:
    """A new file to write to."""
    if isinstance(at, Path):
        return at.open("xb")
    sink: BinaryIO = at.store.open_output_stream(at.key)
    return sink


def close(sink: BinaryIO) -> None:
    """End a file that `create` began; on return it is on the disk, or in the store."""
    if isinstance(sink, io.BufferedWriter):
        sink.flush()
        os.fsync(sink.fileno())
    sink.close()


def unwritable(directory: Path, room: int) -> str | None:
    """Why nothing can be written to a directory, or to the nearest one above it that is there, and what to
    do; None where it can be, and its disk has so many bytes left. Nothing is left behind."""
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
    """What an error of a file system is, and what to do, empty for other errors."""
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
    """Whether a store did not give a file out, which says nothing about its bytes."""
    return any(words in str(error) for words in _REFUSALS)


def plain(error: Exception | str | None) -> str:
    """What delta-rs says, on one line: it colours its causes, and repeats whole answers of a store."""
    words = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    return words if len(words) <= _MOST_SAID else f"{words[:_MOST_SAID]}…"


def _filesystem(uri: str) -> fs.FileSystem:
    """The client for the store of an address."""
    if uri.startswith(S3):
        # Arrow finds credentials by itself, like delta-rs; not so these.
        return _s3(_endpoint(), os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"))
    scheme, authority, _ = _split(uri)
    settings = (item for item in os.environ.items() if item[0].startswith(_SETTINGS))
    return _by_delta_rs(f"{scheme}{authority}/", frozenset(settings))


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
