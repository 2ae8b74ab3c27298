"""`petiole proof` over real tables: what it says, and that a check sees whatever is not as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from agent.cli.main import app
from agent.cli.query.proof_page import ProofError, evidence_of
from agent.contract import Exit
from hub_jobs.audit import run as audit
from hub_jobs.maintain import run as maintain
from tests.spark.lakes import add_bronze
from tests.unit.hub_jobs.audit.test_audit import SAID, fill
from tests.unit.hub_jobs.damage import flip
from tests.unit.hub_jobs.refined import refine_all
from tests.unit.hub_jobs.rows import ARRIVED_US, direct_row

HOUR = "2026-11-18T12:00:00"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Three batches of ten readings, a device's message, and an audit that has seen them."""
    lake = tmp_path / "lake"
    fill(lake, SAID, 1, 2, 3)
    add_bronze(lake, [direct_row(b"1", source_seq=5)])
    refine_all(lake)
    assert audit.main(["--lake", str(lake)]) == Exit.WELL
    return lake


def petiole(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["proof", *map(str, words)])


def made(lake: Path, *options: str) -> Path:
    """A proof of all of the leaf."""
    file = lake.with_suffix(".html")
    ended = petiole("edge-1", "--lake", lake, "--out", file, *options)
    assert ended.exit_code == Exit.WELL, ended.output
    return file


def checked(lake: Path, file: Path) -> tuple[int, str]:
    ended = petiole("--check", file, "--lake", lake)
    return ended.exit_code, ended.output


def test_a_proof_says_what_is_there_and_a_check_finds_it_so(lake: Path) -> None:
    file = made(lake)
    text = file.read_text()
    assert "Complete: 31 readings are in the table, each once; nothing is missing" in text
    found = evidence_of(text)
    assert found["classes"]["normal"]["in_readings"] == 31
    assert sum(count for count, _ in found["contents"]["readings"].values()) == 31
    assert found["audit"]["accounts"]
    assert sum(hour["in_readings"] for hour in found["audit"]["hours"]) == 31
    assert {row["table"] for row in found["tables"]} >= {"bronze", "readings", "audit"}
    assert "<script" not in text
    code, said = checked(lake, file)
    assert code == Exit.WELL
    assert said.splitlines() == [
        "files: 3 as they were, 0 gone, 0 altered",
        "edge-1: 31 readings, figures and contents are as this proof says",
    ]


def test_a_proof_holds_after_the_files_were_written_together(lake: Path) -> None:
    file = made(lake)
    bronze = DeltaTable(str(lake / "bronze"))
    bronze.optimize.compact()
    bronze.vacuum(0, dry_run=False, enforce_retention_duration=False)
    code, said = checked(lake, file)
    assert code == Exit.WELL, said
    assert "0 altered" in said
    assert "0 gone" not in said, "or this shows nothing"


@pytest.mark.parametrize(
    ("table", "change", "said"),
    [
        ("readings", {"value": 7.0}, "with other contents"),
        ("readings", {"device": "pump-9"}, "with other contents"),
        ("bronze", {"count": 11}, "with other contents"),
    ],
)
def test_a_check_names_the_hour_of_what_was_altered(
    lake: Path, table: str, change: dict[str, Any], said: str
) -> None:
    file = made(lake)
    DeltaTable(str(lake / table)).update(new_values=change, predicate="n = 2")
    code, output = checked(lake, file)
    assert code == Exit.LOSS
    (line,) = [line for line in output.splitlines() if line.startswith(f"{table}, hour ")]
    assert said in line
    assert "the tables are not as this proof says" in output


def test_what_is_deleted_is_seen_by_a_check_and_by_the_next_proof(lake: Path) -> None:
    file = made(lake)
    DeltaTable(str(lake / "readings")).delete("n = 2 AND index < 4")
    code, output = checked(lake, file)
    assert code == Exit.LOSS
    assert "class normal, missing: 0 then, 4 now" in output
    ended = petiole("edge-1", "--lake", lake, "--out", file)
    assert ended.exit_code == Exit.LOSS
    assert "Not complete: 27 readings are in the table; 4 missing" in file.read_text()
    assert "batch 2: indexes 0-3 of 10 are missing from readings" in file.read_text()


