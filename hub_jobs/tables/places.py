"""Where a lake lies: a directory, or a name in an object store (`stores.FORMS`), whose client is in
`stores.py`.
"""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from hub_jobs.tables import stores
from hub_jobs.tables.column_types import fitted, usual

_FAULTS: Final = (OSError, pa.ArrowException)
"""What Arrow raises over a file."""
_MOST_SAID: Final = 200


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
        return stores.key(self.uri)

    @property
    def store(self) -> fs.FileSystem:
        """The client that reads and writes it."""
        return stores.filesystem(self.uri)

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
    """What a command line calls a lake. Raises `argparse.ArgumentTypeError`."""
    try:
        uri = stores.parse(text)
    except stores.AddressError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text).absolute() if uri is None else ObjectPath(uri)


def delta_options(at: Place) -> dict[str, str] | None:
    """What delta-rs needs beyond its environment."""
    return None if isinstance(at, Path) else stores.commit_options(at.uri)


def spark_path(at: Place) -> str | None:
    """The name by which Spark reads it: of an object in S3 by Hadoop's S3A. None where its tasks must read it
    by Arrow."""
    if isinstance(at, Path):
        return str(at)
    return f"s3a://{at.key}" if at.uri.startswith(stores.S3) else None


def arrow_paths(at: list[Place]) -> dict[str, Any]:
    """The arguments of Arrow's readers for these files, all in one kind of place."""
    if at and isinstance(at[0], ObjectPath):
        return {
            "source": [path.key for path in at if isinstance(path, ObjectPath)],
            "filesystem": at[0].store,
        }
    return {"source": [str(path) for path in at]}


def checked(coded: Sequence[str] = ()) -> ds.ParquetFileFormat:
    """How a dataset of our files is read: a page whose bits are not those that were written is an `OSError`;
    some columns of text as dictionaries."""
    return ds.ParquetFileFormat(
        read_options=ds.ParquetReadOptions(dictionary_columns=coded),
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True),
    )


CHECKED: Final = checked()


class UnreadableError(OSError):
    """A file can't be read; the text says which and why. It is `damaged` when it is gone, or its bytes are
    not those that were written; otherwise it is there and was not given out."""

    def __init__(self, at: Place, fault: str, damaged: bool) -> None:
        super().__init__(f"file {at} can't be read: {fault}")
        self.at, self.fault, self.damaged = at, fault, damaged

    def __reduce__(self) -> tuple[Any, ...]:
        return UnreadableError, (self.at, self.fault, self.damaged)


def _unreadable(at: Place, error: Exception) -> UnreadableError:
    if isinstance(error, FileNotFoundError):
        return UnreadableError(at, "it is gone", True)
    refused = isinstance(error, PermissionError) or stores.is_refusal(error)
    return UnreadableError(at, stores.plain(error)[:_MOST_SAID], not refused)


class ParquetFile:
    """A Parquet file, open for reading; it says its name when it can't be read."""

    def __init__(self, at: Place, **how: Any) -> None:
        self._at = at
        self._dictionaries = how.get("read_dictionary", ())
        try:
            self._file = pq.ParquetFile(**_source(at), page_checksum_verification=True, **how)
        except _FAULTS as error:
            raise _unreadable(at, error) from error

    @property
    def num_row_groups(self) -> int:
        """How many row groups it has."""
        return int(self._file.num_row_groups)

    @property
    def names(self) -> list[str]:
        """Its columns."""
        return list(self._file.schema_arrow.names)

    @property
    def schema(self) -> pa.Schema:
        """Its columns as its writer knew them."""
        return self._file.schema_arrow

    def bounds(self, number: int, column: str) -> tuple[Any, Any] | None:
        """The least and the greatest value of a column in a row group, None where the file does not say."""
        group = self._file.metadata.row_group(number)
        for at in range(group.num_columns):
            known = group.column(at)
            if known.path_in_schema == column and known.statistics is not None:
                return (known.statistics.min, known.statistics.max) if known.statistics.has_min_max else None
        return None

    def read_row_group(self, number: int, **how: Any) -> pa.Table:
        """A row group, as the arguments of Arrow's method say. Raises `UnreadableError`, also where bits of a
        page are not those that were written."""
        try:
            return usual(self._file.read_row_group(number, **how), self._dictionaries)
        except _FAULTS as error:
            raise _unreadable(self._at, error) from error

    def close(self) -> None:
        """Read no more."""
        self._file.close()


@contextmanager
def parquet_file(at: Place, **how: Any) -> Iterator[ParquetFile]:
    """A Parquet file, open for reading, as the arguments of Arrow's `ParquetFile` say. Raises
    `UnreadableError`."""
    with closing(ParquetFile(at, **how)) as file:
        yield file


def _source(at: Place) -> dict[str, Any]:
    return {"source": at} if isinstance(at, Path) else {"source": at.key, "filesystem": at.store}


def parquet_columns(at: Place, columns: list[str]) -> Any:
    """Some columns of a Parquet file, whole. Raises `UnreadableError`."""
    try:
        return usual(pq.read_table(**_source(at), columns=columns, page_checksum_verification=True))
    except _FAULTS as error:
        raise _unreadable(at, error) from error


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


def fitted_groups(at: Place, schema: pa.Schema) -> Iterator[pa.Table]:
    """The row groups of a file as `fitted` makes them, whichever program wrote it. Raises
    `UnreadableError`."""
    with parquet_file(at) as file:
        known = [name for name in schema.names if name in file.names]
        for group in range(file.num_row_groups):
            yield fitted(file.read_row_group(group, columns=known), schema)
