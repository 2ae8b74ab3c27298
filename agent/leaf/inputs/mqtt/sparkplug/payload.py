"""Parses Sparkplug B payloads. No I/O. Needs `protobuf`.

Only used parts of Eclipse Tahu's schema are declared. Metrics, templates, datasets and rows are declared as
bytes, so that they are counted before they take memory. UInt32 may be in `int_value` or `long_value`, and
negative integers in 8 or 32 bits; values beyond their type are refused.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from agent import contract

MAX_METRICS: Final = 5_000
"""Metrics per message, with members of templates and columns of datasets."""
_MAX_DEPTH: Final = 8
"""Templates within each other."""
_DATASET, _TEMPLATE = 16, 19
REBIRTH: Final = "Node Control/Rebirth"
_BOOLEAN: Final = 11
_DATETIME: Final = 13
_INTEGERS: Final = {
    1: (8, True),
    2: (16, True),
    3: (32, True),
    4: (64, True),
    5: (8, False),
    6: (16, False),
    7: (32, False),
    8: (64, False),
}
"""Bits and sign per datatype."""
_WIRE_BITS: Final = {"int_value": 32, "long_value": 64}
_PLAIN: Final = {
    9: "float_value",
    10: "double_value",
    _BOOLEAN: "boolean_value",
    12: "string_value",
    14: "string_value",
    15: "string_value",
}
"""The field of a datatype."""
_ARRAYS: Final = {
    22: "b",
    23: "h",
    24: "i",
    25: "q",
    26: "B",
    27: "H",
    28: "I",
    29: "Q",
    30: "f",
    31: "d",
    34: "Q",
}
"""The element of a datatype in `bytes_value`, little-endian (specification 3.0, 6.4.17)."""
_BOOLEAN_ARRAY, _STRING_ARRAY = 32, 33
_UNSUPPORTED: Final = {17: "Bytes", 18: "File", 20: "PropertySet", 21: "PropertySetList"}
_OPAQUE: Final = {"bytes_value": "Bytes", "extension_value": "extension"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_MS: Final = contract.EPOCH_LIMIT * 1000


class PayloadError(ValueError):
    """Not a Sparkplug B payload; the text has the reason."""


class ValueRefusedError(ValueError):
    """A metric's value can't be a reading. `reason` is the label."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Metric(NamedTuple):
    """A received metric. `field` None without value; `datatype` 0 without type."""

    name: str | None
    alias: int | None
    time: int | None
    """In ms since 1970."""
    datatype: int
    is_historical: bool
    is_null: bool
    field: str | None
    raw: int | float | bool | str | bytes | None

    def shown(self) -> dict[str, object]:
        """Return its form in a dead letter: the raw value, for bytes their number."""
        row: dict[str, object] = {"name": self.name, "alias": self.alias, "timestamp": self.time}
        row["datatype"] = self.datatype or None
        if self.field is not None:
            raw = self.raw
            if isinstance(raw, float) and not math.isfinite(raw):
                raw = str(raw)
            row[self.field] = f"{len(raw)} bytes" if isinstance(raw, bytes) else raw
        return {name: value for name, value in row.items() if value is not None}


class Payload(NamedTuple):
    """A payload: time in ms since 1970 and `seq`, or None."""

    time: int | None
    seq: int | None
    metrics: list[Metric]


def parse_payload(data: bytes) -> Payload:
    """Parse a payload. Raises `PayloadError`."""
    message = PAYLOAD()
    try:
        message.ParseFromString(data)
        if len(message.metrics) > MAX_METRICS:
            raise PayloadError(f"a message of {len(message.metrics)} metrics, more than {MAX_METRICS}")
        if message.uuid == b"SPBV1.0_COMPRESSED":
            raise PayloadError("a compressed payload, which is not taken: its size is unbounded")
        metrics = [_metric(METRIC.FromString(metric)) for metric in message.metrics]
    except (DecodeError, UnicodeDecodeError) as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise PayloadError(f"not a payload of Sparkplug B: {words:.200}") from None
    seq = message.seq if message.HasField("seq") else None
    if seq is not None and seq > 255:
        raise PayloadError(f"seq is {seq}, which is above 255")
    return Payload(message.timestamp if message.HasField("timestamp") else None, seq, metrics)


