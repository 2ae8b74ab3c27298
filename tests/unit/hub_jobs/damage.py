"""What happens to files of a table."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq


def flip(file: Path, column: str, group: int = 0) -> None:
    """Change one bit in the last data page of a column; what Parquet needs to find it stays."""
    metadata = pq.read_metadata(file).row_group(group)
    (held,) = [
        chunk for chunk in map(metadata.column, range(metadata.num_columns)) if chunk.path_in_schema == column
    ]
    first = held.data_page_offset if held.dictionary_page_offset is None else held.dictionary_page_offset
    changed = bytearray(file.read_bytes())
    changed[first + held.total_compressed_size - 1] ^= 1
    file.write_bytes(changed)


def cut(file: Path) -> None:
    """Take the end of a file away."""
    file.write_bytes(file.read_bytes()[:-200])
