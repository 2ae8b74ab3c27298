from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hub_jobs.source.streams import SourceKey, index_name, name_hash, origin, parse_source, source_index


def test_the_hash_is_the_servers() -> None:
    assert name_hash("$JS.edge1.API") == "JE7QNXai"


def test_a_source_value_is_read() -> None:
    key = parse_source(b"TEL_a_normal:JE7QNXai:C=hLBOXiOY 17 > > tel.a.normal.d.m tXwJ5ZgK")
    assert key == SourceKey(
        "TEL_a_normal", "TEL_a_normal:JE7QNXai:C=hLBOXiOY", 17, "tXwJ5ZgK", "tel.a.normal.d.m"
    )
    assert parse_source(b"TEL 1 > > tel.x").identity == ""


@pytest.mark.parametrize(
    "value", [b"", b"TEL", b"TEL x > > s i", b"TEL -1 > > s i", b"TEL 1 > > s i more", b"\xff 1"]
)
def test_another_value_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="Nats-Stream-Source"):
        parse_source(value)


def test_every_epoch_of_a_source_is_of_one_domain() -> None:
    sources: list[Mapping[str, Any]] = [
        {"name": "TEL", "external": {"api": "$JS.edge1.API"}, "consumer": {"name": "hub-1"}},
        {"name": "TEL", "external": {"api": "$JS.edge2.API"}},
        {"name": "LOCAL"},
        {"name": "FAR", "external": {"api": "JS.account.API"}},
    ]
    index = source_index(sources, "hub")
    assert sorted(index.values()) == ["edge1", "edge2", "hub"]
    for epoch in ("", ":C=aaaaaaaa", ":C=bbbbbbbb"):
        assert index[origin(index_name(sources[0]) + epoch)] == "edge1"
    assert index["LOCAL"] == "hub"
    assert source_index([{"name": "LOCAL"}], "") == {}