def _metric(metric: Any) -> Metric:
    has = metric.HasField
    field: str | None = None if metric.is_null else metric.WhichOneof("value")
    raw: Any = None if field is None else getattr(metric, field)
    return Metric(
        metric.name.decode() if has("name") else None,
        metric.alias if has("alias") else None,
        metric.timestamp if has("timestamp") else None,
        metric.datatype,
        metric.is_historical,
        metric.is_null,
        field,
        raw.decode() if field == "string_value" else raw,
    )


def value_of(metric: Metric, datatype: int) -> contract.Value:
    """Return a metric's value for a datatype (0: unknown). Raises `ValueRefusedError`."""
    field, raw = metric.field, metric.raw
    if field == "bytes_value" and isinstance(raw, bytes) and datatype > 21:
        return _array(raw, datatype)
    if (unsupported := _UNSUPPORTED.get(datatype) or _OPAQUE.get(field or "")) is not None:
        raise ValueRefusedError("unsupported_type", f"{unsupported} is not a value of a reading")
    if field is None:
        raise ValueRefusedError("bad_value", "it has neither a value nor is_null")
    if field in _WIRE_BITS:
        assert isinstance(raw, int)
        return _integer(raw, _WIRE_BITS[field], datatype)
    if datatype and _PLAIN.get(datatype) != field:
        raise ValueRefusedError("bad_value", f"a {field} for the datatype {datatype}")
    if isinstance(raw, float):
        if not math.isfinite(raw):
            raise ValueRefusedError("bad_value", f"{raw} is not a finite number")
        return raw
    if isinstance(raw, str):
        return raw.replace("\n", " ").replace("\r", " ")
    assert isinstance(raw, bool)
    return raw


