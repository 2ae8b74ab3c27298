"""The search for secrets finds them: one that finds nothing would prove nothing."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.security.hidden import files_below, leaked

SECRET = 'pl4nted/one+S3CRET@"ü'
PLANTED = {"one": SECRET, "other": "pl4nted-other"}


@given(st.binary(max_size=7), st.binary(max_size=7), st.sampled_from([b"+/", b"-_"]))
def test_a_secret_is_found_in_base64_beside_anything_else(before: bytes, after: bytes, ends: bytes) -> None:
    text = base64.b64encode(before + SECRET.encode() + after, ends)
    assert leaked({"header": text}, PLANTED) == [("header", "one")]


@pytest.mark.parametrize(
    "text",
    [SECRET, f"nats://u:{quote_plus(SECRET)}@h", json.dumps({"password": SECRET}), SECRET.encode().hex()],
)
def test_a_secret_is_found_in_an_address_a_record_and_a_dump(text: str) -> None:
    assert leaked({"log": text.encode(), "page": b"nothing"}, PLANTED) == [("log", "one")]


def test_a_secret_is_found_in_the_compressed_rows_of_a_table(tmp_path: Path) -> None:
    table = pa.table({"text": ["-" * 900, f"x{SECRET}"]})
    pq.write_table(table, tmp_path / "part.parquet", compression="zstd")
    assert leaked(files_below(tmp_path), PLANTED) == [(str(tmp_path / "part.parquet"), "one")]
