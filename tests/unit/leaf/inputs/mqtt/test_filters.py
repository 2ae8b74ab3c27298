"""Topic filters compared by their topics, against what paho says of each topic."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from paho.mqtt.client import topic_matches_sub

from agent.base.metrics import Metrics
from agent.config import ConfigError, load
from agent.leaf.inputs import OPTIONS
from agent.leaf.inputs.mqtt import MqttOptions, TopicTemplate
from agent.leaf.inputs.mqtt.filters import covers, overlap, widest
from agent.leaf.inputs.mqtt.input import MqttInput
from tests.unit.config.test_load import LEAF

TOPICS = [
    "/".join(levels) for depth in (1, 2, 3, 4) for levels in product(("a", "$b", "", "c"), repeat=depth)
]
STEMS = ["/".join(levels) for depth in (1, 2) for levels in product(("a", "$b", "", "+"), repeat=depth)]
FILTERS = [filter_ for stem in STEMS if stem for filter_ in (stem, f"{stem}/#")] + ["#", "+/a/+", "a/+/a/#"]
MATCHED = {
    filter_: {topic for topic in TOPICS if topic and topic_matches_sub(filter_, topic)} for filter_ in FILTERS
}


def test_filters_overlap_where_a_topic_matches_both_and_cover_where_each_topic_does() -> None:
    for first, second in product(FILTERS, repeat=2):
        assert overlap(first, second) == bool(MATCHED[first] & MATCHED[second]), (first, second)
        if (first, second) != ("+/#", "#"):  # the same topics, of which the shorter is taken for the wider
            assert covers(first, second) == (MATCHED[first] >= MATCHED[second]), (first, second)


@pytest.mark.parametrize(
    ("filters", "subscribed"),
    [
        (["plant/+/temp", "plant/#"], ["plant/#"]),
        (["a/+/c", "a/b/+", "a/#"], ["a/#"]),
        (["plant/#", "$SYS/#", "other"], ["plant/#", "$SYS/#", "other"]),
        (["$share/g/a/b", "$share/g/a/#"], ["$share/g/a/#"]),
    ],
)
def test_only_filters_that_no_other_covers_are_subscribed_to(
    filters: list[str], subscribed: list[str]
) -> None:
    options = MqttOptions(url="mqtt://h", topics=[TopicTemplate(filter=filter_) for filter_ in filters])
    assert MqttInput(options, Metrics()).check() == []
    assert options.filters == subscribed == widest(filters)


@pytest.mark.parametrize(
    ("filters", "text"),
    [
        (["a/+", "+/b"], "overlap"),
        (["a/b", "$share/g/a/#"], "overlap"),
        (["$share/g/a/b", "$share/h/a/b"], "no effect"),
        (["$queue/a/#", "a/+/c/#"], "no effect"),
        (["a/#", "a"], "no effect"),
        (["a/#", "a/#"], "no effect"),
        (["#", "+/+"], "no effect"),
    ],
)
def test_filters_of_which_a_broker_may_send_copies_are_refused(filters: list[str], text: str) -> None:
    options = MqttOptions(url="mqtt://h", topics=[TopicTemplate(filter=filter_) for filter_ in filters])
    assert any(text in mistake for mistake in MqttInput(options, Metrics()).check())


def test_a_wildcard_does_not_name_topics_that_begin_with_a_dollar() -> None:
    topics = [TopicTemplate(filter="#", metric="any"), TopicTemplate(filter="$SYS/#", metric="system")]
    options = MqttOptions(url="mqtt://h", topics=topics)
    assert MqttInput(options, Metrics()).check() == []
    assert not topics[0].matches("$SYS/broker/uptime")


def _two(first: str, second: str) -> str:
    return LEAF + f'[[input]]\nname = "a"\n{first}\n[[input]]\nname = "b"\n{second}\n'


def _mqtt(url: str, filter_: str, more: str = "") -> str:
    return f'type = "mqtt"\nurl = "{url}"\ntopics = [{{ filter = "{filter_}" }}]\n{more}'


def _nats(filter_: str, more: str = "") -> str:
    return f'type = "nats"\nsubjects = [{{ filter = "{filter_}" }}]\n{more}'


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (_mqtt("mqtt://localhost", "a/+"), _mqtt("mqtt://127.0.0.1:1883", "+/b"), "both receive"),
        (_mqtt("mqtt://H", "a/#"), _mqtt("mqtt://h:1883", "$share/g/a/b"), "both receive"),
        (
            _mqtt("mqtt://h", "a", 'client_id = "c"'),
            _mqtt("mqtt://h", "b", 'client_id = "c"'),
            "one client_id",
        ),
        (_nats("a.*"), _nats("a.b"), "both receive"),
        (_nats("a.>", 'queue = "q"'), _nats("a.b"), "both receive"),
        (_mqtt("mqtt://h", "a/#"), _mqtt("mqtt://h:1884", "a/#"), None),
        (_mqtt("mqtt://h", "$share/g/a/#"), _mqtt("mqtt://h", "$share/g/a/#"), None),
        (_mqtt("mqtt://h", "a/#"), _mqtt("mqtt://h", "b/#"), None),
        (_nats("a.>", 'queue = "q"'), _nats("a.b", 'queue = "q"'), None),
        (_nats("a.*"), _nats("a.*.c"), None),
    ],
)
def test_two_inputs_that_receive_the_same_messages_are_refused(
    tmp_path: Path, first: str, second: str, text: str | None
) -> None:
    file = tmp_path / "petiole.toml"
    file.write_text(_two(first, second))
    if text is None:
        load(file, OPTIONS)
        return
    with pytest.raises(ConfigError, match=text) as refused:
        load(file, OPTIONS)
    assert "beside input[1]" in str(refused.value)
