"""One nats-server that stands for many leaves with real streams: an account a leaf, each with JetStream, its
own link to the hub with its own key, and the names of its own JetStream domain."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from agent.base.files import write_private
from agent.base.nats_server import find_binary
from bench.fleet_wire import LinkKey

PASSWORD: Final = "bench"


def configuration(directory: Path, port: int, hub: int, keys: Iterable[LinkKey]) -> str:
    """The configuration of that server. A domain is another name for `$JS.API` in its account, which is what
    nats-server itself makes of the domain of a whole server."""
    accounts, remotes = [], []
    for key in keys:
        name = key.domain
        accounts.append(
            f'  "{name}": {{ jetstream: enabled, users: [ {{ user: "{name}", password: {PASSWORD} }} ],\n'
            f'    mappings: {{ "$JS.{name}.API.>": "$JS.API.>" }} }}\n'
        )
        remotes.append(
            f'    {{ urls: [ "nats-leaf://127.0.0.1:{hub}" ], account: "{name}", nkey: "{key.seed}",'
            f" compression: off }}\n"
        )
    return f"""\
server_name: real-sources
listen: "127.0.0.1:{port}"
log_file: {json.dumps(str(directory / "nats-server.log"))}
ping_interval: "5s"
ping_max: 2
jetstream: {{
  domain: real-sources, store_dir: {json.dumps(str(directory / "store"))}, max_file_store: {2**40}
}}
accounts: {{
{"".join(accounts)}}}
leafnodes: {{
  remotes: [
{"".join(remotes)}  ]
}}
"""


def start(directory: Path, text: str) -> subprocess.Popen[bytes]:
    """Start it."""
    directory.mkdir(parents=True)
    path = directory / "nats-server.conf"
    write_private(path, text.encode())
    with (directory / "output").open("ab") as output:
        return subprocess.Popen(
            [find_binary(), "-c", path], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
