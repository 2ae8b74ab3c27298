"""Caches attributes of OTLP scopes in stored form between exports. No I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint

from agent import contract
from agent.leaf.inputs.formats.line_values import LineError, Stamps, check_name, tail_of, to_json
from agent.leaf.inputs.http.otlp.values import Tags, check_tags, tags_of_scope, texts

_DEVICES: Final = ("host.name", "service.instance.id")
_CACHED: Final = 4 * 2**20
"""Cached bytes of names and attributes, received and stored."""


class Resource:
    """Tags shared by a resource's scopes, computed once."""

    def __init__(self, resource: Any) -> None:
        self._resource = resource
        self.key: Final[bytes] = resource.SerializeToString()
        self._found: tuple[str, Tags] | LineError | None = None

    @property
    def tags(self) -> tuple[str, Tags]:
        """Return the device ("" if none) and the tags; raises `LineError`."""
        if self._found is None:
            try:
                tags = texts(self._resource.attributes)
                self._found = next((tags.pop(name) for name in _DEVICES if tags.get(name)), ""), tags
            except LineError as error:
                self._found = error
        if isinstance(self._found, LineError):
            raise LineError(str(self._found), self._found.kind)
        return self._found


class Sources:
    """Known sources of one domain."""

    def __init__(self, domain: str) -> None:
        self.stamps = Stamps()
        self.reading: Final = asyncio.Lock()
        """Held while a thread reads an export."""
        self._domain = domain
        self._known: dict[tuple[bytes, bytes, bool], OtlpResource] = {}
        self._cached = 0

    def source(self, resource: Resource, scope: Any, *, delta: bool) -> OtlpResource:
        """Return the source of a scope; `delta` for non-cumulative points."""
        key = resource.key, scope.SerializeToString(), delta
        source = self._known.get(key)
        if source is None:
            source = self._make(resource, scope, delta)
            self.remember(len(key[0]) + len(key[1]) + source.cost)
            self._known[key] = source
        return source

    @property
    def count(self) -> int:
        """The number of cached sources."""
        return len(self._known)

    def _make(self, resource: Resource, scope: Any, delta: bool) -> OtlpResource:
        try:
            named, tags = resource.tags
            tags = {**tags, **tags_of_scope(scope)}
        except LineError as error:
            return OtlpResource(self._domain, {}, self, error)
        device = named or self._domain
        return OtlpResource(device, {**tags, "otel.temporality": "delta"} if delta else tags, self)

    def remember(self, size: int) -> None:
        """Reserve `size` bytes; clears the cache when full."""
        self._cached += size + 200
        if self._cached > _CACHED:
            self._known.clear()
            self._cached = size


class OtlpResource:
    """Device and shared tags of points; `error` applies to each point."""

    def __init__(self, device: str, tags: Tags, sources: Sources, error: LineError | None = None) -> None:
        self._device = device
        self._error = error
        self._tags = tags
        self._sources = sources
        self._names: dict[str, bytes] = {}
        self.tails: dict[bytes, bytes] = {}
        """Ends of readings by received attributes."""
        self.cost: Final = 2 * len(device.encode()) + 160
        """Most bytes of a reading beside name and tags."""

    def before(self, metric: str) -> bytes:
        """Return the text between time and value; raises `LineError`."""
        text = self._names.get(metric)
        if text is None:
            if self._error is not None:
                raise LineError(str(self._error), self._error.kind)
            check_name(self._device, "the device")
            check_name(metric, "the metric")
            text = b'"device":' + to_json(self._device) + b',"metric":' + to_json(metric) + b',"value":'
            self._sources.remember(2 * len(text))
            self._names[metric] = text
        return text

    def tags(self, point: Any) -> Tags:
        """Return a point's tags; raises `LineError`."""
        if point.attributes and len(self._tags) < contract.MAX_TAGS:
            tags = {**self._tags, **texts(point.attributes)}
        else:
            tags = self._tags
        check_tags(tags)
        return tags

    def tails_of(self, attributes: list[bytes], points: Sequence[Any], first: int) -> list[bytes]:
        """Return ends of readings for number points with these attributes, from `points[first]`. Raises
        `LineError`.
        """
        tails = list(map(self.tails.get, attributes))
        if None in tails:
            for index, packed in enumerate(attributes, first):
                if packed not in self.tails:
                    self.learn(points[index], tail_of(self.tags(points[index])))
                    if packed not in self.tails:
                        raise LineError("a point with more than its number and attributes")
            return [self.tails[packed] for packed in attributes]
        return tails  # type: ignore[return-value]

    def learn(self, point: Any, tail: bytes) -> None:
        """Cache the end of readings with this point's attributes."""
        bare = NumberDataPoint(attributes=point.attributes).SerializeToString()
        self._sources.remember(len(bare) + len(tail))
        self.tails[bare] = tail
