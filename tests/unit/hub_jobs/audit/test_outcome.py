"""What an audit found, summed by leaf: for the hub's agent and for Prometheus."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from agent.contract import AuditedHour, AuditedLeaf
from hub_jobs.audit.account import Account
from hub_jobs.audit.gap_reasons import Gap
from hub_jobs.audit.outcome import head_of, leaves_of
from hub_jobs.audit.report import AuditReport
from hub_jobs.audit.rows.hours import Hour
from hub_jobs.metrics import JobMetrics
from hub_jobs.tables.gap_notes import GapReason

AT = datetime(2026, 11, 21, 10, 30, tzinfo=UTC)
HOUR = datetime(2026, 11, 21, 9, tzinfo=UTC)
NUMBER = int(HOUR.timestamp()) // 3_600


def account(domain: str | None, cls: str = "normal", **counts: int | None) -> Account:
    names = ("accepted", "stored", "in_bronze", "pending", "in_readings", "quarantined", "missing", "doubled")
    zero: dict[str, int | None] = dict.fromkeys((*names, "discarded", "refused", "open_tail", "dead"), 0)
    return Account(domain, cls, "run", **{"on_the_way": 0, **zero, **counts})  # type: ignore[arg-type]


def test_a_leaf_is_the_sum_of_its_runs_and_classes_and_what_is_of_none_is_left_out() -> None:
    accounts = [
        replace(account("a", accepted=10, in_readings=6, quarantined=1, missing=3), findings=["three"]),
        account("a", "bulk", accepted=5, discarded=2, refused=1, dead=1, open_tail=1),
        account("b", accepted=1, in_readings=1, on_the_way=None),
        account(None, accepted=7),
    ]
    hours = [
        Hour("a", "normal", HOUR, in_bronze=10, in_readings=6, quarantined=1, missing=3, lost=1),
        Hour("a", "bulk", HOUR, dead=1, pending=2),
        Hour("a", "bulk", HOUR + timedelta(hours=1), on_the_way=4),
        Hour(None, None, HOUR, in_readings=9),
    ]
    first, second = leaves_of(AuditReport(AT, accounts, [], [], hours))
    assert first == AuditedLeaf(
        "a",
        accepted=15,
        in_table=6,
        named=5,
        open=1,
        on_the_way=0,
        missing=3,
        findings=("three",),
        hours=(
            AuditedHour(NUMBER, 6, 2, 2, 0, 3, 0, 1, 0),
            AuditedHour(NUMBER + 1, 0, 0, 0, 0, 0, 0, 0, 4),
        ),
    )
    assert (first.lost, second.lost, second.on_the_way) == (True, False, None)


def test_a_gap_of_a_leafs_stream_is_its_loss_if_it_has_no_reason() -> None:
    gaps = [
        Gap("source", "TEL_a_normal/abc", [(4, 6)], GapReason.UNKNOWN),
        Gap("source", "TEL_a_normal/abc", [(9, 9)], GapReason.DISCARDED, lost=False),
        Gap("source", "TEL_elsewhere_normal/abc", [(1, 1)], GapReason.UNKNOWN),
        Gap("hub", "TELEMETRY_0/2026", [(1, 8)], GapReason.UNKNOWN),
    ]
    report = AuditReport(AT, [account("a"), account("b")], gaps, [])
    first, second = leaves_of(report)
    assert (first.gaps, second.gaps) == (3, 0)
    assert first.lost
    assert "sequences 4-6" in first.findings[0]
    head = head_of(report, Path("/srv/lake"), deep=True)
    assert head.lost, "the hub's own gap is of no leaf, and told with the whole"
    assert any("hub stream TELEMETRY_0/2026" in sentence for sentence in head.findings)
    assert (head.at, head.lake, head.deep) == ("2026-11-21T10:30:00+00:00", "/srv/lake", True)


def test_a_file_has_the_leaves_with_a_loss_first_and_keeps_them_when_a_run_fails(tmp_path: Path) -> None:
    told = [AuditedLeaf(f"leaf-{at:05}", accepted=at) for at in range(3_000)]
    told.append(AuditedLeaf("zulu", accepted=9, missing=2))
    metrics = JobMetrics("audit", tmp_path)
    metrics.set_audit(head_of(AuditReport(AT, [], [], []), tmp_path, deep=False), told)
    metrics.write()
    before = read(tmp_path)
    assert len([name for name, _ in before if name == "petiole_audit_accounted"]) == 1_000
    assert before["petiole_audit_missing_readings", "zulu"] == 2
    assert (before["petiole_audit_accounted", "zulu"], before["petiole_audit_accounted", "leaf-00001"]) == (
        0,
        1,
    )
    assert before["petiole_audit_timestamp_seconds", "zulu"] == AT.timestamp()

    JobMetrics("audit", tmp_path).write()
    assert read(tmp_path) == before


def read(directory: Path) -> dict[tuple[str, str], float]:
    text = (directory / "petiole_job_audit.prom").read_text()
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples if "domain" in sample.labels]
    return {(sample.name, sample.labels["domain"]): sample.value for sample in samples}
