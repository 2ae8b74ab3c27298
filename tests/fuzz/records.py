"""What agents, hub and jobs tell each other, and what the jobs read from the hub: a record that is taken can
be written and read back, and one that is not is refused in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import zstandard

from agent import contract
from agent.contract import ContractError
from agent.hub.registrar.aggregate import parse_source_header
from agent.hub.registrar.records import decode_leaf, decode_noted
from agent.jetstream.readers import ack_position
from agent.leaf.inputs.file.positions import parse_kept, parse_position
from agent.leaf.publish.batch import parse_ack
from agent.leaf.publish.pull_progress import parse_progress
from hub_jobs.refine.lines import decode_content
from hub_jobs.refine.messages import QuarantinedError, UnpackError, count_lines, parse_message, unpack
from hub_jobs.source.plan import PlanError, parse_moment, parse_offsets
from hub_jobs.source.progress import decode as decode_positions
from hub_jobs.source.protocol import (
    Frames,
    ProtocolError,
    deliveries,
    header,
    parse_headers,
    scan,
    status,
)
from hub_jobs.source.streams import parse_source
from tests.fuzz.target import only, target
from tests.unit.contract.test_records import GOOD
from tests.unit.hub_jobs.rows import batch_row, dead_row, direct_row

ROUND: dict[str, Callable[[bytes], Any]] = {
    "ledger": contract.parse_ledger,
    "correction": contract.parse_correction,
    "answer": contract.parse_answer,
    "committed": contract.parse_committed,
    "command": contract.parse_command,
    "verify": contract.parse_verify_request,
    "verified": contract.parse_verify_answer,
    "letter": contract.parse_letter,
}
RECORDS = tuple(json.dumps(one).encode() for one in GOOD.values())


@target(*RECORDS, contract.Letter(b"x\xff", "here", "why").encode(), b'{"v":1}', b'{"v":2}')
def record(data: bytes) -> None:
    for parse in ROUND.values():
        with only(ContractError):
            found = parse(data)
            assert parse(found.encode()) == found
    for more in (
        contract.parse_fleet_record,
        contract.parse_cursor_request,
        contract.parse_cursor_answer,
        contract.parse_repeat,
    ):
        with only(ContractError):
            more(data)
    with only(ContractError):
        contract.parse_announce(data, "d")
    for decode in (decode_leaf, decode_noted):
        with only(ContractError):
            decode(data)
    with only(ContractError):
        reading = contract.parse_reading(data)
        assert contract.parse_reading(reading.encode()) == reading
    parse_ack(data)


HEADERS = contract.BatchHeaders(
    contract.MessageId(contract.new_run(0), "normal", 7), 3, 10**18, contract.Clock(True, "b", 1), True
).encode()
BLOCK = "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items()) + "\r\n"


@target(
    BLOCK.encode(),
    b"NATS/1.0\r\nNats-Stream-Source: TEL_edge-1_normal:abcdef 7 > > tel.edge-1.normal.a.b id\r\n\r\n",
    b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
    b"synchronised=yes boot=b monotonic=1",
    b"00000001:key 00000002:other",
    b"0123456789abcdef0123456789abcdef.0123456789abcdef",
    b"$JS.ACK.S.C.1.2.3.4.5",
    b"$JS.ACK.hub.x.S.C.1.2.3.4.5.z",
)
def headers(data: bytes) -> None:
    pairs = parse_headers(data)
    status(data)
    given = {name: value.decode(errors="replace") for name, value in pairs}
    with only(ContractError):
        found = contract.parse_batch_headers(given)
        assert contract.parse_batch_headers(found.encode()) == found
    with only(ValueError):
        parse_source(header(data, b"Nats-Stream-Source") or data)
    text = data.decode(errors="replace")
    for parse in (contract.parse_message_id, contract.parse_clock, contract.parse_subject):
        with only(ContractError):
            parse(text)
    for more in (contract.parse_requests, parse_progress, parse_position, parse_kept, parse_source_header):
        with only(ContractError):
            more(text)
    assert len(contract.verb_of(f"cmd.d.agent.{text}")) <= len(text)
    with only(ValueError):
        ack_position(text)
    with only(ProtocolError):
        deliveries(pa.array([data, data]))


@target(
    b"MSG a.b 1 3\r\nabc\r\nPING\r\n",
    b"HMSG a.b 1 $JS.ACK.S.C.1.2.3.4.5 12 15\r\nNATS/1.0\r\n\r\nabc\r\n",
    b"+OK\r\n-ERR 'x'\r\nPONG\r\nINFO {}\r\n",
)
def frames(data: bytes) -> None:
    """However the bytes come in pieces, the same frames are found."""
    with only(ProtocolError):
        whole = Frames()
        taken, _ = scan(data, b"1", whole)
        assert 0 <= taken <= len(data)
        parts, rest = Frames(), b""
        for at in range(0, len(data), 5):
            rest += data[at : at + 5]
            used, _ = scan(rest, b"1", parts)
            rest = rest[used:]
        assert parts == whole
        assert len(rest) == len(data) - taken
        assert len(whole.subjects) == len(whole.replies) == len(whole.headers) == len(whole.payloads)


LINES = b'{"ts":1,"device":"d","metric":"m","value":1}\n' * 3
LETTERS = contract.Letter(b"x", "here", "why").encode() + b"\n"


@target(
    zstandard.compress(LINES), LINES, LETTERS, zstandard.compress(bytes(10**6)), b"1.5", b'{"value":true}'
)
def bronze_payload(data: bytes) -> None:
    """Each line of a batch becomes a reading or a named bad one."""
    for compressed in (True, False):
        with only(UnpackError):
            assert len(unpack(data, compressed=compressed, limit=10_000)) <= 10_000
    for row in (batch_row(LINES), dead_row(LETTERS), direct_row(data)):
        with only(QuarantinedError):
            _, content = parse_message(row | {"payload": data})
            pieces = list(decode_content(content)) if content is not None else []
            if row["n"] is not None and "_batch" in row["subject"]:
                lines = count_lines(unpack(data, compressed=True))
                assert sum(len(one.rows) + len(one.bad) for one in pieces) == lines


@target(BLOCK.encode(), b"\r\nPetiole-Count: 3\r\nContent-Encoding: zstd")
def bronze_headers(data: bytes) -> None:
    """Whether the payload is compressed is for the headers to say."""
    row = batch_row(LINES)
    with only(QuarantinedError):
        _, content = parse_message(row | {"headers": data})
        assert content is not None
        taken = sum(len(one.rows) + len(one.bad) for one in decode_content(content))
        assert taken in (3, count_lines(row["payload"]))


@target(
    b"tel.edge-1.normal.pump.pressure", b"tel.edge-1.normal._batch.http", b"tel.edge-2.normal.a.b", b"tel..a"
)
def bronze_subject(data: bytes) -> None:
    for text in {data.decode(errors="replace"), data.decode("latin-1")}:
        with only(QuarantinedError):
            _, content = parse_message(direct_row(b"1.5") | {"subject": text})
            assert content is None or list(decode_content(content))


@target(
    b"earliest", b'{"TELEMETRY_0": {"seq": 17, "created": "x"}}', b"2026-11-21T06:00:00.123456789Z", b"17"
)
def offsets(data: bytes) -> None:
    text = data.decode(errors="replace")
    for parse in (parse_offsets, parse_moment):
        with only(PlanError):
            parse(text, "startingOffsets")
    with only(PlanError, msgspec.DecodeError, RecursionError):
        decode_positions(msgspec.json.decode(text.encode(), type=dict[str, Any]))
