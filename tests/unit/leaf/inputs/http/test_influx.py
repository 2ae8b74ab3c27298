"""Which bodies of line protocol are decoded in one step, and how much may come of one that is."""

from __future__ import annotations

import pytest

from agent.base.http.response import Response
from agent.leaf.inputs.http.influx import InfluxRoute
from agent.leaf.inputs.http.limits import line_limits
from agent.leaf.inputs.http.request import RequestHead
from agent.leaf.inputs.http.route import RouteSettings

HEAD = RequestHead("/write", False, None, None, line_limits(1 << 20))
DENSE = b"m,tag=" + b"x" * 500 + b" " + b",".join(b"f%d=1" % n for n in range(25))


def route(body: int = 1 << 20) -> InfluxRoute:
    return InfluxRoute(RouteSettings("edge-1", body, "host", otlp=False, success=Response(204)))


def test_a_small_body_of_good_lines_is_decoded_in_one_step() -> None:
    decoded = route().decode_at_once(b"m,host=a v=1 1700000000000000000\nm,host=b v=2", HEAD)
    assert decoded is not None
    assert decoded.count == 2


@pytest.mark.parametrize(
    "body",
    [b"m v=1\n" * 400, b"m v=1\nm v", b"", DENSE + b"\n" + DENSE],
    ids=["long", "a bad line", "no line", "far more readings than bytes"],
)
def test_any_other_body_is_left_to_the_steps_that_count_what_they_hold(body: bytes) -> None:
    assert route().decode_at_once(body, HEAD) is None


def test_what_comes_of_a_small_body_is_no_more_than_the_largest_body() -> None:
    body = b"m,tag=" + b"x" * 100 + b" " + b",".join(b"f%d=1" % n for n in range(25))
    assert route().decode_at_once(body, HEAD) is not None
    assert route().decode_at_once(body, HEAD._replace(limits=line_limits(1024))) is None
