"""A hub of three servers with rendered configurations, which no agent runs."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg
from typer.testing import CliRunner

from agent.cli.main import app
from agent.contract import inbox_prefix
from agent.demo.loopback import free_port
from tests.harness.certificates import Authority
from tests.harness.configured import ConfiguredServer, closed
from tests.harness.wait import until

CONFIG = """
role = "hub"
domain = "hub"
state_dir = "{directory}/state"

[registrar]
max_bytes = "1GiB"
replicas = 3

[nats]
server = "external"
listen = "127.0.0.1:{port}"
seed_file = "{directory}/state/keys/registrar.nk"
system_seed_file = "{directory}/state/keys/registrar_system.nk"
store_dir = "{directory}/{name}/store"
max_file_store = "2GiB"
leaf_listen = "127.0.0.1:{leaf_port}"

[nats.cluster]
name = "{name}"
listen = "127.0.0.1:{route}"
routes = {routes}
password_file = "{directory}/password"
"""


@pytest.mark.parametrize("tls", [False, True], ids=["password", "tls"])
async def test_three_servers_find_each_other_and_let_no_stranger_in(tmp_path: Path, tls: bool) -> None:
    ports = {name: free_port() for name in "abc"}
    more = ""
    if tls:
        authority = Authority(tmp_path)
        cert, key = authority.signed("cluster", 3600)
        files = {"cert": cert, "key": key, "ca": authority.file}
        more = "".join(f'tls_{name} = "{file}"\n' for name, file in files.items())
    (tmp_path / "password").write_text("secret-of-the-three\n")
    (tmp_path / "password").chmod(0o600)
    routes = {name: free_port() for name in "abc"}
    addresses = json.dumps([f"127.0.0.1:{route}" for route in routes.values()])
    for name, port in ports.items():
        file = tmp_path / f"{name}.toml"
        text = CONFIG.format(
            directory=tmp_path,
            name=name,
            port=port,
            leaf_port=free_port(),
            route=routes[name],
            routes=addresses,
        )
        file.write_text(text + more)
        for command in (["render", "--out", str(tmp_path / name)], ["enrol"]):
            done = CliRunner().invoke(app, [*command, "-c", str(file)])
            assert done.exit_code == 0, done.output
    servers: list[ConfiguredServer] = []
    async with AsyncExitStack() as stack:
        for name, port in ports.items():
            directory = tmp_path / name
            shutil.copy(tmp_path / "identity.conf", directory)
            server = ConfiguredServer(directory, name, port, (directory / "nats.conf").read_text())
            stack.push_async_callback(server.kill)
            await server.start()
            servers.append(server)
        system = await nats.connect(
            f"nats://127.0.0.1:{ports['a']}",
            nkeys_seed=str(tmp_path / "state" / "keys" / "registrar_system.nk"),
            inbox_prefix=inbox_prefix("registrar"),
        )
        stack.push_async_callback(closed, system)

        async def together() -> bool:
            inbox, answers = system.new_inbox(), list[Msg]()

            async def take(message: Msg) -> None:
                answers.append(message)

            heard = await system.subscribe(inbox, cb=take)
            await system.publish("$SYS.REQ.SERVER.PING.VARZ", b"", reply=inbox)
            await system.flush()
            await until(lambda: bool(answers), "a server answers")
            await heard.unsubscribe()
            return len(answers) == 3

        await until(together, "all three are one cluster")
        stranger = tmp_path / "stranger"
        shutil.copytree(tmp_path / "a", stranger, ignore=shutil.ignore_patterns("store"))
        include = stranger / "cluster.conf"
        text = (stranger / "server.conf").read_text().replace('"hub-a"', '"hub-x"')
        if tls:  # it knows the password, and has no certificate
            text, count = re.subn(r"  tls: \{[^}]*\}\n", "", text)
            assert count == 1
        else:
            include.write_text(include.read_text().replace("secret-of-the-three", "guessed"))
        port = free_port()
        text = text.replace(str(ports["a"]), str(port)).replace(f"{tmp_path}/a/", f"{stranger}/")
        for address in re.findall(r'listen: "127.0.0.1:(\d+)"', text)[1:]:
            text = text.replace(address, str(free_port()))
        other = ConfiguredServer(stranger, "x", port, text)
        stack.push_async_callback(other.kill)
        await other.start()
        if tls:
            refusal = "TLS route handshake error"
            await until(lambda: all(refusal in server.log for server in servers), "all refuse the stranger")
        else:
            await until(lambda: "Authorization" in other.log, "the stranger is turned away")
        await until(together, "all three are one cluster, without the stranger")
