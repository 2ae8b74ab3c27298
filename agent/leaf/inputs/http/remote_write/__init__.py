"""Accepts Prometheus remote write 1.0 and 2.0; `parse` reads the requests.

Prometheus (storage/remote/client.go) retries 5xx, and 429 only with `retry_on_http_429`; it drops data at
other 4xx and counts what the headers omit.
"""

from __future__ import annotations

from typing import Final

from agent.base.http.framing import HttpRequest
from agent.base.http.response import Response
from agent.base.wait import Pacer
from agent.leaf.inputs.formats.ndjson import BodyTooLargeError
from agent.leaf.inputs.http.bodies import Body, Hold
from agent.leaf.inputs.http.remote_write.parse import SeriesCache, WriteRequest
from agent.leaf.inputs.http.request import RequestHead
from agent.leaf.inputs.http.responses import NOTHING, HttpError, at_fault
from agent.leaf.inputs.http.route import DecodedBody, Route, RouteSettings

_PROTOBUF: Final = "application/x-protobuf"
_MESSAGES: Final = ("prometheus.WriteRequest", "io.prometheus.write.v2.Request")
_WRITTEN: Final = "X-Prometheus-Remote-Write-{}-Written"
_COME_AGAIN: Final = (408, 429)
_FEWER: Final = "set max_samples_per_send lower in its queue_config"


class DecodedSamples(DecodedBody, kw_only=True):
    """Readings of a request."""

    request: WriteRequest


class RemoteWriteRoute(Route[DecodedSamples]):
    """Stores good samples and reports the rest with 400. Caches series."""

    encodings = ("snappy",)
    is_repeat_by_body = True

    def __init__(self, settings: RouteSettings) -> None:
        super().__init__(settings)
        self._series = SeriesCache(settings.domain, settings.remote_write_device)

    def is_json(self, content_type: str) -> bool:
        kind, *parameters = (part.strip() for part in content_type.split(";"))
        message = next(
            (text[6:].strip('"') for text in parameters if text.startswith("proto=")), _MESSAGES[0]
        )
        if kind.lower() != _PROTOBUF or message not in _MESSAGES:
            names = " or ".join(_MESSAGES)
            raise at_fault(415, "content_type", f"Content-Type must be {_PROTOBUF}, with proto {names}")
        return False

    async def decode(self, body: Body, head: RequestHead, hold: Hold) -> DecodedSamples:
        request = WriteRequest(body.data, self._series, body.room)
        pacer = Pacer()
        try:
            while request.step():
                await pacer.give_way()
        except BodyTooLargeError:
            raise at_fault(
                413,
                "too_large",
                f"the readings of this request would be above {body.room} bytes, for each repeats its labels",
                unread=False,
            ) from None
        except ValueError as error:
            text = f"the body is not a request of remote write: {error}"
            raise at_fault(400, "protobuf", text, unread=False) from None
        hold.add(request.size, unread=False)
        return DecodedSamples(request.payload, request.count, request.left_out, request=request)

    def respond(self, decoded: DecodedSamples, head: RequestHead) -> Response:
        request, left_out = decoded.request, decoded.left_out
        written = {
            _WRITTEN.format("Samples"): str(request.written),
            _WRITTEN.format("Histograms"): "0",
            _WRITTEN.format("Exemplars"): "0",
        }
        # Older senders of 1.0 count the whole request as lost at a 400: not each time that a summary has seen
        # nothing yet.
        if left_out if request.is_2 else left_out.keys() - {"nan", "infinite"}:
            rest = f"the other {request.count} samples are stored" if request.count else NOTHING
            raise HttpError(
                400,
                f"partial write: not stored: {request.reasons()}; {rest}",
                fault="rejected_samples",
                headers=written,
            )
        return self._settings.success.also(written) if request.is_2 else self._settings.success

    def translate(self, error: HttpError, request: HttpRequest) -> HttpError:
        """Replace 408 and 429, at which Prometheus drops data."""
        if error.status in _COME_AGAIN:
            headers = {"Retry-After": "1", **error.headers}
            return HttpError(503, error.error, fault=error.fault, headers=headers, unread=error.unread)
        if error.status == 413:
            text = f"{error.error}; {_FEWER}"
            return HttpError(413, text, fault=error.fault, headers=error.headers, unread=error.unread)
        return error
