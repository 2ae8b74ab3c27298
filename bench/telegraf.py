"""Telegraf at the edge, built once from its Go module with only the plugins that are used here: it takes
readings over HTTP and publishes them to a stream of JetStream, many lines a message.

`python -m bench.telegraf` builds it into build/telegraf/ and says what is missing where it cannot; with
`sender` the one that tests/e2e/test_otlp_senders.py needs, apart, so that what is measured stays as it is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from agent.demo.loopback import free_port
from bench.agents import Daemon

Buffer = Literal["memory", "disk"]
"""What it answers for is in memory until it is published, or in a log on disk that it syncs; it answers as
soon as it has parsed a request, before either."""

VERSION: Final = "1.37.2"
STREAM: Final = "TELEGRAF"
SUBJECT: Final = "telegraf"
_GO: Final = "1.25.5"
"""What it asks for. Go reads only what is needed of the graph of modules where its own version is said."""
_MODULE: Final = "github.com/influxdata/telegraf"
_TAGS: Final = "custom,inputs.http_listener_v2,parsers.influx,parsers.json,outputs.nats,serializers.influx"
_SENDER_TAGS: Final = f"{_TAGS},outputs.http,outputs.opentelemetry"
_BUILT: Final = Path("build/telegraf")
_LONGEST: Final = 300


def program(*, sender: bool = False) -> Path:
    """The built program; it is built where it is not there. Raises `RuntimeError`."""
    path = _BUILT / f"telegraf-{VERSION}{'-sender' if sender else ''}"
    if not path.exists():
        _build(path, _SENDER_TAGS if sender else _TAGS)
    return path.resolve()


def json_v2() -> Path:
    """The built bench/json_v2.go, which has the parser alone. Raises `RuntimeError`."""
    path = _BUILT / "json_v2" / f"json_v2-{VERSION}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).parent / "json_v2.go", path.parent / "main.go")
        _build(path, "", ".")
    return path.resolve()


def _build(path: Path, tags: str, package: str = f"{_MODULE}/cmd/telegraf") -> None:
    go = shutil.which("go")
    if go is None:
        raise RuntimeError(
            f"Telegraf {VERSION} has to be compiled and there is no Go: install {_GO} or later"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "go.mod").write_text(
        f"module bench.invalid/telegraf\n\ngo {_GO}\n\nrequire {_MODULE} v{VERSION}\n"
    )
    command = [go, "build", "-mod=mod", "-tags", tags, "-o", path.name, package]
    print(f"compiling Telegraf {VERSION}, which takes some minutes once", flush=True)
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise RuntimeError(
            f"Telegraf {VERSION} cannot be compiled, as its Go module or a module that it needs is missing: "
            + "".join(last)[:_LONGEST]
        )


def edge(directory: Path, server: str, buffer: Buffer) -> tuple[Daemon, int]:
    """A Telegraf that is not started, publishing to a server: it takes line protocol at its port, and JSON
    at the one beside."""
    directory.mkdir(parents=True)
    lines, json = free_port(), free_port()
    path = directory / "telegraf.conf"
    path.write_text(_config(directory, server, buffer, lines, json))
    command = (str(program()), "--config", str(path), "--quiet")
    return Daemon(command, directory / "log", lines), json


def _config(directory: Path, server: str, buffer: Buffer, lines: int, json: int) -> str:
    return f"""\
[agent]
  omit_hostname = true
  flush_interval = "1s"
  metric_batch_size = 1000
  metric_buffer_limit = 100000
  buffer_strategy = "{buffer}"
  buffer_directory = "{directory / "buffer"}"

[[inputs.http_listener_v2]]
  service_address = "tcp://127.0.0.1:{lines}"
  paths = ["/write"]
  data_format = "influx"

[[inputs.http_listener_v2]]
  service_address = "tcp://127.0.0.1:{json}"
  paths = ["/write"]
  data_format = "json"
  tag_keys = ["device", "metric", "tags_*"]
  json_time_key = "ts"
  json_time_format = "unix"

[[outputs.nats]]
  servers = ["{server}"]
  subject = "{SUBJECT}"
  use_batch_format = true
  data_format = "influx"
  [outputs.nats.jetstream]
    name = "{STREAM}"
    subjects = ["{SUBJECT}"]
    disable_stream_creation = true
"""


def built(program: Callable[[], object]) -> int:
    """Build a program and print where it is; returns the exit code."""
    try:
        print(program())
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(built(lambda: program(sender=sys.argv[1:] == ["sender"])))
