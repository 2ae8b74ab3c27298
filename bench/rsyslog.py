"""rsyslogd in both places: at the edge, where it queues what it takes over RELP and forwards it over RELP,
and at the hub, where it writes a file that it syncs. These instances know nothing of a system's own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from agent.demo.ports import free_port
from bench.daemon import Daemon

Queue = Literal["synced", "documented"]
"""`synced`: everything goes through a queue on disk that is synced for each message. `documented`: as
rsyslog's documents show reliable forwarding, in memory and on disk where that is full or at a shutdown."""

_MODULES: Final = Path("/usr/lib/x86_64-linux-gnu/rsyslog")

_SYNCED: Final = """\
main_queue(queue.type="Disk" queue.filename="main" queue.size="5000000" queue.maxDiskSpace="4g"
  queue.syncQueueFiles="on" queue.checkpointInterval="1" queue.saveOnShutdown="on")
"""
_DOCUMENTED: Final = """\
  queue.type="LinkedList" queue.filename="forward" queue.saveOnShutdown="on" queue.size="5000000"
"""
_QUEUES: Final[dict[Queue, tuple[str, str]]] = {"synced": (_SYNCED, ""), "documented": ("", _DOCUMENTED)}
"""That of the daemon, and of its forwarding."""


def _missing() -> str | None:
    """What has to be installed, in words, or None."""
    if shutil.which("rsyslogd") is None or not any(_MODULES.parent.parent.glob("*/rsyslog/omrelp.so")):
        return "rsyslogd with RELP is not here: apt-get install rsyslog rsyslog-relp"
    return None


def version() -> str:
    """That of the installed program. Raises `RuntimeError` without it."""
    if (why := _missing()) is not None:
        raise RuntimeError(why)
    said = subprocess.run(["rsyslogd", "-v"], check=True, capture_output=True, text=True).stdout
    return said.split()[1]


@contextmanager
def pair(directory: Path, queue: Queue, dialled: int, hub_port: int) -> Iterator[tuple[Daemon, Daemon, Path]]:
    """Edge, hub, and the file that the hub writes; not started. The edge dials `dialled`, which leads to the
    hub's port."""
    received = directory / "hub" / "received"
    main, action = _QUEUES[queue]
    edge_port = free_port()
    edge = _daemon(
        _made(directory / "edge"),
        _head(directory / "edge", edge_port)
        + f'module(load="omrelp")\n{main}'
        + f'action(type="omrelp" target="127.0.0.1" port="{dialled}" action.resumeRetryCount="-1"\n'
        + f'  action.resumeInterval="1" timeout="10"\n{action})\n',
        edge_port,
    )
    hub = _daemon(
        _made(directory / "hub"),
        _head(directory / "hub", hub_port)
        + 'template(name="line" type="string" string="%msg%\\n")\n'
        + f'action(type="omfile" file="{received}" template="line" sync="on" flushOnTXEnd="on")\n',
        hub_port,
    )
    try:
        yield edge, hub, received
    finally:
        edge.kill()
        hub.kill()


def _daemon(directory: Path, config: str, port: int) -> Daemon:
    path = directory / "rsyslog.conf"
    path.write_text(config)
    return Daemon(("rsyslogd", "-n", "-f", str(path), "-iNONE"), directory / "log", port)


def _head(directory: Path, port: int) -> str:
    return f"""\
global(workDirectory="{directory / "work"}" maxMessageSize="128k"
  parser.escapeControlCharactersOnReceive="off")
module(load="imrelp")
input(type="imrelp" port="{port}" address="127.0.0.1")
"""


def _made(directory: Path) -> Path:
    (directory / "work").mkdir(parents=True)
    return directory
