"""A lake of many readings without a server: messages as the hub holds them go through the project's own
transforms into `bronze`, `readings` and `quarantine`, several processes at once, and are committed as the
jobs commit. It tells the audit's cost and keenness, not ingest's.
"""

from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zstandard

from agent.contract import (
    BatchHeaders,
    Clock,
    Ledger,
    MessageId,
    Readings,
    StreamState,
    aggregate,
    api_prefix,
    batch_subject,
    leaf_stream,
    ledger_subject,
)
from hub_jobs.ingest.bronze import StreamOrigin, bronze_rows
from hub_jobs.refine.task import Refined, RefinePart, refine
from hub_jobs.source.streams import SOURCE_HEADER, Columns, name_hash
from hub_jobs.tables.delta import Table, ensure_table
from hub_jobs.tables.parquet import PartFile, PartWriter
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import file_paths
from hub_jobs.tables.stream_history import StreamHistory
from tests.harness.stream_records import StreamRecord, columns_of

_CLASS: Final = "normal"
_SERIES: Final = 500
_TAG_SETS: Final = 40
_PART_BATCHES: Final = 2_000
_CHUNK: Final = 500
_BEGAN: Final = datetime(2026, 11, 21, tzinfo=UTC)
_CREATED: Final = "2026-11-21T00:00:00Z"
_STREAM: Final = aggregate(0)


