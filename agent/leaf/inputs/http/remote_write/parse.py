"""Converts Prometheus remote write 1.0 and 2.0 to NDJSON. No I/O.

A sample is a reading: metric `__name__`, other labels are tags except those of the device. The end-of-series
NaN is skipped without loss; other non-finite values, native histograms, exemplars and invalid series are left
out. Labels must precede samples, and symbols series, as all libraries write; another order is refused.

https://prometheus.io/docs/specs/prw/remote_write_spec_2_0/
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from agent import contract
from agent.leaf.inputs.formats.line_values import (
    LineError,
    PayloadParts,
    Stamps,
    check_name,
    tail_of,
    text_of,
    to_json,
)
from agent.leaf.inputs.formats.ndjson import BodyTooLargeError
from agent.leaf.inputs.http.remote_write.wire import ProtobufError, fields, signed, varint
from agent.leaf.inputs.prometheus.exposition import Device

_SERIES_1, _METADATA_1, _SYMBOL_2, _SERIES_2 = 0x0A, 0x1A, 0x22, 0x2A
"""Fields per message."""
_LABEL, _REFERENCE = 0x0A, 0x08
_SAMPLE = 0x12
_EXEMPLAR_1, _HISTOGRAM_1 = 0x1A, 0x22
_HISTOGRAM_2, _EXEMPLAR_2 = 0x1A, 0x22
_NAME, _VALUE = 0x0A, 0x12
_SAMPLE_VALUE, _SAMPLE_TIME = 0x09, 0x10
_double: Final = Struct("<d").unpack_from
_bits: Final = Struct("<Q").unpack_from
_STALE: Final = 0x7FF0000000000002
"""The NaN that ends a series."""
_STEP: Final = 500
"""Parts read at once, a few milliseconds."""
_MAX_LABELS: Final = 500
"""Most labels examined per series."""
_MAX_SYMBOLS: Final = 200_000
_CACHED: Final = 4 * 2**20
"""Cached bytes of labels, received and stored."""
_SHOWN, _KINDS = 3, 100
"""Reasons in an answer, and counted separately."""
_HISTOGRAM: Final = LineError(
    "a native histogram (set send_native_histograms: false, and expose classic buckets)", "histogram"
)
_EXEMPLAR: Final = LineError("an exemplar (set send_exemplars: false)", "exemplar")


class Series(NamedTuple):
    """Shared text of a series' readings."""

    before: bytes
    """Text between time and value."""
    tail: bytes


class SeriesCache:
    """Known series by received labels."""

    def __init__(self, domain: str, device: str | None) -> None:
        self.stamps = Stamps()
        self._device = Device(device, domain)
        self._known: dict[bytes | tuple[bytes, ...], Series] = {}
        self._cached = 0

    def find(self, key: bytes | tuple[bytes, ...]) -> Series:
        """Return the series of labels (names and values, or serialised in 1.0). Raises `LineError` for
        invalid ones.
        """
        series = self._known.get(key)
        if series is None:
            parts = list(_labels(key)) if isinstance(key, bytes) else key
            series = self._make(parts)
            # Each label is an object of its own in a key of 2.0.
            self._cached += 2 * sum(map(len, parts)) + 40 * len(parts) + sum(map(len, series)) + 200
            if self._cached > _CACHED:
                self._known.clear()
                self._cached = 0
            self._known[key] = series
        return series

    @property
    def count(self) -> int:
        """The number of cached series."""
        return len(self._known)

    def _make(self, parts: Sequence[bytes]) -> Series:
        labels: dict[str, str] = {}
        for raw, value in zip(parts[::2], parts[1::2], strict=True):
            name = text_of(raw, "a label's name")
            if name in labels:
                raise LineError(f"the label {name!r:.80} stands twice", "name")
            labels[name] = text_of(value, "a label")
        labels = {name: value for name, value in labels.items() if value}  # an empty one is none
        metric = labels.pop("__name__", "")
        device = self._device.of(labels)
        tags = {name: value for name, value in labels.items() if name not in self._device.labels}
        check_name(metric, "the metric (label __name__)")
        check_name(device, "the device")
        if len(tags) > contract.MAX_TAGS:
            raise LineError(f"more than {contract.MAX_TAGS} labels", "tags")
        for name in tags:
            check_name(name, "a label's name")
        before = b'"device":' + to_json(device) + b',"metric":' + to_json(metric) + b',"value":'
        return Series(before, tail_of(tags))