def test_what_came_later_is_told_and_a_span_leaves_it_out(lake: Path) -> None:
    whole, span = made(lake), lake.with_name("span.html")
    assert petiole("edge-1", "--lake", lake, "--to", HOUR, "--out", span).exit_code == Exit.WELL
    before = evidence_of(span.read_text())["classes"]["normal"]["in_readings"]
    add_bronze(lake, [direct_row(b"2", source_seq=6) | {"arrived": ARRIVED_US + 3 * 3_600_000_000}])
    refine_all(lake)
    code, output = checked(lake, whole)
    assert code == Exit.LOSS
    assert "31 then, 32 now" in output
    assert "readings, hour 2026-11-18T14:00:00+00:00: 0 rows then, 1 now" in output
    assert checked(lake, span)[0] == Exit.WELL
    assert before == 31


def test_what_was_deleted_for_its_age_is_said_to_be(lake: Path) -> None:
    add_bronze(lake, [direct_row(b"2", source_seq=6) | {"arrived": ARRIVED_US + 5 * 3_600_000_000}])
    refine_all(lake)
    assert audit.main(["--lake", str(lake)]) == Exit.WELL, "what came hours before is settled"
    before = made(lake)
    assert maintain.main(["--lake", str(lake), "--keep", "0"]) == Exit.WELL
    after = lake.with_name("after.html")
    assert petiole("edge-1", "--lake", lake, "--out", after).exit_code == Exit.WELL
    assert "Complete as audited: 32 readings came, and 1 are in the table" in after.read_text()
    assert "was deleted for its age, once an audit had found it in order" in after.read_text()
    code, output = checked(lake, before)
    assert code == Exit.LOSS
    assert "readings, hour 2026-11-18T11:00:00+00:00: 31 rows then, 0 now" in output


def test_sequences_that_are_gone_are_not_called_complete_in_any_span(lake: Path) -> None:
    add_bronze(lake, [direct_row(b"2", source_seq=9)])
    refine_all(lake)
    file = lake.with_suffix(".html")
    ended = petiole("edge-1", "--lake", lake, "--out", file)
    assert ended.exit_code == Exit.LOSS
    assert "Not proven: 32 readings are in the table" in ended.output
    assert "sequences 6-8 never came" in file.read_text()


def test_a_page_that_somebody_has_changed_is_no_proof(lake: Path) -> None:
    file = made(lake)
    text = file.read_text()
    for changed in (
        text.replace("Complete: 31", "Complete: 32"),
        text.replace("&quot;in_readings&quot;:31", "&quot;in_readings&quot;:32"),
        text.replace("</body>", "<p>And more.</p></body>"),
    ):
        assert changed != text
        file.write_text(changed)
        with pytest.raises(ProofError, match="does not follow"):
            evidence_of(changed)
        code, output = checked(lake, file)
        assert (code, "somebody has changed" in output) == (Exit.LOSS, True)
    for nothing in ("", "<pre id=evidence>{}</pre>", "<html><pre id=evidence>1</pre>"):
        file.write_text(nothing)
        code, output = checked(lake, file)
        assert (code, "it holds no evidence" in output) == (Exit.LOSS, True)


def test_a_file_with_a_changed_bit_is_named_or_said_to_be_unreadable(lake: Path) -> None:
    file = made(lake)
    (part,) = (lake / "readings").glob("*.parquet")
    flip(part, "value")
    code, output = checked(lake, file)
    assert code in (Exit.LOSS, Exit.UNREACHABLE)
    assert part.name in output


def test_a_leaf_that_no_table_has_and_wrong_usage_make_no_proof(lake: Path) -> None:
    file = lake.with_suffix(".html")
    for words in (
        ("edge-9", "--lake", lake, "--out", file),
        ("a.b", "--lake", lake),
        ("edge-1", "--check", file, "--lake", lake),
        ("--check", lake / "none", "--lake", lake),
        ("edge-1", "--lake", lake, "--from", "later"),
    ):
        assert petiole(*words).exit_code == Exit.USAGE, words
    assert not file.exists()
    assert petiole("edge-1", "--lake", lake / "none", "--out", file).exit_code == Exit.UNREACHABLE
