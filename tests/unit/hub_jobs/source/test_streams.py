from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hub_jobs.source.connection import Connection
from hub_jobs.source.server import Server
from hub_jobs.source.streams import (
    SourceKey,
    domain_of,
    index_name,
    name_hash,
    origin,
    parse_source,
    sequence_at,
    source_index,
    stream_info,
    stream_names,
)
from tests.harness.stream_records import read_range
from tests.unit.hub_jobs.source.plain import PlainServer, fill, make_seed, make_stream

PREFIX = "JS.acc@hub.API"


def test_a_moment_is_the_first_sequence_stored_since(server: PlainServer, conn: Connection) -> None:
    make_stream(conn, "S")
    before = time.time_ns()
    fill(server, "S.a", [b"early"] * 5)
    between = time.time_ns()
    fill(server, "S.a", [b"late"] * 5)
    assert [sequence_at(conn, "S", moment) for moment in (0, before, between, time.time_ns())] == [
        1,
        1,
        6,
        11,
    ]
    conn.api("STREAM.PURGE.S", {"seq": 9})
    assert sequence_at(conn, "S", between) == 9
    consumers = conn.api("CONSUMER.NAMES.S")["consumers"]
    assert not consumers, "the consumer that told it is gone"


def test_all_streams_are_named(conn: Connection) -> None:
    assert stream_names(conn) == []
    for name in ("B", "A_1", "C"):
        make_stream(conn, name)
    assert stream_names(conn) == ["A_1", "B", "C"]


def test_a_stream_of_another_account_is_read_through_the_prefix_that_was_imported(tmp_path: Path) -> None:
    _, public = make_seed(tmp_path / "reader.nk")
    key = str(tmp_path / "reader.nk")
    accounts = f"""
        accounts {{
          ACC: {{ jetstream: enabled, users: [{{user: acc, password: acc}}]
                 exports: [{{service: "$JS.hub.API.>", response: stream}}] }}
          READER: {{ users: [{{nkey: {public}}}]
                    imports: [{{service: {{account: ACC, subject: "$JS.hub.API.>"}}, to: "{PREFIX}.>"}}] }}
        }}
        no_auth_user: acc
    """
    server = PlainServer(tmp_path / "server", accounts)
    try:
        server.start()
        with Connection(Server(server.url)) as owner:
            make_stream(owner, "S")
        fill(server, "S.a", [b"%d" % number for number in range(20_000)])
        reader = Server(server.url, seed_file=key, api_prefix=PREFIX)
        with Connection(reader) as conn:
            info = stream_info(conn, "S")
            found = [one for piece in read_range(conn, "S", 1, 20_000, created=info.created) for one in piece]
        assert [one.payload for one in found] == [b"%d" % number for number in range(20_000)]
        with Connection(Server(server.url, seed_file=key)) as conn, pytest.raises(Exception, match="S"):
            stream_info(conn, "S")
    finally:
        server.stop()


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


@pytest.mark.parametrize(
    ("name", "api", "domain"),
    [
        ("TEL_edge-1_normal", "$JS.edge-1.API", "edge-1"),
        ("TEL_edge_1_alarms", "$JS.edge_1.API", "edge_1"),
        ("TEL_edge-1_normal", "$JS.edge-2.API", None),
        ("TEL_edge-1_normal", "JS.acme@edge-1.API", None),
        ("TEL_edge-1_normal", "", None),
        ("TEL__normal", "$JS..API", None),
        ("TEL_edge-1", "$JS.edge-1.API", None),
        ("LOCAL", "$JS.edge-1.API", None),
    ],
)
def test_a_leafs_source_that_the_stream_no_longer_has_is_of_the_domain_whose_prefix_it_had(
    name: str, api: str, domain: str | None
) -> None:
    index = index_name({"name": name, "external": {"api": api}}) + ":C=0123abcd"
    assert domain_of(index, {}) == domain
    assert domain_of(index, {origin(index): "known"}) == "known"