class WriteRequest(PayloadParts):
    """Decodes one body: call `step` until False, then `payload` is NDJSON of `count` readings.

    `written` counts these and ends of series; `limit` bounds the payload in bytes.
    """

    def __init__(self, body: bytes, cache: SeriesCache, limit: int) -> None:
        super().__init__()
        self._body = body
        self._cache = cache
        self._room = limit
        self._symbols: list[bytes] = []
        self._reasons: Counter[str] = Counter()
        self._fields = self._all_fields()
        self.count = 0
        self.stale = 0
        self.is_2 = False
        """Whether the request is of 2.0."""
        self.left_out: Counter[str] = Counter()

    @property
    def written(self) -> int:
        """Samples stored or needless."""
        return self.count + self.stale

    def step(self) -> bool:
        """Read some parts and tell whether more follow. Raises `BodyTooLargeError`, and `ValueError` for a
        bad body.
        """
        done = 0
        for parts in self._fields:
            done += parts
            if done >= _STEP:
                return True
        self._symbols = []
        return False

    def reasons(self) -> str:
        """Return why parts were left out."""
        return "; ".join(f"{count} × {reason}" for reason, count in self._reasons.most_common(_SHOWN))

    def _all_fields(self) -> Iterator[int]:
        first = 0
        for tag, start, end in fields(self._body, 0, len(self._body)):
            if tag in (_SERIES_1, _METADATA_1, _SYMBOL_2, _SERIES_2):
                version = 1 if tag in (_SERIES_1, _METADATA_1) else 2
                if first not in (0, version):
                    raise ProtobufError(
                        "fields of both prometheus.WriteRequest and io.prometheus.write.v2.Request"
                    )
                first = version
                self.is_2 = version == 2
            yield 1
            if tag == _SYMBOL_2:
                if len(self._symbols) >= _MAX_SYMBOLS:
                    raise BodyTooLargeError
                self._symbols.append(self._body[start:end])
            elif tag == _SERIES_1:
                yield from self._samples(*self._series_1(start, end), end, _HISTOGRAM_1, _EXEMPLAR_1)
            elif tag == _SERIES_2:
                yield from self._samples(*self._series_2(start, end), end, _HISTOGRAM_2, _EXEMPLAR_2)

    def _series_1(self, start: int, end: int) -> tuple[Series | LineError, int]:
        """Return the series of a 1.0 message, and the end of its labels."""
        body, at = self._body, start
        for _ in range(_MAX_LABELS):
            if at >= end or body[at] != _LABEL:
                break
            size, at = varint(body, at + 1)
            at += size
        else:
            raise ProtobufError(f"a series with {_MAX_LABELS} labels or more")
        if at > end:
            raise ProtobufError("a label that goes beyond its series")
        return self._find(body[start:at]), at

    def _series_2(self, start: int, end: int) -> tuple[Series | LineError, int]:
        """Return the series of a 2.0 message, whose labels index symbols."""
        body, at = self._body, start
        labels: list[bytes] = []
        while at < end and body[at] in (_LABEL, _REFERENCE):
            if body[at] == _LABEL:
                size, at = varint(body, at + 1)
                at, stop = self._references(at, at + size, labels), at + size
            else:
                at = stop = self._references(at + 1, at + 2, labels)
            if at != stop or at > end:
                raise ProtobufError("references that go beyond their series")
        if len(labels) % 2:
            raise ProtobufError("a label without a value")
        return self._find(tuple(labels)), at

    def _references(self, at: int, stop: int, labels: list[bytes]) -> int:
        """Add symbols of references before `stop`; returns the end."""
        while at < stop:
            place, at = varint(self._body, at)
            if place >= len(self._symbols):
                raise ProtobufError(f"a reference to symbol {place} of {len(self._symbols)}")
            if len(labels) >= 2 * _MAX_LABELS:
                raise ProtobufError(f"a series with more than {_MAX_LABELS} labels")
            labels.append(self._symbols[place])
        return at

    def _find(self, key: bytes | tuple[bytes, ...]) -> Series | LineError:
        try:
            return self._cache.find(key)
        except LineError as error:
            return error

    def _samples(
        self, series: Series | LineError, at: int, end: int, histogram: int, exemplar: int
    ) -> Iterator[int]:
        for tag, start, stop in fields(self._body, at, end):
            if tag == _SAMPLE:
                self._sample(series, start, stop)
            elif tag == histogram:
                self._leave_out(_HISTOGRAM)
            elif tag == exemplar:
                self._leave_out(_EXEMPLAR)
            elif tag in (_LABEL, _REFERENCE):
                raise ProtobufError("labels behind samples")
            yield 1

    def _sample(self, series: Series | LineError, start: int, end: int) -> None:
        place, ms = -1, 0
        for tag, at, _ in fields(self._body, start, end):
            if tag == _SAMPLE_VALUE:
                place = at
            elif tag == _SAMPLE_TIME:
                ms = signed(at)
        value: float = _double(self._body, place)[0] if place >= 0 else 0.0
        if not math.isfinite(value):
            if place >= 0 and _bits(self._body, place)[0] == _STALE:
                self.stale += 1
            else:
                kind = "nan" if math.isnan(value) else "infinite"
                self._leave_out(LineError("a value that is not finite", kind))
            return
        if isinstance(series, LineError):
            self._leave_out(series)
            return
        try:
            begun = self._cache.stamps.reading(ms * 1_000_000)
        except LineError:
            self._leave_out(LineError("a time outside of the years 1 to 9999", "time"))
            return
        line = begun + series.before + to_json(value) + series.tail
        self._room -= len(line)
        if self._room < 0:
            raise BodyTooLargeError
        self._parts.append(line)
        self.count += 1

    def _leave_out(self, error: LineError) -> None:
        self.left_out[error.kind] += 1
        reason = str(error)
        is_counted = reason in self._reasons or len(self._reasons) < _KINDS
        self._reasons[reason if is_counted else "other reasons"] += 1


def _labels(packed: bytes) -> Iterator[bytes]:
    """Yield names and values of 1.0 labels in turn. Raises `ProtobufError`."""
    for _, start, end in fields(packed, 0, len(packed)):
        name = value = b""
        for tag, at, stop in fields(packed, start, end):
            if tag == _NAME:
                name = packed[at:stop]
            elif tag == _VALUE:
                value = packed[at:stop]
        yield name
        yield value
