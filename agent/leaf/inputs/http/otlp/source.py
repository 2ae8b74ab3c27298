"""What the points of one scope of an OTLP export share, and what is remembered of it from one export to the
next: attributes in the form in which they are stored. No I/O."""

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
"""Bytes of names and attributes that are remembered, as they came and as they are stored."""


class Resource:
    """What the scopes of one resource share, looked at once: there may be as many scopes as attributes."""

    def __init__(self, resource: Any) -> None:
        self._resource = resource
        self.key: Final[bytes] = resource.SerializeToString()
        self._found: tuple[str, Tags] | LineError | None = None

    @property
    def tags(self) -> tuple[str, Tags]:
        """The device, empty where none is named, and the tags; raises `LineError`."""
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
    """The sources that were seen, for one domain."""

    def __init__(self, domain: str) -> None:
        self.stamps = Stamps()
        self.reading: Final = asyncio.Lock()
        """Held while an export is read in a thread."""
        self._domain = domain
        self._known: dict[tuple[bytes, bytes, bool], OtlpResource] = {}
        self._cached = 0

    def source(self, resource: Resource, scope: Any, *, delta: bool) -> OtlpResource:
        """What the points of this scope share; `delta` where they are not cumulative."""
        key = resource.key, scope.SerializeToString(), delta
        source = self._known.get(key)
        if source is None:
            source = self._make(resource, scope, delta)
            self.remember(len(key[0]) + len(key[1]) + source.cost)
            self._known[key] = source
        return source

    @property
    def count(self) -> int:
        """How many are remembered."""
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
        """Make room for `size` bytes more: all is forgotten now and then."""
        self._cached += size + 200
        if self._cached > _CACHED:
            self._known.clear()
            self._cached = size


class OtlpResource:
    """The device, and tags to which each point adds its own; an `error` is that of each point."""

    def __init__(self, device: str, tags: Tags, sources: Sources, error: LineError | None = None) -> None:
        self._device = device
        self._error = error
        self._tags = tags
        self._sources = sources
        self._names: dict[str, bytes] = {}
        self.tails: dict[bytes, bytes] = {}
        """How readings end, by the attributes of a point as they came."""
        self.cost: Final = 2 * len(device.encode()) + 160
        """Bytes that a reading takes at most beside its name and its tags."""

    def before(self, metric: str) -> bytes:
        """What stands between time and value; raises `LineError`."""
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
        """The tags of a point; raises `LineError`."""
        if point.attributes and len(self._tags) < contract.MAX_TAGS:
            tags = {**self._tags, **texts(point.attributes)}
        else:
            tags = self._tags
        check_tags(tags)
        return tags

    def tails_of(self, attributes: list[bytes], points: Sequence[Any], first: int) -> list[bytes]:
        """How the readings of points of a number end that have these attributes as they came; the first is
        `points[first]`. Raises `LineError` where one of them has no such end."""
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
        """Remember how readings end that have the attributes of this point of a number."""
        bare = NumberDataPoint(attributes=point.attributes).SerializeToString()
        self._sources.remember(len(bare) + len(tail))
        self.tails[bare] = tail
