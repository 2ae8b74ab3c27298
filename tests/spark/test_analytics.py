"""The questions of docs/analytics.md: each query is taken from the document and run on a plant of which one
can tell the answer, and the answer must be the table that stands below the query."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.contract import Exit, Ledger, Readings, StreamState, clock_subject, ledger_subject
from hub_jobs.audit import run as audit
from hub_jobs.rollup import run as rollup
from tests.spark.lakes import commit
from tests.spark.plants import Sent, batch, bronze, correction, every, fill, whence
from tests.spark.readers import duckdb_with_delta
from tests.unit.hub_jobs.rows import RUN, row

pytestmark = pytest.mark.spark

DOCUMENT = Path(__file__).parents[2] / "docs" / "analytics.md"
LAKE = "/srv/lake"
DAY = datetime(2026, 11, 20, tzinfo=UTC)
NIGHT, MORNING = DAY + timedelta(hours=22), DAY + timedelta(hours=30)
LINK_UP = DAY + timedelta(hours=31, minutes=10)
BOOTED = DAY + timedelta(hours=27, minutes=55)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
QUARTER = 15 * MINUTE


class Question(NamedTuple):
    """A question of the document: its query in a language, and the answer, names first."""

    title: str
    language: str
    query: str
    answer: list[list[str]]


def questions() -> list[Question]:
    """All that the document asks."""
    found = []
    for part in re.split(r"^## (?=[0-9]+\. )", DOCUMENT.read_text(), flags=re.M)[1:]:
        ((language, query),) = re.findall(r"^```(.+?)\n(.*?)^```", part, flags=re.M | re.S)
        lines = [line for line in part.splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        found.append(Question(part.splitlines()[0], language, query, [cells[0], *cells[2:]]))
    return found


def at(hours: float, minutes: int = 0) -> datetime:
    """A moment so long after the midnight with which the 20th begins."""
    return DAY + timedelta(hours=hours, minutes=minutes)


def bearings() -> Iterable[Sent]:
    """A night of four pumps, by the minute: who is hot when."""
    hot = {
        "pump-1": [(at(25, 10), at(25, 34), 91.5)],
        "pump-2": [(at(26), at(26, 5), 91.5)],
        "pump-3": [(at(27), at(27, 5), 91.5), (at(27, 20), at(27, 24), 91.5)],
        "pump-4": [(at(28), at(28, 15), 88.0)],
    }
    for device, stretches in hot.items():
        for ts in every(NIGHT, MORNING, MINUTE):
            if device == "pump-3" and at(27, 5) < ts < at(27, 20):
                continue
            value = next((value for first, last, value in stretches if first <= ts <= last), 60.0)
            sent = Sent(ts, device, "bearing_temp", value, domain="north")
            if device == "pump-4":
                away = ts >= at(28)
                sent = sent._replace(
                    domain="south", late=LINK_UP - ts if away else sent.late, booted=BOOTED if away else None
                )
            elif ts == at(23, 30):
                sent = sent._replace(late=20 * MINUTE)
            yield sent


def energy() -> Iterable[Sent]:
    """A counter in Wh that grows by shifts, and is exchanged for a new one at 15:00."""
    total = 1e6
    for ts in every(at(4, 45), at(29), QUARTER):
        grown = 250.0 if 5 <= ts.hour < 13 else 500.0 if 13 <= ts.hour < 21 else 100.0
        total = grown if ts == at(15) else total + grown
        yield Sent(ts, "pump-1", "energy_wh_total", total, domain="north")


def tanks() -> Iterable[Sent]:
    """One that is stuck since midnight, one that is well, one that is empty."""
    for number, ts in enumerate(every(DAY, MORNING, QUARTER)):
        level = 41.0 + number % 4
        yield Sent(ts, "tank-1", "level", 42.5 if ts >= at(24) else level, domain="north")
        yield Sent(ts, "tank-2", "level", level, domain="north")
        yield Sent(ts, "tank-3", "level", 0.0, domain="north")


def flows() -> Iterable[Sent]:
    """Twenty minutes in which power goes with flow, or has nothing to do with it."""
    for minute in range(20):
        flow, other = (0.0, 1.0, 0.0, -1.0)[minute % 4], (1.0, 0.0, -1.0, 0.0)[minute % 4]
        for device, power in (("pump-1", 2 * flow + 5), ("pump-2", other)):
            for second in (0, 20, 40):
                yield Sent(at(10, minute) + timedelta(seconds=second), device, "flow", flow, domain="north")
            for second in (10, 40):
                ts = at(10, minute) + timedelta(seconds=second)
                if (device, minute) != ("pump-1", 7):
                    yield Sent(ts, device, "power", power, domain="north")


def pressures() -> Iterable[Sent]:
    """The same hours of two weeks: one pump has drifted."""
    for week, second in ((at(24) - timedelta(days=7), 3.0), (at(24), 3.5)):
        for number, ts in enumerate(every(week, week + 6 * HOUR, QUARTER)):
            noise = 0.1 if number % 2 else -0.1
            yield Sent(ts, "pump-1", "pressure", 5.0 + noise, domain="north")
            yield Sent(ts, "pump-2", "pressure", second + noise, domain="north")


def states() -> Iterable[Sent]:
    """Two failures and a planned stop; some states are told again."""
    told = {
        at(-4): "running", at(6): "fault", at(6, 30): "fault", at(7): "running", at(8): "running",
        at(12): "stopped", at(14): "running", at(18): "fault", at(18, 30): "running",
    }  # fmt: skip
    for ts, state in told.items():
        yield Sent(ts, "pump-1", "state", state, domain="north")
    yield Sent(at(25), "pump-4", "valve_open", True, domain="south")
    yield Sent(at(26), "pump-4", "state", "running", domain="south")
    yield Sent(at(27), "pump-4", "flow", 7.0, domain="south")
    # Its clock is half an hour fast.
    yield Sent(at(31, 50), "pump-4", "flow", 9.0, -30 * MINUTE, domain="south")


def plant() -> list[dict[str, Any]]:
    """All of it as it comes to bronze, with a line that is not a reading, a batch that never comes, what the
    agents say of that, and of the clock."""
    rows = bronze([*bearings(), *energy(), *tanks(), *flows(), *pressures(), *states()])
    last = {row["domain"]: row["n"] for row in rows}
    counts = {name: sum(row["count"] for row in rows if row["domain"] == name) for name in last}
    rows.append(batch(b"no reading\n", last["north"] + 1, "north", (at(9), at(9))))
    for domain, lacking in (("north", 0), ("south", 5)):
        n, stored = last[domain] + 1, counts[domain] + (1 if domain == "north" else lacking)
        said = Readings(accepted=stored, stored=stored)
        ledger = Ledger(domain, "normal", RUN, n, ((1, n),), said, StreamState("now", 1, n), final=True)
        place = whence(domain, 100_000, LINK_UP + 30 * MINUTE)
        rows.append(row(ledger.encode(), ledger_subject(domain, "normal"), {}, **place))
    clock = correction("south", BOOTED, LINK_UP)
    place = whence("south", 100_001, LINK_UP)
    rows.append(row(clock.encode(), clock_subject("south", "normal"), {}, **place))
    return rows


def audited_before(lake: Path) -> None:
    """What an audit said while nothing had been refined yet."""
    said = {"at": at(20), "domain": "north", "class": "normal", "hour": at(19), "state": "pending"}
    counts = dict.fromkeys(("in_bronze", "pending"), 10)
    commit(lake, "audit_hours", [said | counts])


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spark: object) -> Path:
    """The plant, with all that the jobs make of it."""
    where = tmp_path_factory.mktemp("plant")
    fill(where, plant())
    assert rollup.main(["--lake", str(where), "--quantiles"]) is Exit.WELL
    audited_before(where)
    assert audit.main(["--lake", str(where)]) is Exit.LOSS
    return where


@pytest.fixture(scope="module")
def session(lake: Path) -> Any:
    """The session that the document makes, with its views."""
    (setup,) = re.findall(r"^```python setup\n(.*?)^```", DOCUMENT.read_text(), flags=re.M | re.S)
    defined: dict[str, Any] = {}
    exec(setup.replace(LAKE, str(lake)), defined)
    return defined["spark"]


def asked(spark: Any, lake: Path, question: Question) -> list[list[str]]:
    """What a query answers, as the document would show it."""
    query = question.query.replace(LAKE, str(lake))
    if question.language == "sql":
        found = spark.sql(query)
        names, rows = found.columns, found.collect()
    elif question.language == "sql duckdb":
        done = duckdb_with_delta().execute(query)
        names, rows = [column[0] for column in done.description or ()], done.fetchall()
    else:
        assert question.language == "python polars"
        defined: dict[str, Any] = {}
        exec(query, defined)
        names, rows = defined["answer"].columns, defined["answer"].rows()
    return [list(names), *([shown(cell) for cell in row] for row in rows)]


def shown(cell: Any) -> str:
    """A value as it stands in the document."""
    if cell is None:
        return ""
    if isinstance(cell, datetime):
        return f"{cell.astimezone(UTC):%Y-%m-%d %H:%M}"
    if isinstance(cell, date):
        return cell.isoformat()
    return str(cell + 0.0) if isinstance(cell, float) else str(cell)


def test_there_are_ten_questions_and_each_has_an_answer() -> None:
    assert [question.title.split(".")[0] for question in questions()] == [str(at) for at in range(1, 11)]
    assert all(len(question.answer) > 1 for question in questions())


@pytest.mark.parametrize("question", questions(), ids=lambda question: question.title.split(".")[0])
def test_the_answer_is_what_the_document_says(session: Any, lake: Path, question: Question) -> None:
    assert asked(session, lake, question) == question.answer
