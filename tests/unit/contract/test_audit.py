"""What the audit tells the hub's agent: as it was said, in parts that fit a message, and nothing else."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.contract import (
    AUDIT_HOURS,
    AuditedHour,
    AuditedLeaf,
    AuditPart,
    ContractError,
    audit_parts,
    parse_audit_part,
)

HEAD = AuditPart("2026-11-21T10:00:00+00:00", "/srv/lake", False, True, "1 readings missing", ("a stream",))
MAX_PAYLOAD = 2**20
counts = st.integers(0, 2**63 - 1)
leaves = st.builds(
    AuditedLeaf,
    st.from_regex(r"[A-Za-z0-9_-]{1,32}", fullmatch=True),
    *[counts] * 5,
    st.none() | counts,
    *[counts] * 4,
    st.lists(st.text(max_size=40), max_size=3).map(tuple),
    st.lists(st.builds(AuditedHour, *[counts] * 9), max_size=3, unique_by=lambda hour: hour.hour)
    .map(sorted)
    .map(tuple),
)


@settings(deadline=None)
@given(st.lists(leaves, max_size=3, unique_by=lambda leaf: leaf.domain))
def test_a_report_is_read_as_it_was_told_with_the_hours_of_the_leaf_that_is_asked_for(
    told: list[AuditedLeaf],
) -> None:
    (part,) = audit_parts(HEAD, told)
    plain = parse_audit_part(part.encode())
    assert [(leaf.domain, leaf.hours) for leaf in plain.leaves] == [(leaf.domain, ()) for leaf in part.leaves]
    for at, leaf in enumerate(part.leaves):
        assert parse_audit_part(part.encode(), leaf.domain).leaves[at] == leaf


def test_ten_thousand_leaves_go_in_parts_that_fit_a_message_and_a_long_report_is_cut() -> None:
    hours = tuple(
        AuditedHour(500_000 + at, 4_000 + at, at, 0, at, 0, 0, 0, 0) for at in range(AUDIT_HOURS + 9)
    )
    said = tuple(f"{at} " + "x" * 5_000 for at in range(50))
    told = [
        AuditedLeaf(f"plant-{at:05}", 10**9 + at, hours=hours, findings=said[:12]) for at in range(10_000)
    ]
    parts = list(audit_parts(HEAD, told))
    data = [part.encode() for part in parts]
    assert max(map(len, data)) < MAX_PAYLOAD
    assert sum(map(len, data)) < 16 * MAX_PAYLOAD, "what the hub's agent keeps"
    assert [(part.part, part.parts) for part in parts] == [(at, len(parts)) for at in range(len(parts))]
    first = parse_audit_part(data[0], "plant-00000").leaves[0]
    assert first.hours == hours[-AUDIT_HOURS:]
    assert len(first.findings) == 10
    assert sum(len(part.leaves) for part in parts) == 10_000


def row(**changed: Any) -> bytes:
    part = AuditPart(HEAD.at, "/srv", False, False, "well", leaves=(AuditedLeaf("edge-1"),))
    return zlib.compress(json.dumps(json.loads(zlib.decompress(part.encode())) | changed).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        row()[:-8],
        row(v=2),
        row(at="yesterday"),
        row(at="2026-11-21T10:00:00"),
        row(part=1, parts=1),
        row(parts=5_000),
        row(leaves=[1]),
        row(leaves=[{"domain": "a.b"}]),
        row(leaves=[{"domain": "edge-1"}]),
        row(findings="no"),
        zlib.compress(b" " * 5 * 2**20),
    ],
)
def test_what_breaks_the_contract_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(ContractError, match=r"audited|record|domain"):
        parse_audit_part(data)


def test_an_hour_that_is_none_is_refused_when_it_is_asked_for() -> None:
    leaf = json.loads(zlib.decompress(row()))["leaves"][0]
    for hours in ([[1, 2]], [[-1] * 9], ["x"], [[1.5] * 9]):
        with pytest.raises(ContractError):
            parse_audit_part(row(leaves=[leaf | {"hours": hours}]), "edge-1")
