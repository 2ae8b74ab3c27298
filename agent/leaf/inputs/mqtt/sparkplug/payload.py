"""Parses Sparkplug B payloads. No I/O. Needs `protobuf`.

Only used parts of Eclipse Tahu's schema are declared. Datasets, templates and metrics are declared as bytes,
so that they are counted before they take memory. UInt32 may be in `int_value` or `long_value`, and negative
integers in 8 or 32 bits; values beyond their type are refused.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from agent import contract

MAX_METRICS: Final = 5_000
"""Metrics per message."""
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
_ARRAYS: Final = (
    *("Int8Array", "Int16Array", "Int32Array", "Int64Array"),
    *("UInt8Array", "UInt16Array", "UInt32Array", "UInt64Array"),
    *("FloatArray", "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray"),
)
_UNSUPPORTED: Final = {
    16: "DataSet",
    17: "Bytes",
    18: "File",
    19: "Template",
    20: "PropertySet",
    21: "PropertySetList",
    **dict(enumerate(_ARRAYS, 22)),
}
_OPAQUE: Final = {
    "bytes_value": "Bytes",
    "dataset_value": "DataSet",
    "template_value": "Template",
    "extension_value": "extension",
}
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


def _schema() -> tuple[Any, Any]:
    """Build the classes of payload and metric from field numbers."""
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
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return _class(pool, "Payload"), _class(pool, "Metric")


def _add_optional(message: Any, *fields: tuple[str, int, Any], **options: int) -> None:
    label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    for name, number, kind in fields:
        message.field.add(name=name, number=number, type=kind, label=label, **options)


def _class(pool: Any, kind: str) -> Any:
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"petiole.sparkplug_b.{kind}"))


PAYLOAD, METRIC = _schema()
