"""The options of the input `syslog`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from agent import contract
from agent.config import Seconds, Size
from agent.leaf.inputs.formats.line_values import LineError, check_name
from agent.leaf.inputs.shared.access import ListenOptions

_LEAST_MESSAGE: Final = 2048
"""Message size that RFC 5424 asks of receivers."""


class SyslogOptions(ListenOptions, tag="syslog", kw_only=True):
    """The options of one `syslog` input. deploy/reference.toml says what each means."""

    name: str = "syslog"
    listen: str = "127.0.0.1:5514"
    tls_ca: Path | None = None
    metric: str = "syslog"
    message: Size = Size(64 * 1024)
    max_connections: Annotated[int, Meta(ge=1, le=10_000)] = 128
    idle: Seconds = Seconds(3600.0)
    buffer: Size = Size(16 * 2**20)


def problems(options: SyslogOptions) -> Iterator[str]:
    try:
        check_name(options.metric, "metric")
    except LineError as error:
        yield str(error)
    if options.tls_ca is not None and options.tls_cert is None:
        yield "tls_ca asks senders for certificates, and that needs tls_cert and tls_key"
    if not _LEAST_MESSAGE <= options.message <= contract.MAX_BATCH_BYTES:
        yield f"message is {options.message} bytes; take 2KiB to 256KiB"
    elif options.buffer // options.max_connections < options.message:
        yield (
            f"buffer does not hold a message of {options.message} bytes for each of "
            f"{options.max_connections} connections; make it larger, or the others smaller"
        )