def _array(raw: bytes, datatype: int) -> contract.Value:
    """Return an array of numbers (false and true are 0 and 1), or the JSON of an array of texts."""
    numbers: list[int | float]
    if datatype == _STRING_ARRAY:
        # Each text ends with a zero byte; the C and Python libraries of Tahu leave out the last.
        texts = raw.removesuffix(b"\0").split(b"\0") if raw else []
        try:
            return msgspec.json.encode([text.decode() for text in texts]).decode()
        except UnicodeDecodeError:
            raise ValueRefusedError("bad_value", "its text is not UTF-8") from None
    if datatype == _BOOLEAN_ARRAY:
        count = int.from_bytes(raw[:4], "little")
        if len(raw) < 4 or len(raw) - 4 != (count + 7) // 8:
            raise ValueRefusedError("bad_value", f"a BooleanArray of {count} in {len(raw)} bytes")
        numbers = [raw[4 + at // 8] >> 7 - at % 8 & 1 for at in range(count)]
    elif (code := _ARRAYS.get(datatype)) is None:
        raise ValueRefusedError("bad_value", f"a bytes_value for the datatype {datatype}")
    elif len(raw) % struct.calcsize(code):
        raise ValueRefusedError(
            "bad_value", f"an array in {len(raw)} bytes, which is no multiple of its element"
        )
    else:
        numbers = list(struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw))
    if not numbers:
        raise ValueRefusedError("bad_value", "its array is empty")
    return _numbers(numbers)


def _numbers(numbers: Sequence[int | float]) -> tuple[int | float, ...]:
    if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
        raise ValueRefusedError("bad_value", "its array has a number that is not finite")
    if any(isinstance(number, int) and number > contract.MAX_INT for number in numbers):
        raise ValueRefusedError(
            "bad_value", "its array has a number that does not fit a signed one of 64 bits"
        )
    return tuple(numbers)


def members(metric: Metric, name: str, depth: int = 0) -> Iterator[tuple[str, Metric]] | None:
    """Return the members of a template with their names below `name`, None for another metric.

    A definition of templates has none. Raises `ValueRefusedError`.
    """
    if metric.field != "template_value":
        return None
    if depth >= _MAX_DEPTH:
        raise ValueRefusedError("unsupported_type", f"templates stand in each other {_MAX_DEPTH} times")
    try:
        template = TEMPLATE.FromString(metric.raw)
        if template.is_definition:
            return iter(())
        if len(template.metrics) > MAX_METRICS:
            raise ValueRefusedError("unsupported_type", f"a Template of more than {MAX_METRICS} metrics")
        found = [_metric(METRIC.FromString(member)) for member in template.metrics]
    except (DecodeError, UnicodeDecodeError):
        raise ValueRefusedError("bad_value", "its Template cannot be read") from None
    return (
        (f"{name}/{member.name}", member if member.time is not None else member._replace(time=metric.time))
        for member in found
        if member.name is not None
    )


def columns(metric: Metric, datatype: int) -> list[tuple[str, contract.Value | ValueRefusedError]] | None:
    """Return each column of a dataset as an array of its rows, None for another metric.

    Numbers and booleans are an array of numbers, other columns the JSON of an array. Raises
    `ValueRefusedError`.
    """
    if metric.field != "dataset_value":
        if datatype == _DATASET and metric.field is not None:
            raise ValueRefusedError("bad_value", f"a {metric.field} for a DataSet")
        return None
    try:
        dataset = DATASET.FromString(metric.raw)
        names = [name.decode() for name in dataset.columns]
        rows = [[_element(element) for element in ROW.FromString(row).elements] for row in dataset.rows]
    except (DecodeError, UnicodeDecodeError):
        raise ValueRefusedError("bad_value", "its DataSet cannot be read") from None
    types = list(dataset.types)
    if len(types) != len(names) or any(len(row) != len(names) for row in rows):
        raise ValueRefusedError("bad_value", "its DataSet has rows or types of another number than columns")
    if len(names) > MAX_METRICS:
        raise ValueRefusedError("unsupported_type", f"a DataSet of more than {MAX_METRICS} columns")
    return [(name, _column([row[at] for row in rows], types[at])) for at, name in enumerate(names)]


def _element(packed: bytes) -> tuple[str | None, Any]:
    element = ELEMENT.FromString(packed)
    field = element.WhichOneof("value")
    raw = None if field is None else getattr(element, field)
    return field, raw.decode() if isinstance(raw, bytes) else raw


def _column(cells: list[tuple[str | None, Any]], datatype: int) -> contract.Value | ValueRefusedError:
    values: list[Any] = []
    try:
        for field, raw in cells:
            cell = Metric(None, None, None, datatype, False, field is None, field, raw)
            values.append(None if field is None else value_of(cell, datatype))
        if not values:
            raise ValueRefusedError("bad_value", "its DataSet has no rows")
        if all(isinstance(value, int | float) for value in values):
            return _numbers([int(value) if isinstance(value, bool) else value for value in values])
    except ValueRefusedError as error:
        return error
    return msgspec.json.encode(values).decode()


def _integer(raw: int, wire_bits: int, datatype: int) -> contract.Value:
    if datatype == _DATETIME:
        if raw > _MAX_MS:
            raise ValueRefusedError("bad_value", f"the DateTime {raw} ms is after the year 9999")
        return (_EPOCH + timedelta(milliseconds=raw)).isoformat(timespec="milliseconds")
    if datatype == 0:
        raise ValueRefusedError("unknown_type", f"the integer {raw} has no datatype, and no birth says it")
    if (width := _INTEGERS.get(datatype)) is None:
        raise ValueRefusedError("bad_value", f"the integer {raw} for the datatype {datatype}")
    value = whole_number(raw, wire_bits, *width)
    if value is None:
        kind = f"{'Int' if width[1] else 'UInt'}{width[0]}"
        raise ValueRefusedError("bad_value", f"{raw} does not fit {kind}")
    if value > contract.MAX_INT:
        raise ValueRefusedError("bad_value", f"{value} does not fit a signed whole number of 64 bits")
    return value


def whole_number(raw: int, wire_bits: int, bits: int, signed: bool) -> int | None:
    """Convert an unsigned field of `wire_bits` to an integer of `bits`, None if it does not fit."""
    if not signed:
        return raw if raw < 1 << bits else None
    if raw < 1 << (bits - 1):
        return raw
    if bits <= wire_bits and raw >= (1 << wire_bits) - (1 << (bits - 1)):
        return raw - (1 << wire_bits)
    return raw - (1 << bits) if raw < 1 << bits and bits <= wire_bits else None


def rebirth_command(now_ms: int) -> bytes:
    """Return the NCMD payload that asks for births."""
    metric = METRIC(name=REBIRTH.encode(), timestamp=now_ms, datatype=_BOOLEAN, boolean_value=True)
    packed: bytes = PAYLOAD(timestamp=now_ms, metrics=[metric.SerializeToString()]).SerializeToString()
    return packed


def _schema() -> list[Any]:
    """Build the classes of messages from field numbers."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="petiole/sparkplug_b.proto", package="petiole.sparkplug_b", syntax="proto2"
    )
    payload, metric = file.message_type.add(name="Payload"), file.message_type.add(name="Metric")
    payload.field.add(name="metrics", number=2, type=kinds.TYPE_BYTES, label=kinds.LABEL_REPEATED)
    _add_optional(
        payload,
        ("timestamp", 1, kinds.TYPE_UINT64),
        ("seq", 3, kinds.TYPE_UINT64),
        ("uuid", 4, kinds.TYPE_BYTES),
    )
    _add_optional(
        metric,
        ("name", 1, kinds.TYPE_BYTES),
        ("alias", 2, kinds.TYPE_UINT64),
        ("timestamp", 3, kinds.TYPE_UINT64),
        ("datatype", 4, kinds.TYPE_UINT32),
        ("is_historical", 5, kinds.TYPE_BOOL),
        ("is_null", 7, kinds.TYPE_BOOL),
    )
    metric.oneof_decl.add(name="value")
    _add_optional(
        metric,
        ("int_value", 10, kinds.TYPE_UINT32),
        ("long_value", 11, kinds.TYPE_UINT64),
        ("float_value", 12, kinds.TYPE_FLOAT),
        ("double_value", 13, kinds.TYPE_DOUBLE),
        ("boolean_value", 14, kinds.TYPE_BOOL),
        ("string_value", 15, kinds.TYPE_BYTES),
        ("bytes_value", 16, kinds.TYPE_BYTES),
        ("dataset_value", 17, kinds.TYPE_BYTES),
        ("template_value", 18, kinds.TYPE_BYTES),
        ("extension_value", 19, kinds.TYPE_BYTES),
        oneof_index=0,
    )
    template, dataset, row, element = (
        file.message_type.add(name=name) for name in ("Template", "DataSet", "Row", "Element")
    )
    template.field.add(name="metrics", number=2, type=kinds.TYPE_BYTES, label=kinds.LABEL_REPEATED)
    _add_optional(template, ("is_definition", 5, kinds.TYPE_BOOL))
    for message, name, number, kind in (
        (dataset, "columns", 2, kinds.TYPE_BYTES),
        (dataset, "types", 3, kinds.TYPE_UINT32),
        (dataset, "rows", 4, kinds.TYPE_BYTES),
        (row, "elements", 1, kinds.TYPE_BYTES),
    ):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_REPEATED)
    element.oneof_decl.add(name="value")
    _add_optional(
        element,
        ("int_value", 1, kinds.TYPE_UINT32),
        ("long_value", 2, kinds.TYPE_UINT64),
        ("float_value", 3, kinds.TYPE_FLOAT),
        ("double_value", 4, kinds.TYPE_DOUBLE),
        ("boolean_value", 5, kinds.TYPE_BOOL),
        ("string_value", 6, kinds.TYPE_BYTES),
        oneof_index=0,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [_class(pool, message.name) for message in file.message_type]


def _add_optional(message: Any, *fields: tuple[str, int, Any], **options: int) -> None:
    label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    for name, number, kind in fields:
        message.field.add(name=name, number=number, type=kind, label=label, **options)


def _class(pool: Any, kind: str) -> Any:
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"petiole.sparkplug_b.{kind}"))


PAYLOAD, METRIC, TEMPLATE, DATASET, ROW, ELEMENT = _schema()
