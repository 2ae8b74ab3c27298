"""Makes and checks the hub's roots: for each leaf and settled hour a signed statement on its rows.

A root has Merkle roots over the hour's messages and readings, their counts, the marks of the leaf's chains,
and SHA-256 of the leaf's root before it. `walk` states the same for the same rows, so that a check states
everything again and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from agent.contract import H_RECEIPT, VERSION, ContractError
from agent.contract.cbor import decode_cbor, encode_cbor
from agent.contract.receipt import ROOT_TYPE, sign, signed_in, tree_root
from hub_jobs.receipts.chains import Finding, Mark, Record, follow, signed_record
from hub_jobs.receipts.keys import HubKey, Registry, verify
from hub_jobs.receipts.trees import READING_FIELDS, batch_leaf, reading_leaves, reading_rows
from hub_jobs.source.protocol import header
from hub_jobs.tables.delta import ConflictError, Table, ensure_table, open_table
from hub_jobs.tables.parquet import write_rows
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import bounds, files, rows
from hub_jobs.tables.schemas import ROOTS
from hub_jobs.times import HOUR, at_micros, micros

_ROOTED: Final = "rooted"
"""The table's transaction: each hour since 1970 before this one has its roots."""
_SECONDS: Final = HOUR // 3_600
_FINDINGS: Final = 100
"""Findings that a root lists."""
_IDENTITY: Final = ("class", "run", "source_identity", "n", "source_seq", "digest", "count")
_BRONZE: Final = ("domain", *_IDENTITY, "arrived", "subject", "stream", "seq")

Statement = dict[str, Any]
"""The payload of a root by field."""
Progress = Callable[[int], None]


class Leaf(NamedTuple):
    """The state of a leaf behind its newest root, from which the next follows."""

    number: int = 0
    prior: bytes | None = None
    contradictions: int = 0


@dataclass(slots=True)
class _Class:
    marks: list[Mark] = field(default_factory=list)
    carried: dict[str, dict[int, tuple[bytes, int]]] = field(default_factory=dict)
    """Batches that no record has signed yet, by run."""
    arrived: dict[str, int] = field(default_factory=dict)
    """When the first of them arrived."""


@dataclass(slots=True)
class RootsReport:
    """Sentences of one audit on receipts; contradictions set its exit code."""

    contradictions: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    until: int = 0

    def add(self, domain: str, finding: Finding) -> None:
        where = self.contradictions if finding.contradicts else self.unproven
        where.append(f"receipts, {domain}: {finding.text}")


