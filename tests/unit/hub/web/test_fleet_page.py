"""The fleet page: what is asked of it, and that nothing which a leaf says becomes markup."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hub import fleet_rows
from agent.hub.web import FleetPages
from agent.hub.web.fleet_page import ROWS, Question, fleet_page, question_of
from agent.hub.web.html import POLICY, STYLE, element, join

NOW = datetime(2026, 11, 21, 12, 0, 30, tzinfo=UTC)
HOSTILE = "<script>alert('1')</script>\"><img src=x onerror=alert(1)>\x1b[2J\u202e&amp;"
"""What a leaf may send as a version of its own, say."""


def leaf(word: str = "flowing", **given: Any) -> dict[str, Any]:
    held = {"epoch": "e", "stream": "TELEMETRY_0", "cursor": 10, "last": 12, "active": 0.4, "error": ""}
    readings = {"accepted": 1234, "stored": 1230, "refused": 4}
    normal = {**held, "seconds_to_loss": "inf", "ledger": {"run": "r1", "n": 9, "readings": readings}}
    row = {"state": f"it is {word}", "word": word, "linked": word == "flowing"}
    named = {"machine": "m", "run": "r1", "versions": {"agent": "0.1.0"}}
    return {**row, **named, "announced_at": NOW.isoformat(), "classes": {"normal": normal}, **given}


def page(leaves: dict[str, Any], question: Question) -> str:
    known = {"state": "well", "leaves": leaves}
    rows = fleet_rows.rows_of(known, NOW)
    return fleet_page(known, rows, question.ordered(question.fitting(rows)), question, NOW)


async def answer_of(fleet: dict[str, Any], path: str, status: int = 200) -> str:
    """The page of a fleet at a path."""
    answer = await FleetPages(lambda: {"fleet": fleet}, lambda _: None).answer(path, {})
    assert answer is not None
    assert answer.status == status
    return answer.kept.partition(b"\r\n\r\n")[2].decode()


def domains(text: str) -> list[str]:
    return re.findall(r'<a href="/fleet/([^"]+)">', text)


class Elements(HTMLParser):
    """The names of all elements, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name == "style"]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("path", ["/fleet", "/fleet/a-1"])
async def test_what_a_leaf_says_is_text_whatever_it_holds(path: str) -> None:
    hostile = leaf("trouble", state=HOSTILE, machine=HOSTILE, versions={HOSTILE: HOSTILE}, run=HOSTILE)
    hostile["classes"] = {HOSTILE: {**hostile["classes"]["normal"], "error": HOSTILE}}
    answer = await answer_of({"state": HOSTILE, "leaves": {"a-1": hostile}}, path)

    found = Elements(answer)
    assert not found.names & {"script", "img"}
    assert "<script>alert('1')</script>" in found.text
    assert "\x1b" not in found.text
    assert "\u202e" not in found.text


async def test_a_domain_cannot_break_out_of_its_link() -> None:
    text = page({HOSTILE: leaf()}, Question(domain=HOSTILE))

    assert not Elements(text).names & {"script", "img"}
    assert await answer_of({}, f"/fleet/{HOSTILE}", 404)


@given(st.text(), st.text())
def test_text_comes_out_as_it_went_in_and_never_as_an_element(attribute: str, content: str) -> None:
    found = Elements(element("p", content, title=attribute))

    assert found.names == {"p"}
    assert found.text == Elements(join(content)).text


@given(st.dictionaries(st.sampled_from(["domain", "state", "sort", "page"]), st.text()))
def test_every_query_is_a_question_and_its_address_asks_the_same(query: dict[str, str]) -> None:
    question = question_of(query)

    assert question_of(dict(parse_qsl(urlsplit(question.path()).query))) == question
    assert question.page >= 1


def test_the_policy_names_the_style_sheet_that_the_page_has_and_nothing_else() -> None:
    (style,) = re.findall("<style>(.*)</style>", page({}, Question()), re.DOTALL)

    assert style == STYLE
    assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() in POLICY
    assert "unsafe" not in POLICY


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["c-3", "b-2", "a-1"]),
        ({"sort": "domain"}, ["a-1", "b-2", "c-3"]),
        ({"sort": "-behind"}, ["c-3", "a-1", "b-2"]),
        ({"sort": "loss"}, ["c-3", "a-1", "b-2"]),
        ({"sort": "-loss"}, ["a-1", "c-3", "b-2"]),
        ({"domain": "-1"}, ["a-1"]),
        ({"domain": "[bc]-?"}, ["c-3", "b-2"]),
        ({"state": "never"}, ["b-2"]),
        ({"state": "away"}, []),
        ({"state": "nonsense", "sort": "-nonsense", "page": "²"}, ["c-3", "b-2", "a-1"]),
    ],
)
def test_the_table_sorts_and_filters_and_what_is_not_known_comes_last(
    query: dict[str, str], expected: list[str]
) -> None:
    slow = leaf("trouble")
    slow["classes"]["normal"] |= {"last": 5000, "seconds_to_loss": 600.0}
    never = {"state": "never seen", "word": "never", "linked": False}
    text = page({"a-1": leaf(), "b-2": never, "c-3": slow}, question_of(query))

    assert domains(text) == expected
    assert ("No leaf fits." in text) is (not expected)


def test_two_thousand_leaves_are_shown_a_bounded_page_at_a_time() -> None:
    leaves = {f"edge-{number:04}": leaf() for number in range(2_000)}
    seen = [domains(page(leaves, Question(sort="domain", page=number))) for number in range(1, 21)]

    assert {len(one) for one in seen} == {ROWS}
    assert [domain for one in seen for domain in one] == sorted(leaves)
    assert domains(page(leaves, Question(sort="domain", page=9_999))) == seen[-1]
    assert "2,000 leaves, page 2 of 20" in page(leaves, Question(page=2))


async def test_a_leaf_has_a_page_with_its_way_to_the_hub_and_its_ledger() -> None:
    text = Elements(await answer_of({"leaves": {"a-1": leaf()}}, "/fleet/a-1")).text
    for said in ("it is flowing", "agent 0.1.0", "TELEMETRY_0", "1,234", "2 messages", "none"):
        assert said in text


async def test_a_hub_that_is_not_ready_has_a_page_that_says_so() -> None:
    assert "has not answered yet" in await answer_of({}, "/fleet")


async def test_a_machine_that_stands_by_sends_its_readers_to_the_one_that_leads() -> None:
    fleet = {"state": "standby: hub-b leads the hub", "standby": True, "aggregates": {}, "leaves": {}}
    answer = await answer_of(fleet, "/fleet")

    assert "hub-b leads the hub" in answer
    assert "the page of the one that leads has the leaves" in answer
    assert 'class="trouble"' not in answer
