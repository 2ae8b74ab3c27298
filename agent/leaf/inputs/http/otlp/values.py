"""Reads values and attributes of single OTLP points. No I/O.

Number points are read in serialised form without objects, in a third of the time. protobuf has already parsed
the export, and unexpected forms are left to it (https://protobuf.dev/programming-guides/encoding/).
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

from agent import contract
from agent.leaf.inputs.formats.line_values import LineError, check_name, to_json

_START, _TIME, _DOUBLE, _INT = 0x11, 0x19, 0x21, 0x31
"""Starts of the `NumberDataPoint` fields before the attributes."""
_FIELD: Final = 9
"""Their size: tag and 64 bits."""
_POINT: Final = 0x0A
_AT_ONCE: Final = 250
"""Points taken at once."""
_double: Final = Struct("<xQxd")
_int: Final = Struct("<xQxq")
_MAX_PARTS: Final = 1000
"""Buckets or quantiles of a point."""
_TOO_LONG: Final = f"an attribute longer than {contract.MAX_TEXT} characters"
Tags = dict[str, str]
Values = list[tuple[str, int | float, tuple[str, str] | None]]
"""Of a point: suffix of the metric, value, own tag."""


def values_of(kind: str, point: Any) -> Values:
    """Return a point's values; raises `LineError`."""
    if kind in ("gauge", "sum"):
        value = point.WhichOneof("value")
        if value is None:
            raise LineError("a point without a value", "value")
        return [("", getattr(point, value), None)]
    if kind == "summary":
        _check_parts(len(point.quantile_values))
        values: Values = [
            ("", quantile.value, ("quantile", _bound(quantile.quantile)))
            for quantile in point.quantile_values
        ]
        return [*values, ("_sum", point.sum, None), ("_count", point.count, None)]
    if kind == "histogram":
        return _histogram(point)
    raise LineError("exponential histograms are not taken: export explicit buckets", "histogram")


def _histogram(point: Any) -> Values:
    counts, bounds = point.bucket_counts, point.explicit_bounds
    if counts and len(counts) != len(bounds) + 1:
        raise LineError("a histogram whose buckets do not fit its bounds", "histogram")
    _check_parts(len(counts))
    values: Values = []
    total = 0
    for count, bound in zip(counts, [*bounds, math.inf], strict=False):
        total += count
        values.append(("_bucket", total, ("le", _bound(bound))))
    if point.HasField("sum"):
        values.append(("_sum", point.sum, None))
    return [*values, ("_count", point.count, None)]


def _check_parts(count: int) -> None:
    if count > _MAX_PARTS:
        raise LineError(f"more than {_MAX_PARTS} buckets or quantiles", "size")


