"""Prometheus remote write, 1.0 and 2.0: a request from its body to its answer.
`agent.leaf.inputs.http.remote_write.parse` knows what is in it. What each status does to Prometheus is in its
client (storage/remote/client.go): it comes back after 5xx, after 429 only where `retry_on_http_429` is set,
and drops what any other 4xx is the answer to. Of what it drops it counts what the headers do not name."""

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
    """The readings of a request."""

    request: WriteRequest


class RemoteWriteRoute(Route[DecodedSamples]):
    """What Prometheus and its kin send: the good samples are stored, and 400 says which are not. Remembers
    series from one request to the next."""

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
        """The error as Prometheus must have it: it drops what is answered 408 or 429."""
        if error.status in _COME_AGAIN:
            headers = {"Retry-After": "1", **error.headers}
            return HttpError(503, error.error, fault=error.fault, headers=headers, unread=error.unread)
        if error.status == 413:
            text = f"{error.error}; {_FEWER}"
            return HttpError(413, text, fault=error.fault, headers=error.headers, unread=error.unread)
        return error