@dataclass(frozen=True, slots=True)
class Shape:
    """How much a lake holds: `readings` in all, in batches of `batch`, of so many `domains` in turns. A
    second passes from a domain's batch to its next."""

    readings: int
    batch: int = 500
    domains: int = 4
    text: int = 0
    """Characters of noise that each reading has as its value; 0 for a number."""

    @property
    def batches(self) -> int:
        return -(-self.readings // self.batch)

    def count(self, number: int) -> int:
        """How many readings batch `number`, of all from 0, holds."""
        return min(self.batch, self.readings - number * self.batch)

    def domain(self, number: int) -> str:
        return f"edge-{number % self.domains}"

    def run(self, number: int) -> str:
        return f"01890a5d-ac96-774b-bcce-{number % self.domains:012x}"


def make(lake: Path, shape: Shape, processes: int = 2, *, refined: bool = True) -> None:
    """Fill an empty lake: every batch, each domain's final ledger record, all of it refined unless that is
    left to the job. One process is this one."""
    add(lake, shape, range(shape.batches), processes, close=True, refined=refined)


def add(
    lake: Path, shape: Shape, numbers: range, processes: int = 2, *, close: bool, refined: bool = True
) -> None:
    """Commit these batches, which follow on those that the lake has, and refine them; to `close` with each
    domain's final record."""
    tables = {name: ensure_table(lake, name) for name in ("bronze", "quarantine", "readings")}
    firsts = range(numbers.start, numbers.stop, _PART_BATCHES)
    make_part = partial(_part, lake, shape, numbers.stop, refined)
    if processes == 1:
        parts = list(map(make_part, firsts))
    else:
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            parts = list(pool.map(make_part, firsts))
    bronze = [file for files, _ in parts for file in files]
    last = numbers.stop
    if close:
        last += shape.domains
        with PartWriter(lake, "bronze") as writer:
            writer.write(bronze_rows(ledgers(shape), _origin(shape)))
        bronze += writer.files
    one = StreamHistory(_STREAM, _CREATED)
    tables["bronze"].commit(bronze, {one.ingested: last})
    if not refined:
        return
    for name in ("quarantine", "readings"):
        written = [file for _, done in parts for file in getattr(done, name)]
        tables[name].commit(written, {one.refined: last})


def lose(lake: Path, shape: Shape, number: int, index: int) -> str:
    """Take one reading out of `readings` behind the jobs' back; the sentence by which an audit names it."""
    domain, run, n = shape.domain(number), shape.run(number), number // shape.domains + 1
    table = ensure_table(lake, "readings")
    gone = (pc.field("domain") == domain) & (pc.field("run") == run) & (pc.field("n") == n)
    gone &= pc.field("index") == index
    where = [("domain", "=", domain), ("run", "=", run), ("n", "=", n)]
    for path in file_paths(table, where):
        _rewrite_without(lake, table, lake / "readings" / path.name, gone)
    return (
        f"{domain}, class {_CLASS}, run {run}, batch {n}: "
        f"indexes {index} of {shape.count(number)} are missing from readings"
    )


def _rewrite_without(lake: Path, table: Table, path: Path, gone: pc.Expression) -> None:
    rows = pq.read_table(path, schema=table.schema)
    kept = rows.filter(~gone)
    if kept.num_rows == rows.num_rows:
        return
    with PartWriter(lake, "readings") as writer:
        for piece in kept.to_batches(max_chunksize=65_536):
            writer.write(pa.Table.from_batches([piece]))
    table.rewrite(writer.files, [path.name], changed=True)


def _part(
    lake: Path, shape: Shape, end: int, refined: bool, first: int
) -> tuple[Sequence[PartFile], Refined]:
    """Some batches from `first` on and before `end`, as a task of ingest and one of refine write them."""
    last = min(first + _PART_BATCHES, end)
    with PartWriter(lake, "bronze") as writer:
        for at in range(first, last, _CHUNK):
            numbers = range(at, min(at + _CHUNK, last))
            writer.write(bronze_rows(batches(shape, numbers), _origin(shape)))
    if not refined:
        return writer.files, Refined([], [])
    paths: list[Place] = [lake / "bronze" / file.path for file in writer.files]
    return writer.files, refine(RefinePart(lake, paths, _history(shape), after=first, to=last))


def _history(shape: Shape) -> tuple[str, str]:
    origin = _origin(shape)
    return origin.stream, origin.created


@cache
def _origin(shape: Shape) -> StreamOrigin:
    names = {shape.domain(number) for number in range(shape.domains)}
    return StreamOrigin(_STREAM, _CREATED, {_index(name): name for name in names})


def batches(shape: Shape, numbers: Sequence[int]) -> Columns:
    """These batches, as messages of the hub's stream."""
    found: list[StreamRecord] = []
    for number in numbers:
        domain, n = shape.domain(number), number // shape.domains + 1
        subject = batch_subject(domain, _CLASS, "http")
        _add(found, number + 1, n, domain, subject, headers(shape, number), payload(shape, number))
    return columns_of(found)


def headers(shape: Shape, number: int) -> dict[str, str]:
    """Those of a batch, by which the jobs know it from every other."""
    sealed_ns = int(_sealed(shape, number).timestamp()) * 1_000_000_000
    message = MessageId(shape.run(number), _CLASS, number // shape.domains + 1)
    clock = Clock(True, "boot", sealed_ns)
    return BatchHeaders(message, shape.count(number), sealed_ns, clock, True).encode()


def payload(shape: Shape, number: int) -> bytes:
    """The readings of a batch."""
    sealed = _sealed(shape, number)
    return _PACKER.compress(b"".join(lines(sealed, number, shape.count(number), shape.text)))


def _sealed(shape: Shape, number: int) -> datetime:
    return _BEGAN + timedelta(seconds=number // shape.domains)


_PACKER: Final = zstandard.ZstdCompressor(level=3)
_TAG_TEXTS: Final = [
    f'{{"site":"s{at % 5}","line":"a{at % 8}","model":"m{at}"}}'.encode() for at in range(_TAG_SETS)
]
_SERIES_TEXTS: Final = [
    b'","device":"pump-%d","metric":"m%d","tags":%b,"value":'
    % (at // 10, at % 10, _TAG_TEXTS[at % _TAG_SETS])
    for at in range(_SERIES)
]


def lines(moment: datetime, number: int, count: int, text: int = 0) -> Iterator[bytes]:
    """The values of so many series at a moment, after those of the batch before, with noise that does not
    compress well: a number, or a text of so many characters."""
    noise = random.Random(number)
    ts = b'{"ts":"%b' % moment.isoformat().replace("+00:00", "Z").encode()
    for at in range(number * count, (number + 1) * count):
        series = _SERIES_TEXTS[at % _SERIES]
        if text:
            yield b'%b%b"%b"}\n' % (ts, series, b64encode(noise.randbytes(text * 3 // 4)))
        else:
            yield b"%b%b%.3f}\n" % (ts, series, noise.random() * 100)


def ledgers(shape: Shape) -> Columns:
    """The last record of every domain's run, after all batches."""
    found: list[StreamRecord] = []
    for at in range(shape.domains):
        mine = range(at, shape.batches, shape.domains)
        total = sum(map(shape.count, mine))
        ledger = Ledger(
            shape.domain(at),
            _CLASS,
            shape.run(at),
            len(mine),
            ((1, len(mine)),),
            Readings(accepted=total, stored=total),
            StreamState(_CREATED, 1, len(mine)),
            final=True,
        )
        domain = shape.domain(at)
        subject = ledger_subject(domain, _CLASS)
        _add(found, shape.batches + at + 1, len(mine) + 1, domain, subject, {}, ledger.encode())
    return columns_of(found)


def _add(
    found: list[StreamRecord],
    seq: int,
    source_seq: int,
    domain: str,
    subject: str,
    headers: dict[str, str],
    payload: bytes,
) -> None:
    source = f"{_index(domain)}:C=hub {source_seq} > > {subject} {domain}"
    given = {**headers, SOURCE_HEADER.decode(): source}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    moment_ns = int((_BEGAN + timedelta(seconds=seq)).timestamp()) * 1_000_000_000
    block = f"NATS/1.0\r\n{lines}\r\n".encode()
    found.append(StreamRecord(subject.encode(), block, payload, seq, moment_ns))


def _index(domain: str) -> str:
    return f"{leaf_stream(domain, _CLASS)}:{name_hash(api_prefix(domain))}"
