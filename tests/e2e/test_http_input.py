"""The `http` input and its readings, over real sockets: what is taken and what refused, and how."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable

import pytest
import zstandard
from structlog.testing import capture_logs

from agent import contract
from agent.config import Size
from agent.leaf.intake import Chunk, NotAtHubError, RefusalReason, RefusedError, UnknownOutcomeError
from tests.harness.http_harness import FULL, JSON, NDJSON, Served, request, serving
from tests.harness.wait import until

Post = tuple[str, bytes, dict[str, str]]
"""The path of a request, its body and headers."""
TWINS = (b'{"metric":"m","value":37062098697}\n', b'{"metric":"m","value":70036722576}\n')
"""Two bodies of the same CRC-32."""


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as one:
        yield one


async def test_readings_are_stored_before_the_answer(served: Served) -> None:
    status, body, _ = await served.post(FULL * 3)
    assert (status, body) == (204, {})
    assert served.core.stored == [Chunk(FULL * 3, 3)]


async def test_the_answer_waits_until_the_core_has_stored(served: Served) -> None:
    served.core.open.clear()
    answer = asyncio.create_task(served.post(FULL))
    await until(lambda: served.core.waiting == 1)
    assert not answer.done()
    served.core.open.set()
    assert (await answer)[0] == 204


async def test_an_array_and_a_single_object_are_taken(served: Served) -> None:
    rows = [{"metric": "a", "value": 1}, {"metric": "b", "value": "x"}]
    assert (await served.post(json.dumps(rows, indent=2), JSON))[0] == 204
    assert (await served.post(json.dumps(rows[0]), {"Content-Type": "Application/JSON; charset=UTF-8"}))[
        0
    ] == 204
    assert [one.count for one in served.core.stored] == [2, 1]
    assert b'"device":"edge-1"' in served.core.stored[0].payload


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.ZstdCompressor().compress)]
)
async def test_a_packed_body_is_unpacked(
    served: Served, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    packed = {"Content-Encoding": encoding}
    assert (await served.post(pack(FULL * 500), packed))[0] == 204
    assert served.core.stored[0].payload == FULL * 500
    status, body, _ = await served.post(pack(FULL * 500)[:-3], packed)
    assert status == 400
    assert "cut off" in body["error"]
    assert (await served.post(FULL, packed))[0] == 400


async def test_a_request_carries_its_key_and_a_digest_of_what_was_meant(served: Served) -> None:
    key = {"Idempotency-Key": "a-1"}
    assert (await served.post(FULL, key))[0] == 204
    assert served.core.stored[0].request == contract.make_request(
        "a-1", contract.request_scope("http"), FULL, "/v1/readings", ""
    )
    assert (await served.post(gzip.compress(FULL), {**key, "Content-Encoding": "gzip"}))[0] == 204
    assert len(served.core.stored) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("/v1/readings", TWINS[0], NDJSON), ("/v1/readings", TWINS[1], NDJSON)),
        (("/v1/readings", TWINS[0], NDJSON), ("/v1/readings", TWINS[0], JSON)),
        (("/v1/readings", TWINS[0], NDJSON), ("/v1/readings?device=d", TWINS[0], NDJSON)),
        (("/write?precision=s", b"m v=1 1", {}), ("/write?precision=ms", b"m v=1 1", {})),
        (("/write?precision=s", b"m v=1 1", {}), ("/api/v2/write?precision=s", b"m v=1 1", {})),
    ],
)
async def test_a_key_used_for_another_request_is_refused(served: Served, first: Post, second: Post) -> None:
    assert zlib.crc32(first[1]) == zlib.crc32(second[1])
    key = {"Idempotency-Key": "a-1"}
    for _ in range(2):
        assert (await served.post(first[1], {**first[2], **key}, first[0]))[0] == 204
    status, body, _ = await served.post(second[1], {**second[2], **key}, second[0])
    assert (status, len(served.core.stored)) == (422, 1)
    assert "the key was used for another request" in json.dumps(body)
    assert served.metric("petiole_invalid_requests_total", reason="key_reused") == 1


LENGTH = f"Content-Length: {len(FULL)}"


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (request(FULL, LENGTH, "Idempotency-Key: "), 400, b"Idempotency-Key"),
        (request(FULL, LENGTH, "Idempotency-Key: two words"), 400, b"Idempotency-Key"),
        (request(FULL, LENGTH, f"Idempotency-Key: {'x' * 129}"), 400, b"Idempotency-Key"),
        (request(FULL, LENGTH, "Idempotency-Key: ü"), 400, b"Idempotency-Key"),
        (request(FULL, LENGTH, "Idempotency-Key: a", "Idempotency-Key: b"), 400, b""),
        (request(b""), 411, b""),
        (request(b"\n", "Content-Length: 1", first="POST /v1/readings HTTP/1.0", host=""), 421, b""),
    ],
)
async def test_a_head_that_says_too_little_or_too_much_is_refused(
    served: Served, data: bytes, status: int, words: bytes
) -> None:
    answer = await served.raw(data.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert words in answer


async def test_bad_lines_are_named_and_nothing_is_stored(served: Served) -> None:
    body = FULL + b"\nnot json\n" + FULL + b'{"metric":"m","value":NaN}\n{"metric":"\xff","value":1}\n'
    status, answer, _ = await served.post(body)
    assert status == 400
    assert [one["line"] for one in answer["lines"]] == [3, 5, 6]
    assert all(one["reason"] for one in answer["lines"])
    assert answer["more"] == 0
    assert "nothing of the request was stored" in answer["error"]
    assert served.core.stored == []
    assert served.metric("petiole_invalid_requests_total", reason="bad_lines") == 1


async def test_a_thousand_bad_lines_make_a_short_answer(served: Served) -> None:
    status, answer, _ = await served.post((b'{"metric":"' + b"x" * 5000 + b'","value":1}\n') * 1000)
    assert status == 400
    assert (len(answer["lines"]), answer["more"]) == (100, 900)
    assert len(json.dumps(answer)) < 50_000


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"", NDJSON), (b"\n\n", NDJSON), (b"", JSON), (b" \r\n", JSON), (b"[]", JSON)],
)
async def test_a_body_without_a_reading_is_refused_with_what_to_send(
    served: Served, body: bytes, kind: dict[str, str]
) -> None:
    status, answer, _ = await served.post(body, kind)
    assert status == 400
    assert answer == {
        "error": "the body holds no reading; send at least one, such as "
        '{"metric": "pressure", "value": 21.5}; nothing of the request was stored'
    }
    assert served.metric("petiole_invalid_requests_total", reason="empty") == 1


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"[1,2", b"nonsense"])
async def test_what_is_not_json_is_refused(served: Served, body: bytes) -> None:
    for kind in (JSON, NDJSON):
        assert (await served.post(body, kind))[0] == 400
    assert (await served.post(FULL))[0] == 204


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": ""}, 415),
        ({"Content-Type": "application/x-ndjson; charset=latin-1"}, 415),
        ({"Content-Encoding": "br"}, 415),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:8080"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1"}, 403),
        ({"Expect": "a-miracle"}, 417),
    ],
)
async def test_a_request_that_is_not_for_us_is_refused(
    served: Served, headers: dict[str, str], status: int
) -> None:
    answered, body, _ = await served.post(FULL, headers)
    assert answered == status
    assert "nothing of the request was stored" in body["error"]
    assert served.core.stored == []


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:9", "[::1]:8080"])
async def test_names_of_the_loopback_are_served(served: Served, host: str) -> None:
    assert (await served.post(FULL, {"Host": host}))[0] == 204


async def test_other_names_and_origins_are_served_when_allowed() -> None:
    allowed = {"allowed_hosts": ["gateway.plant"], "allowed_origins": ["https://ui.plant"]}
    async with serving(**allowed) as served:
        ok = {"Host": "Gateway.plant:8080", "Origin": "https://ui.plant"}
        assert (await served.post(FULL, ok))[0] == 204
        assert (await served.post(FULL, {"Host": "other.plant"}))[0] == 421
        assert (await served.post(FULL, {"Origin": "https://other.plant"}))[0] == 403


async def test_other_paths_and_methods_are_answered_in_words(served: Served) -> None:
    status, body, _ = await served.post(FULL, path="/v2/readings")
    assert (status, "POST /v1/readings" in body["error"]) == (404, True)
    status, body, headers = await served.post(None, method="GET")
    assert (status, headers["Allow"]) == (405, "POST")
    assert body["error"].startswith("GET is not possible here")


async def test_a_large_array_is_sent_to_ndjson(served: Served) -> None:
    status, body, _ = await served.post(b"[" + b" " * 2**20 + b"]", JSON)
    assert status == 413
    assert "application/x-ndjson may" in body["error"]


async def test_a_body_in_pieces_is_taken(served: Served) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for part in (FULL[:7], FULL[7:], FULL):
            yield part

    assert (await served.post(pieces()))[0] == 204
    assert served.core.stored[0].payload == FULL * 2


async def test_a_sender_that_asks_first_is_told_to_go_on(served: Served) -> None:
    async with served.connection() as (reader, writer):
        writer.write(request(b"", f"Content-Length: {len(FULL)}", "Expect: 100-continue"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(FULL)
        assert (await reader.readline()).startswith(b"HTTP/1.1 204 ")


@pytest.mark.parametrize(
    ("reason", "status", "after"),
    [
        (RefusalReason.TOO_LARGE, 413, 2.3),
        (RefusalReason.KEY_REUSED, 422, 2.3),
        (RefusalReason.FULL, 429, 2.3),
        (RefusalReason.FULL, 429, None),
        (RefusalReason.UNAVAILABLE, 503, 2.3),
        (RefusalReason.BUSY, 503, 2.3),
        (RefusalReason.STOPPING, 503, 2.3),
    ],
)
async def test_what_the_core_refuses_is_answered_by_its_reason(
    served: Served, reason: RefusalReason, status: int, after: float | None
) -> None:
    served.core.refuse = RefusedError(reason, "because", after)
    answered, body, headers = await served.post(FULL * 4, {"Idempotency-Key": "k"})
    assert answered == status
    assert body["error"] == "because; nothing of the request was stored"
    comes_back = "3" if after else "5"
    assert headers.get("Retry-After") == (comes_back if status in (429, 503) else None)
    assert served.metric("petiole_http_refusals_total", status=str(status)) == 1


async def test_an_unknown_outcome_is_not_called_a_refusal(served: Served) -> None:
    served.core.refuse = UnknownOutcomeError("no answer")
    status, body, _ = await served.post(FULL, {"Idempotency-Key": "k"})
    assert status == 504
    assert "it is not known yet whether the readings are stored" in body["error"]
    assert "repeat the same body under the same Idempotency-Key" in body["error"]
    assert "may store it twice" in (await served.post(FULL))[1]["error"]


async def test_an_error_in_the_core_is_answered_and_the_input_goes_on(served: Served) -> None:
    served.core.refuse = ZeroDivisionError()
    async with served.session.post(served.url + "/v1/readings", data=FULL, headers=NDJSON) as answer:
        assert answer.status == 500
    served.core.refuse = None
    assert (await served.post(FULL))[0] == 204


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 tls hello\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"POST /v1/readings HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/readings HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"POST /v1/readings HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 500 + b"\r\n",
        b"POST /" + b"y" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused_without_noise(
    served: Served, data: bytes, logged: pytest.LogCaptureFixture
) -> None:
    answer = await served.raw(data)
    assert b" 400 " in answer[:20]
    assert b"nothing of this attempt was stored" in answer
    assert logged.records == []
    assert served.metric("petiole_invalid_requests_total", reason="not_http") == 1


async def test_a_sender_that_leaves_in_the_middle_makes_no_noise(
    served: Served, logged: pytest.LogCaptureFixture
) -> None:
    async with served.connection() as (_, writer):
        writer.write(request(FULL, "Content-Length: 1000"))
        await writer.drain()
    assert (await served.post(FULL))[0] == 204
    assert logged.records == []
    assert len(served.core.stored) == 1


async def test_before_a_key_is_looked_up_no_word_is_said_on_earlier_attempts() -> None:
    """Their sender would take a new key, and store twice."""
    keyed, large = {"Idempotency-Key": "k"}, FULL * 2000
    async with serving(buffer=Size(100_000)) as served:
        assert (await served.post(large, keyed))[0] == 204
        served.core.open.clear()
        first = asyncio.create_task(served.post(large))
        await until(lambda: served.core.waiting == 1)
        for headers in (keyed, {}):
            status, body, _ = await served.post(large, headers)
            assert status == 503
            assert ("nothing of the request was stored" in body["error"]) is not bool(headers)
            earlier = "an earlier one under its Idempotency-Key stored stays stored"
            assert (earlier in body["error"]) is bool(headers)
        served.core.open.set()
        assert (await first)[0] == 204


async def test_success_says_what_the_level_is() -> None:
    async with serving(ack="accepted") as served:
        status, body, headers = await served.post(b'{"metric": "m", "value": 1}\n')
        assert (status, body["acknowledged"], headers["Server"]) == (202, "accepted", "petiole")
        closing = await served.raw(
            b"POST /v1/readings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
            b'Connection: close\r\nContent-Length: 27\r\n\r\n{"metric": "m", "value": 2}'
        )
        assert closing.startswith(b"HTTP/1.1 202 ")
        assert b'"acknowledged": "accepted"' in closing
        assert (await served.post(b"m f=1\n", {"Content-Type": "text/plain"}, "/write"))[0] == 204
        assert len(served.core.stored) == 3


@pytest.mark.parametrize(
    ("lost", "key", "words"),
    [
        (False, "k", "repeat the same body"),
        (False, None, "stores it twice"),
        (True, "k", "a new Idempotency-Key"),
    ],
)
async def test_what_is_not_at_the_hub_in_time_is_told(lost: bool, key: str | None, words: str) -> None:
    async with serving(ack="hub") as served:
        served.core.refuse = NotAtHubError("stored on this machine, and not yet at the hub", lost=lost)
        headers = {} if key is None else {"Idempotency-Key": key}
        status, body, _ = await served.post(b'{"metric": "m", "value": 1}\n', headers)
        assert status == 504
        assert body["error"].startswith("stored on this machine")
        assert words in body["error"]
        served.core.refuse = None
        assert (await served.post(b'{"metric": "m", "value": 1}\n', headers))[0] == 204


async def test_http_2_is_refused_in_its_own_words_counted_and_logged(served: Served) -> None:
    with capture_logs() as told:
        for _ in range(9):
            answer = await served.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
    assert answer[:9] == bytes(3) + b"\x04" + bytes(5), "settings"
    frame = answer[9:]
    assert (frame[3], int.from_bytes(frame[13:17], "big")) == (7, 13), "go away: HTTP/1.1 is required"
    assert int.from_bytes(frame[:3], "big") == len(frame) - 9
    assert b"send OTLP as http/protobuf" in frame
    assert served.metric("petiole_invalid_requests_total", reason="http2") == 9
    assert [one["event"] for one in told] == ["HTTP/2 refused"] * 5
    assert (await served.post(FULL))[0] == 204
