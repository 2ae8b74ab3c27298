"""Where a record of an aggregate came from, as the hub's server wrote it into `Nats-Stream-Source`. Pure.

The value is `<index> <seq> <filters> <transforms> <subject> <identity>`. The index is the source's stream
name, with `:` and a hash of the API prefix when the stream is another domain's, and with `:C=` and a hash of
the consumer's name when the source reads a durable consumer. The consumer changes with every epoch, the API
prefix does not, so a domain is found by the first two. (server/stream.go, composeIName and genSourceHeader;
seen on nats-server 2.15.1.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

SOURCE_HEADER: Final = b"Nats-Stream-Source"

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CONSUMER_MARK: Final = ":C="
_FIELDS: Final = 6
_SEQ_DIGITS: Final = 18


@dataclass(frozen=True, slots=True)
class SourceKey:
    """The place of a record in the stream it was sourced from.

    `identity` tells two streams of one name apart (a hash of when the stream was made; empty from a server
    older than 2.15); `subject` is the subject it had there.
    """

    stream: str
    index: str
    seq: int
    identity: str
    subject: str

    @property
    def origin(self) -> str:
        """The index without the consumer: the same for every epoch."""
        return origin(self.index)


def origin(index: str) -> str:
    """An index without its consumer, as it stands in `StreamInfo.source_index`."""
    return index.partition(_CONSUMER_MARK)[0]


def parse_source(value: bytes) -> SourceKey:
    """Parse the value of `Nats-Stream-Source`. Raises ValueError in words when it is something else."""
    fields = value.decode(errors="replace").split(" ")
    if len(fields) == _FIELDS - 1:
        fields.append("")
    if len(fields) != _FIELDS or not fields[1].isascii() or not fields[1].isdigit():
        raise ValueError(f"not a Nats-Stream-Source value: {value[:200]!r}")
    index, seq, _, _, subject, identity = fields
    if len(seq) > _SEQ_DIGITS:
        raise ValueError(f"not a sequence in a Nats-Stream-Source value: {seq[:200]!r}")
    return SourceKey(index.partition(":")[0], index, int(seq), identity, subject)


def name_hash(text: str) -> str:
    """The server's short hash of a name: eight bytes of SHA-256, each modulo 62."""
    return "".join(_DIGITS[byte % 62] for byte in hashlib.sha256(text.encode()).digest()[:8])


def index_name(source: Mapping[str, Any]) -> str:
    """The index of a source of a stream's configuration, without its consumer (see `origin`)."""
    api = (source.get("external") or {}).get("api")
    return f"{source['name']}:{name_hash(api)}" if api else str(source["name"])


def source_index(sources: list[Mapping[str, Any]], own_domain: str) -> dict[str, str]:
    """The domain of every source, by its index without the consumer.

    A source without `external` is a stream of the server itself, of `own_domain`. A prefix that is not
    `$JS.<domain>.API` names no domain and is left out.
    """
    found: dict[str, str] = {}
    for source in sources:
        api = (source.get("external") or {}).get("api")
        domain = own_domain if not api else _domain_of(api)
        if domain:
            found[index_name(source)] = domain
    return found


def _domain_of(api: str) -> str:
    parts = api.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == "$JS" and parts[2] == "API" else ""