def _bound(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def number(value: int | float) -> bytes:
    """Return a value as JSON; raises `LineError`."""
    if isinstance(value, float):
        if math.isfinite(value):
            return to_json(value)
        raise LineError("a value that is not finite", "value")
    if value > contract.MAX_INT:
        raise LineError(f"value {value} does not fit into a signed whole number of 64 bits", "value")
    return b"%d" % value


def tags_of_scope(scope: Any) -> Tags:
    named = {"otel.scope.name": scope.name, "otel.scope.version": scope.version}
    return {**{name: text for name, text in named.items() if text}, **texts(scope.attributes)}


def texts(attributes: Sequence[Any]) -> Tags:
    """Return attributes by name; raises `LineError` for more than a reading's tags."""
    if len(attributes) > contract.MAX_TAGS:  # one may be the device
        raise LineError(f"more than {contract.MAX_TAGS - 1} attributes", "tags")
    return {attribute.key: attribute.value.string_value or _text(attribute.value) for attribute in attributes}


def _text(value: Any) -> str:
    """Return an attribute as text, structures as JSON. Raises `LineError` when too long."""
    if value.ByteSize() > 4 * contract.MAX_TEXT:
        raise LineError(_TOO_LONG, "size")
    return _json(value)


def body_text(value: Any) -> str:
    """Return a log body as text. Raises `LineError` for a too long structure."""
    if value.string_value:
        return str(value.string_value)
    if value.ByteSize() > 4 * contract.MAX_TEXT:
        raise LineError(f"a structured body of more than {4 * contract.MAX_TEXT} bytes", "size")
    return _json(value)


def _json(value: Any) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    match value.WhichOneof("value"):
        case None:
            return ""
        case "array_value":
            return [_plain(member) for member in value.array_value.values]
        case "kvlist_value":
            return {member.key: _plain(member.value) for member in value.kvlist_value.values}
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case kind:
            return getattr(value, kind)


def check_tags(tags: Tags) -> None:
    """Raise `LineError` for tags that the contract refuses."""
    # One place is kept for `le` or `quantile`.
    if len(tags) >= contract.MAX_TAGS:
        raise LineError(f"more than {contract.MAX_TAGS - 1} attributes", "tags")
    for name, text in tags.items():
        check_name(name, "an attribute's name")
        if len(text) > contract.MAX_TEXT:
            raise LineError(_TOO_LONG, "size")


def apart(data: Any) -> Iterator[list[bytes]]:
    """Yield serialised points of a `Gauge` or `Sum` in groups, empty when unknown."""
    packed: bytes = data.SerializeToString()
    at, end, points = 0, len(packed), list[bytes]()
    for _ in range(len(data.data_points)):
        if at >= end or packed[at] != _POINT:
            points.append(b"")
        else:
            size, at = packed[at + 1], at + 2
            if size & 0x80:
                size, at = _long(packed, at, size & 0x7F)
            points.append(packed[at : at + size])
            at += size
        if len(points) == _AT_ONCE:
            yield points
            points = []
    if points:
        yield points


def _long(packed: bytes, at: int, size: int) -> tuple[int, int]:
    """Return a multi-byte size and its end."""
    shift = 7
    while True:
        more, at = packed[at], at + 1
        size |= (more & 0x7F) << shift
        if not more & 0x80:
            return size, at
        shift += 7


class Numbers(NamedTuple):
    """Number points by column."""

    times: tuple[int, ...]
    """In ns since 1970."""
    values: list[bytes]
    """As JSON."""
    attributes: list[bytes]
    """Serialised, with everything beside times and number."""


def columns(points: list[bytes]) -> Numbers | None:
    """Return points of equal start with time and finite value, else None."""
    at = _FIELD if points[0][:1] == b"\x11" else 0
    width, count = 2 * _FIELD, len(points)
    if at and {point[:1] for point in points} != {b"\x11"}:
        return None
    packed = b"".join([point[at : at + width] for point in points])
    form = _double if packed[_FIELD : _FIELD + 1] == b"\x21" else _int
    begins = _DOUBLE if form is _double else _INT
    if (
        len(packed) != width * count
        or packed[::width].count(_TIME) != count
        or packed[_FIELD::width].count(begins) != count
    ):
        return None
    times, values = zip(*form.iter_unpack(packed), strict=True)
    text = to_json(values)
    if b"n" in text:  # null, for what is not finite
        return None
    return Numbers(times, text[1:-1].split(b","), [point[at + width :] for point in points])


def quick(point: bytes, tails: dict[bytes, bytes]) -> tuple[int, int | float, bytes] | None:
    """Return time (ns), value and tail of a point with known attributes, else None. `tails` are by serialised
    attributes.
    """
    at = _FIELD if point[:1] == b"\x11" else 0
    rest = at + 2 * _FIELD
    if len(point) < rest or point[at] != _TIME:
        return None
    tail = tails.get(point[rest:])
    kind = point[at + _FIELD]
    if tail is None or (kind != _DOUBLE and kind != _INT):
        return None
    ns, value = (_double if kind == _DOUBLE else _int).unpack_from(point, at)
    return ns, value, tail