def extend(lake: Place, until: int, key: HubKey, registry: Registry) -> RootsReport:
    """Add roots for the hours before `until` (microseconds) that have none.

    Where another audit was faster, its roots stay and none are added.
    """
    table, bronze = ensure_table(lake, "roots"), ensure_table(lake, "bronze")
    since, report, made = (table.offset(_ROOTED) or 0) * HOUR, RootsReport(), list[dict[str, Any]]()
    leaves, classes, waits = _resumed(table, bronze.id, key, report)
    for domain, leaf in sorted(leaves.items()):
        if leaf.contradictions:
            text = f"{leaf.contradictions} contradictions are in its roots before: audit --all lists them"
            report.add(domain, Finding(True, text))
    if until > since:
        for hour, domain, statement in walk(lake, registry, classes, min([since, *waits]), since, until):
            leaf = leaves.get(domain, Leaf())
            found = [Finding(*finding) for finding in statement["findings"]]
            for finding in found:
                report.add(domain, finding)
            total = leaf.contradictions + sum(finding.contradicts for finding in found)
            whole = {
                "v": VERSION,
                "lake": bronze.id,
                "domain": domain,
                "hour": hour // _SECONDS,
                "number": leaf.number + 1,
                "prior": leaf.prior,
                "contradictions": total,
                **statement,
            }
            signed = sign(key.raw, key.sign, ROOT_TYPE, encode_cbor(whole))
            leaves[domain] = Leaf(leaf.number + 1, sha256(signed).digest(), total)
            made.append({"domain": domain, "hour": hour, "number": leaf.number + 1, "signed": signed})
        written = write_rows(lake, "roots", pa.Table.from_pylist(made, ROOTS)) if made else []
        try:
            table.commit(written, {_ROOTED: until // HOUR})
        except ConflictError:
            until = since
    report.until = max(since, until)
    return report


def check(lake: Place, key: HubKey, registry: Registry) -> RootsReport:
    """State all hours with roots again, and compare."""
    report, table = RootsReport(), open_table(lake, "roots")
    if table is None:
        return report
    until = report.until = (table.offset(_ROOTED) or 0) * HOUR
    kept = max(
        (at.kept_since or 0) for name in ("bronze", "readings") if (at := open_table(lake, name)) is not None
    )
    stored = _chained(table, ensure_table(lake, "bronze").id, key, report)
    again = walk(lake, registry, {}, 0, 0, until)
    for hour, domain, statement in again:
        for finding in statement["findings"]:
            report.add(domain, Finding(*finding))
        root = stored.pop((domain, hour), None)
        if hour < kept:
            continue
        if root is None:
            report.add(domain, Finding(True, f"the hour {at_micros(hour):%Y-%m-%dT%HZ} has rows and no root"))
            continue
        what = f"root {root['number']} of {at_micros(hour):%Y-%m-%dT%HZ}"
        for name, word in (("batches", "messages"), ("readings", "readings")):
            (was, one), (now, other) = root[name], statement[name]
            if was != now:
                report.add(domain, Finding(True, f"{what} has {was} {word}, and the tables have {now}"))
            elif one != other:
                report.add(domain, Finding(True, f"{what}: the tables have other {word} than it signs"))
    for (domain, hour), root in sorted(stored.items()):
        if hour >= kept:
            text = f"root {root['number']} of {at_micros(hour):%Y-%m-%dT%HZ}: the tables have nothing of it"
            report.add(domain, Finding(True, text))
    return report


def _opened(row: Mapping[str, Any], lake: str, key: HubKey, report: RootsReport) -> Statement | None:
    """Return the statement of a stored root after the checks of the root alone, None if unreadable."""
    domain, what = row["domain"], f"root {row['number']}"
    try:
        signed = signed_in(row["signed"], ROOT_TYPE)
        root: Statement = decode_cbor(signed.payload)
        same = (root["domain"], root["number"], root["hour"] * _SECONDS)
        owner = root["lake"]
    except (ContractError, KeyError, TypeError) as error:
        report.add(domain, Finding(True, f"{what} can't be read: {error}"))
        return None
    if not verify(signed.key, signed.message, signed.signature):
        report.add(domain, Finding(True, f"{what} is not as its key signed it"))
    elif signed.key != key.raw:
        report.add(domain, Finding(False, f"{what} is signed by another key: {signed.key.hex()[:16]}…"))
    if same != (domain, row["number"], micros(row["hour"])):
        report.add(domain, Finding(True, f"{what} stands in the place of another"))
    if owner != lake:
        report.add(domain, Finding(True, f"{what} is of another lake: {owner!r:.60}"))
    return root


def _chained(table: Table, lake: str, key: HubKey, report: RootsReport) -> dict[tuple[str, int], Statement]:
    """Return the stored roots, after a check of their signatures and their order."""
    found: dict[tuple[str, int], Statement] = {}
    last: dict[str, tuple[Statement, bytes]] = {}
    every = rows(table, ROOTS.names).to_pylist()
    for row in sorted(every, key=lambda row: (row["domain"], row["number"], row["hour"])):
        domain, what = row["domain"], f"root {row['number']}"
        if (root := _opened(row, lake, key, report)) is None:
            continue
        before, digest = last.get(domain, ({"number": 0, "hour": -1}, None))
        if (root["number"], root["prior"]) != (before["number"] + 1, digest):
            report.add(domain, Finding(True, f"{what} does not follow the root before it"))
        elif root["hour"] <= before["hour"]:
            report.add(domain, Finding(True, f"{what} is of an earlier hour than the root before it"))
        last[domain] = root, sha256(row["signed"]).digest()
        found[domain, root["hour"] * _SECONDS] = root
    return found


def _resumed(
    table: Table, lake: str, key: HubKey, report: RootsReport
) -> tuple[dict[str, Leaf], dict[tuple[str, str], _Class], list[int]]:
    """Return what follows from each leaf's newest root: its state, its classes, and since when they wait."""
    newest: dict[str, int] = {}
    for row in rows(table, ["domain", "number"]).to_pylist():
        newest[row["domain"]] = max(row["number"], newest.get(row["domain"], 0))
    leaves, classes, waits = dict[str, Leaf](), dict[tuple[str, str], _Class](), list[int]()
    for row in rows(
        table, ROOTS.names, [("number", "in", sorted({*newest.values()}))] if newest else []
    ).to_pylist():
        if newest[row["domain"]] != row["number"]:
            continue
        if (root := _opened(row, lake, key, report)) is None:
            continue
        leaves[row["domain"]] = Leaf(row["number"], sha256(row["signed"]).digest(), root["contradictions"])
        for cls, wait, marks in root["chains"]:
            classes[row["domain"], cls] = _Class([Mark(*mark) for mark in marks])
            waits += [] if wait is None else [wait]
    return leaves, classes, waits


def walk(
    lake: Place,
    registry: Registry,
    classes: dict[tuple[str, str], _Class],
    first: int,
    since: int,
    until: int,
) -> Iterator[tuple[int, str, Statement]]:
    """Yield hour, leaf and statement for each hour from `since` with messages, in order.

    `first` is when the first message arrived that no record had signed before `since`.
    """
    bronze, readings = ensure_table(lake, "bronze"), ensure_table(lake, "readings")
    quarantine = ensure_table(lake, "quarantine")
    for hour in _hours(bronze, first, until):
        found = _bronze(bronze, hour)
        if hour < since:
            for row in found:
                _carry(classes, row)
            continue
        records = _records(bronze, hour, registry)
        trees = dict(hour_readings(readings, hour))
        refused = _quarantined(quarantine, hour)
        by_domain: dict[str, list[dict[str, Any]]] = {}
        for row in found:
            if row["domain"] is not None:
                by_domain.setdefault(row["domain"], []).append(row)
        for domain in sorted({*by_domain, *trees}):
            given = by_domain.get(domain, [])
            leaves = trees.get(domain, [])
            chains, findings = _followed(domain, classes, given, records)
            yield (
                hour,
                domain,
                {
                    "batches": _tree(map(batch_entry_leaf, given)),
                    "readings": _tree(leaves),
                    "arrived": _arrived(given),
                    "quarantined": refused.get(domain, 0),
                    "chains": chains,
                    "findings": [list(finding) for finding in findings[:_FINDINGS]],
                },
            )


def _hours(bronze: Table, first: int, until: int) -> Iterator[int]:
    """Yield the hours in which messages may have arrived, by the log."""
    found = files(bronze)
    spans = zip(bounds(found, "min.arrived"), bounds(found, "max.arrived"), strict=True)
    hours: set[int] = set()
    for low, high in spans:
        if low is not None and high is not None:
            begin = max(micros(low) // HOUR * HOUR, first // HOUR * HOUR)
            hours.update(range(begin, min(micros(high) + _SECONDS, until), HOUR))
    yield from sorted(hours)


def _where(hour: int) -> list[tuple[str, str, Any]]:
    return [("arrived", ">=", at_micros(hour)), ("arrived", "<", at_micros(hour + HOUR))]


def _bronze(bronze: Table, hour: int) -> list[dict[str, Any]]:
    found = rows(bronze, _BRONZE, _where(hour)).to_pylist()
    return sorted(found, key=lambda row: (row["arrived"], row["stream"], row["seq"]))


def _records(bronze: Table, hour: int, registry: Registry) -> dict[tuple[str, int], Record | Finding]:
    """Return the hour's ledger records by hub place."""
    subjects = pc.unique(rows(bronze, ["subject"], _where(hour))["subject"])
    said = [subject for subject in subjects.to_pylist() if subject and subject.endswith("._ledger")]
    if not said:
        return {}
    columns = ["domain", "stream", "seq", "arrived", "headers", "payload"]
    found = rows(bronze, columns, [*_where(hour), ("subject", "in", said)]).to_pylist()
    return {
        (row["stream"], row["seq"]): signed_record(
            row["payload"] or b"",
            _header(row["headers"]),
            micros(row["arrived"]) * 1_000,
            registry.get(row["domain"], ()),
            verify,
        )
        for row in found
    }


def _header(headers: bytes | None) -> str | None:
    found = header(headers or b"", H_RECEIPT.encode())
    return None if found is None else found.decode(errors="replace")


def batch_entry(row: Mapping[str, Any]) -> list[Any]:
    """Return what a root signs of a message."""
    return [row[name] for name in _IDENTITY]


def batch_entry_leaf(row: Mapping[str, Any]) -> bytes:
    return batch_leaf(batch_entry(row))


def hour_readings(readings: Table, hour: int) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the sorted leaves of an hour's readings by leaf."""
    found = rows(readings, ["ts", "ts_original", *READING_FIELDS, "domain"], _where(hour))
    for domain in pc.unique(found["domain"]).to_pylist():
        own = found.filter(pc.equal(found["domain"], domain))
        yield domain, sorted(reading_leaves(reading_rows(own).to_pylist()))


def _quarantined(quarantine: Table, hour: int) -> dict[str, int]:
    """Count the refused readings of an hour by leaf; a whole message counts as its header says."""
    counts: dict[str, int] = {}
    for row in rows(quarantine, ["domain", "line", "count"], _where(hour)).to_pylist():
        number = 1 if row["line"] is not None else row["count"] or 1
        counts[row["domain"]] = counts.get(row["domain"], 0) + number
    return counts


def _tree(leaves: Iterable[bytes]) -> list[Any]:
    every = sorted(leaves)
    return [len(every), tree_root(every)]


def _is_own(subject: str) -> bool:
    """Tell whether a message is the agent's and has no readings: a ledger record or a clock correction."""
    return subject.endswith(("._ledger", "._clock"))


def _arrived(found: Sequence[Mapping[str, Any]]) -> int:
    """Count the readings of different messages."""
    counts = {
        (
            row["class"],
            row["run"],
            row["source_identity"] if row["run"] is None else None,
            row["source_seq"] if row["run"] is None else row["n"],
        ): row["count"] or 1
        for row in found
        if not _is_own(row["subject"] or "")
    }
    return sum(counts.values())


def _carry(classes: dict[tuple[str, str], _Class], row: Mapping[str, Any]) -> None:
    """Keep a batch until a record signs it."""
    if row["run"] is None or row["class"] is None or row["domain"] is None:
        return
    state = classes.setdefault((row["domain"], row["class"]), _Class())
    mark = next((mark for mark in state.marks if mark.run == row["run"]), None)
    if mark is None or row["n"] > mark.upto:
        state.carried.setdefault(row["run"], {}).setdefault(row["n"], (row["digest"], row["count"]))
        state.arrived.setdefault(row["run"], micros(row["arrived"]))


def _followed(
    domain: str,
    classes: dict[tuple[str, str], _Class],
    found: Sequence[Mapping[str, Any]],
    records: Mapping[tuple[str, int], Record | Finding],
) -> tuple[list[Any], list[Finding]]:
    """Follow a leaf's chains through an hour; return their marks and the findings."""
    findings = list[Finding]()
    for row in found:
        _carry(classes, row)
    for cls in sorted({row["class"] for row in found if row["class"] is not None}):
        state = classes.setdefault((domain, cls), _Class())
        mine = [row for row in found if row["class"] == cls]
        given, newest = list[Record](), ""
        for row in mine:
            newest = row["run"] or newest
            record = records.get((row["stream"], row["seq"]))
            if isinstance(record, Finding):
                findings.append(record)
            elif record is not None:
                given.append(record)
                newest = record.chain.run
        newest = newest or (state.marks[-1].run if state.marks else "")
        followed = follow((domain, cls), state.marks, given, state.carried, newest)
        state.marks = followed.marks
        findings += followed.findings
        _drop(state, newest)
    chains = [
        [cls, min(state.arrived.values(), default=None), [list(mark) for mark in state.marks]]
        for (whose, cls), state in sorted(classes.items())
        if whose == domain
    ]
    return chains, findings


def _drop(state: _Class, newest: str) -> None:
    """Forget batches that a record has signed, and those of earlier runs, which were named."""
    upto = {mark.run: mark.upto for mark in state.marks}
    left = {n: batch for n, batch in state.carried.get(newest, {}).items() if n > upto.get(newest, 0)}
    state.carried = {newest: left} if left else {}
    state.arrived = {newest: state.arrived[newest]} if left else {}


def hour_of(moment: datetime) -> int:
    """Return the start of a moment's hour in microseconds since 1970."""
    return micros(moment) // HOUR * HOUR
