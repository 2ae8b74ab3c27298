"""Requests of Prometheus remote write as protobuf's own runtime writes them, from the messages of Prometheus
(prompb/types.proto, prompb/io/prometheus/write/v2/types.proto), as far as they are needed."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PATH: Final = "/api/v1/write"
HEADERS: Final = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
V2: Final = {"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}
STALE: Final = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
_TYPES: Final = {"string": 9, "double": 1, "int64": 3, "uint32": 13, "uint64": 4}
_SCHEMA: Final = {
    "v1.Label": "string name 1, string value 2",
    "v1.Sample": "double value 1, int64 timestamp 2",
    "v1.Exemplar": "*Label labels 1, double value 2, int64 timestamp 3",
    "v1.Histogram": "uint64 count_int 1, double sum 3, int64 timestamp 15",
    "v1.TimeSeries": "*Label labels 1, *Sample samples 2, *Exemplar exemplars 3, *Histogram histograms 4",
    "v1.MetricMetadata": "string metric_family_name 2, string help 4",
    "v1.WriteRequest": "*TimeSeries timeseries 1, *MetricMetadata metadata 3",
    "v2.Sample": "double value 1, int64 timestamp 2, int64 start_timestamp 3",
    "v2.Exemplar": "*uint32 labels_refs 1, double value 2, int64 timestamp 3",
    "v2.Histogram": "uint64 count_int 1, double sum 3, int64 timestamp 15",
    "v2.Metadata": "uint32 type 1, uint32 help_ref 3, uint32 unit_ref 4",
    "v2.TimeSeries": "*uint32 labels_refs 1, *Sample samples 2, *Histogram histograms 3, "
    "*Exemplar exemplars 4, Metadata metadata 5",
    "v2.Request": "*string symbols 4, *TimeSeries timeseries 5",
}


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for package in ("v1", "v2"):
        file = descriptor_pb2.FileDescriptorProto(name=package, package=package, syntax="proto3")
        for name, text in _SCHEMA.items():
            if not name.startswith(package):
                continue
            message = file.message_type.add(name=name.partition(".")[2])
            for field in text.split(", "):
                kind, field_name, number = field.split()
                label = 3 if kind.startswith("*") else 1
                kind = kind.lstrip("*")
                about: dict[str, Any] = (
                    {"type": _TYPES[kind]}
                    if kind in _TYPES
                    else {"type": 11, "type_name": f".{package}.{kind}"}
                )
                message.field.add(name=field_name, number=int(number), label=label, **about)
        pool.Add(file)
    return pool


_POOL: Final = _pool()
WriteRequest: Final[Any] = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("v1.WriteRequest"))
Request: Final[Any] = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("v2.Request"))
Samples = Sequence[tuple[Mapping[str, str], Sequence[tuple[float, int]]]]
"""Labels, and values with their times (ms)."""


def request_1(series: Samples) -> Any:
    """A `prometheus.WriteRequest`."""
    request = WriteRequest()
    for labels, samples in series:
        one = request.timeseries.add()
        for name, value in labels.items():
            one.labels.add(name=name, value=value)
        for number, ms in samples:
            one.samples.add(value=number, timestamp=ms)
    return request


def request_2(series: Samples) -> Any:
    """An `io.prometheus.write.v2.Request`."""
    request, symbols = Request(), {"": 0}
    for labels, samples in series:
        one = request.timeseries.add()
        for text in (text for label in labels.items() for text in label):
            one.labels_refs.append(symbols.setdefault(text, len(symbols)))
        for number, ms in samples:
            one.samples.add(value=number, timestamp=ms)
    request.symbols.extend(symbols)
    return request


def packed(request: Any) -> bytes:
    """A body as it is sent."""
    return bytes(cramjam.snappy.compress_raw(request.SerializeToString()))
