"""Prometheus remote write to the `http` input: what a sender is answered, and Prometheus itself as sender."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import cramjam
import pytest

from agent.base.metrics import Metrics
from agent.leaf.inputs.http import HttpOptions
from agent.leaf.inputs.http.input import HttpInput
from agent.leaf.intake import RefusalReason, RefusedError, UnknownOutcomeError
from tests.harness.http_harness import Served, serving
from tests.harness.remote_write import HEADERS, PATH, STALE, V2, packed, request_1, request_2
from tests.harness.wait import until

MS = 1_790_000_000_123
UP = {"__name__": "up", "job": "node"}
WRITTEN = "X-Prometheus-Remote-Write-{}-Written"


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(remote_write=True) as one:
        yield one


async def post(served: Served, body: bytes, **headers: str) -> tuple[int, dict[str, Any], Any]:
    """The answer to a body; headers with `_` for `-`."""
    return await served.post(body, HEADERS | {k.replace("_", "-"): v for k, v in headers.items()}, PATH)


async def test_both_versions_are_stored_before_the_answer_and_2_0_is_told_what_was_written(
    served: Served,
) -> None:
    served.core.open.clear()
    status, _, headers = await _answer_once_open(served, packed(request_1([(UP, [(1.0, MS)])])))
    assert (status, WRITTEN.format("Samples") in headers) == (204, False)
    body = packed(request_2([(UP, [(2.0, MS), (STALE, MS + 1)])]))
    status, _, headers = await post(served, body, Content_Type=V2["Content-Type"])
    assert status == 204
    assert [headers[WRITTEN.format(kind)] for kind in ("Samples", "Histograms", "Exemplars")] == [
        "2",
        "0",
        "0",
    ]
    assert served.core.values() == [1, 2]


async def _answer_once_open(served: Served, body: bytes) -> tuple[int, dict[str, Any], Any]:
    asking = asyncio.create_task(post(served, body))
    await until(lambda: served.core.waiting == 1)
    assert not asking.done(), "answered before it is stored"
    served.core.open.set()
    return await asking


async def test_a_body_that_comes_again_is_stored_once_without_a_key(served: Served) -> None:
    first, second = (packed(request_1([(UP, [(1.0, MS + n)])])) for n in range(2))
    assert [(await post(served, body))[0] for body in (first, first, second, first)] == [204] * 4
    assert [row["ts"][-5:] for row in served.core.rows()] == [".123Z", ".124Z"]


async def test_samples_that_cannot_be_taken_are_named_and_the_others_stored(served: Served) -> None:
    request = request_1([(UP, [(1.0, MS)]), ({"job": "nameless"}, [(1.0, MS)])])
    request.timeseries[0].histograms.add(count_int=1, timestamp=MS)
    status, answer, headers = await post(served, packed(request))
    assert (status, headers[WRITTEN.format("Samples")]) == (400, "1")
    assert "set send_native_histograms: false" in answer["error"]
    assert answer["error"].endswith("the other 1 samples are stored")
    assert served.metric("petiole_invalid_requests_total", reason="rejected_samples") == 1
    assert served.metric("petiole_left_out_parts_total", reason="histogram") == 1
    assert served.core.values() == [1]


async def test_a_summary_that_has_seen_nothing_yet_fails_no_request_of_1_0(served: Served) -> None:
    series = [(UP, [(math.nan, MS), (1.0, MS)])]
    assert (await post(served, packed(request_1(series))))[0] == 204
    status, answer, headers = await post(served, packed(request_2(series)), Content_Type=V2["Content-Type"])
    assert (status, headers[WRITTEN.format("Samples")]) == (400, "1")
    assert "1 × a value that is not finite" in answer["error"]
    assert served.metric("petiole_left_out_parts_total", reason="nan") == 2


async def test_metadata_alone_is_well(served: Served) -> None:
    request = request_1([])
    request.metadata.add(metric_family_name="up", help="whether it answers")
    assert (await post(served, packed(request)))[0] == 204
    assert served.core.stored == []


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (RefusedError(RefusalReason.FULL, "full", 7), 503, "full"),
        (RefusedError(RefusalReason.UNAVAILABLE, "away", 7), 503, "away"),
        (UnknownOutcomeError(), 504, "stores it once"),
    ],
)
async def test_what_may_be_sent_again_is_answered_so_that_prometheus_does(
    served: Served, error: Exception, status: int, words: str
) -> None:
    served.core.refuse = error
    found, answer, headers = await post(served, packed(request_1([(UP, [(1.0, MS)])])))
    assert (found, words in answer["error"]) == (status, True)
    assert headers.get("Retry-After") == ("7" if status == 503 else None)


async def test_what_is_not_understood_is_415_and_a_damaged_body_400(served: Served) -> None:
    body = packed(request_1([(UP, [(1.0, MS)])]))
    for content_type in ("application/json", "application/x-protobuf;proto=prometheus.ReadRequest", ""):
        status, answer, _ = await post(served, body, Content_Type=content_type)
        assert (status, "io.prometheus.write.v2.Request" in answer["error"]) == (415, True)
    status, answer, _ = await post(served, body, Content_Encoding="gzip")
    assert (status, "must be snappy" in answer["error"]) == (415, True)
    assert (await post(served, b"\xff\xff"))[0] == 400
    status, answer, _ = await post(served, bytes(cramjam.snappy.compress_raw(b"\xff\xff")))
    assert (status, answer["error"].startswith("the body is not a request of remote write")) == (400, True)
    status, answer, _ = await post(served, b"\xff\xff\xff\xff\x0f")  # four bytes that say 4 GiB
    assert (status, "max_samples_per_send" in answer["error"]) == (413, True)
    assert served.core.stored == []


async def test_without_the_option_the_answer_names_it() -> None:
    async with serving() as served:
        status, answer, _ = await post(served, b"")
        assert (status, "option remote_write" in answer["error"]) == (404, True)


async def test_the_device_is_made_of_labels_and_a_template_that_cannot_be_is_a_mistake() -> None:
    async with serving(remote_write=True, remote_write_device="{job}-{rack}") as served:
        series = [({**UP, "rack": "r1"}, [(1.0, MS)]), (UP, [(2.0, MS)])]
        assert (await post(served, packed(request_1(series))))[0] == 204
        assert [(row["device"], row.get("tags")) for row in served.core.rows()] == [
            ("node-r1", None),
            ("edge-1", None),
        ]
    (problem,) = HttpInput(HttpOptions(remote_write_device="{job!r}"), Metrics()).check()
    assert "remote_write_device '{job!r}' cannot be used" in problem
