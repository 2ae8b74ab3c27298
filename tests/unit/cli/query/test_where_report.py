"""What `petiole where` makes of what it saw."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from agent.cli.query.streams import AggregatePosition, HubBacklog
from agent.cli.query.where_reasons import DomainObservation, LeafReport, report
from agent.cli.query.where_report import STAGES, WhereReport
from agent.contract import Exit, WaitingMessage
from hub_jobs.audit.account import Account
from hub_jobs.where import DeviceCounts, DomainFindings, Sums

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
WELL = Sums(accepted=100, stored=100, at_hub=100, in_bronze=100, in_readings=98, quarantined=2)
ACCOUNT = Account("d", "normal", "r", 100, 100, 100, 0, 98, 2, 0, 0, 0, 0, 0)
HUB = HubBacklog(places=[AggregatePosition("TELEMETRY_0", 90, 1, 95)])


def _leaf(accepted: int, stored: int, run: str = "r", sentence: str = "not linked") -> LeafReport:
    readings = {"accepted": accepted, "stored": stored, "refused": 0, "dead": 0}
    return LeafReport(sentence, {"normal": {"run": run, "readings": readings}}, {"normal": 3})


def _report(sums: Sums = WELL, leaf: LeafReport | None = None, **given: Any) -> WhereReport:
    tables = DomainFindings({"normal": sums}, {("normal", "r"): ACCOUNT}, **given)
    return report("d", AT, DomainObservation(leaf, HUB, tables))


def _told(report_: WhereReport) -> list[tuple[str, int, bool]]:
    return [(finding.between[0], finding.readings, finding.grave) for finding in report_.reasons]


def test_what_is_in_order_needs_no_reason() -> None:
    answer = _report(reasons={"bad line": 2})

    assert (answer.exit, answer.verdict(), answer.reasons) == (
        Exit.WELL,
        "nothing is missing, nothing is doubled",
        [],
    )
    assert answer.explained == ["in quarantine: 2 bad line"]
    assert [finding["readings"] for finding in answer.as_json()["classes"]["normal"].values()] == [
        *[100] * 4,
        98,
        2,
    ]


def test_of_what_could_not_be_looked_at_nothing_is_said_to_be_in_order() -> None:
    tables = DomainFindings({"normal": WELL}, {("normal", "r"): ACCOUNT})
    answer = report("d", AT, DomainObservation(None, None, tables))
    answer.unseen, answer.failed = ["the hub's streams"], True

    assert answer.verdict() == "of what could be looked at, nothing is missing, nothing is doubled"
    assert answer.exit == Exit.UNREACHABLE
    counts = answer.classes["normal"]
    assert [counts[stage].text() for stage in STAGES] == ["≥ 100", "≥ 100", "≥ 100", "100", "98", "2"]


def test_what_the_leaf_and_the_hub_told_is_all_there_is() -> None:
    counts = _report(leaf=_leaf(100, 100)).classes["normal"]
    assert not any(count.bound for count in counts.values())


@pytest.mark.parametrize(
    ("sums", "told"),
    [
        ({"refused": 5, "refused_late": 2}, [("accepted", 3, False), ("accepted", 2, False)]),
        ({"dead": 4}, [("accepted", 4, False)]),
        ({"open_tail": 6}, [("accepted", 6, False)]),
        ({"discarded": 7}, [("stored", 7, False)]),
        ({"never_came": 8}, [("stored", 8, True)]),
        ({"waiting": 9}, [("at the hub", 9, False)]),
        ({"pending": 1}, [("in bronze", 1, False)]),
        ({"missing": 2, "doubled": 3}, [("in bronze", 2, True), ("in bronze", 3, True)]),
    ],
)
def test_each_difference_has_its_reason(sums: dict[str, int], told: list[tuple[str, int, bool]]) -> None:
    answer = _report(replace(WELL, **sums))

    assert _told(answer) == told
    assert answer.exit == (Exit.LOSS if any(grave for _, _, grave in told) else Exit.WELL)


def test_what_the_leaf_announced_beyond_its_records_is_still_there() -> None:
    answer = _report(leaf=_leaf(130, 125))

    assert _told(answer) == [("accepted", 5, False), ("stored", 25, False)]
    assert "25 are still on d (3 messages): not linked" in "\n".join(
        finding.text for finding in answer.lines(None, None)
    )
    counts = answer.classes["normal"]
    assert (counts["accepted"].readings, counts["stored"].readings, counts["at the hub"].readings) == (
        130,
        125,
        100,
    )


def test_a_run_that_no_record_at_the_hub_speaks_of_is_all_still_on_the_leaf() -> None:
    assert ("stored", 30, False) in _told(_report(leaf=_leaf(30, 30, run="new")))


def test_a_gap_alone_is_a_loss() -> None:
    answer = _report(lost=["source x: sequences 3 never came"])

    assert (answer.exit, answer.verdict()) == (Exit.LOSS, "something is missing or doubled without a reason")


def test_without_tables_only_what_is_known_now_is_told_and_nothing_is_judged() -> None:
    held = [WaitingMessage("normal", "r", n, 10, False, 0) for n in (1, 2, 2)]
    dead = WaitingMessage("normal", "r", 3, 5, True, 0)
    answer = report("d", AT, DomainObservation(_leaf(30, 30), HubBacklog([*held, dead])))

    assert answer.exit is Exit.WELL
    assert "the tables were not looked at" in answer.verdict()
    assert {stage: finding.text() for stage, finding in answer.classes["normal"].items()} == {
        "accepted": "≥ 30",
        "stored": "≥ 30",
        "at the hub": "≥ 20",
    }


def test_what_was_asked_for_and_could_not_be_looked_at_shows_in_the_exit_code() -> None:
    answer = _report()
    answer.failed, answer.unseen = True, ["the tables: why"]

    assert answer.exit is Exit.UNREACHABLE
    assert answer.lines(None, None)[-1].text == "not looked at: the tables: why"
    assert _report(replace(WELL, missing=1)).exit is Exit.LOSS


def test_a_device_stands_beside_all_of_its_domain() -> None:
    counts = DeviceCounts(in_bronze=10, in_readings=9, quarantined=1, missing=1, unnamed=2)
    tables = DomainFindings({"normal": WELL})
    answer = report(
        "d", AT, DomainObservation(None, HUB, tables, counts), "pump", "from 2026-11-21T00:00:00Z"
    )

    assert answer.classes["device pump"]["in bronze"].readings == 11
    assert answer.classes["device pump"]["quarantined"].text() == "≥ 1"
    assert answer.classes["all of d"]["in readings"].readings == 98
    assert answer.exit is Exit.LOSS


def test_many_classes_are_shown_together_and_all_of_it_fits_a_small_terminal() -> None:
    tables = DomainFindings({f"c{at}": replace(WELL, waiting=3, pending=2) for at in range(9)})
    tables.lost = [f"d, class c, run {'r' * 40}: batches {at} never came and so on" for at in range(50)]
    answer = report("d", AT, DomainObservation(_leaf(1, 1, sentence="x" * 200), HUB, tables))
    answer.unseen = ["y " * 60]

    shown = [finding.text for finding in answer.lines(23, 80)]

    assert len(shown) <= 23
    assert max(map(len, shown)) <= 80
    assert any(line.startswith("accepted") and line.endswith("901") for line in shown), shown
    assert any("and more" in line for line in shown)
    assert len(json.dumps(answer.as_json())) > 1_000
    assert [line.split("  ")[0] for line in shown if line.startswith(STAGES) and line[-1] != ":"] == [*STAGES]
