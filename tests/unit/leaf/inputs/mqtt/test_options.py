"""From topics to device and metric."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from agent.leaf.inputs.formats.message import TopicNames
from agent.leaf.inputs.mqtt import TopicTemplate, template_of

LEVELS = st.lists(st.sampled_from(["a", "b", "", "c d"]), min_size=1, max_size=4)
WANTED = st.lists(st.sampled_from(["a", "b", "", "+"]), max_size=3)


@pytest.mark.parametrize(
    ("device", "metric", "place"),
    [
        ("", "{0}", TopicNames(None, "plant/line 1/pump/rpm")),
        ("{3}", "{4}", TopicNames("pump", "rpm")),
        ("{2}-{3}", "{3+}", TopicNames("line 1-pump", "pump.rpm")),
        ("{9}", "", TopicNames(None, None)),
        ("fixed", "m{9}", TopicNames("fixed", "m")),
    ],
)
def test_templates_take_levels_of_the_topic(device: str, metric: str, place: TopicNames) -> None:
    topic = TopicTemplate(filter="plant/#", device=device, metric=metric)
    assert list(topic.problems()) == []
    assert topic.place("plant/line 1/pump/rpm") == place


def test_the_first_entry_that_covers_a_topic_says_what_it_means() -> None:
    topics = [TopicTemplate(filter="a/+", metric="1"), TopicTemplate(filter="$share/all/a/#", metric="2")]
    assert template_of(topics, "a/b") == topics[0]
    assert template_of(topics, "a/b/c") == topics[1]
    assert template_of(topics, "b") is None


@given(LEVELS, WANTED, st.booleans())
def test_a_filter_covers_what_it_covers_for_other_clients(
    levels: list[str], wanted: list[str], rest: bool
) -> None:
    filter_ = "/".join([*wanted, "#"] if rest else wanted)
    assume(filter_)
    assert list(TopicTemplate(filter=filter_).problems()) == []
    topic = "/".join(levels)
    assert TopicTemplate(filter=filter_).matches(topic) == topic_matches_sub(filter_, topic)


@pytest.mark.parametrize("filter_", ["", "#/a", "a#", "a/+b", "a\n", "x" * 65_536])
def test_what_is_no_filter_is_refused(filter_: str) -> None:
    (told,) = TopicTemplate(filter=filter_).problems()
    assert "not a topic filter" in told


@pytest.mark.parametrize("template", ["{", "{x}", "{-1}", "{100}", "{1", "a}"])
def test_what_is_no_template_is_refused(template: str) -> None:
    told = TopicTemplate(filter="a", device=template, metric=template).problems()
    assert [one.split()[0] for one in told] == ["device", "metric"]
