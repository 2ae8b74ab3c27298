"""NATS' document on JetStream and leaf nodes: with linked system accounts one account resolver serves both
sides. `docs/client.md` walks through it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nkeys
import pytest
from nats.aio.client import Client

from agent.base.nats_server import ask, find_binary
from agent.demo.loopback import free_port
from agent.jetstream.connection import CancellableClient, abort
from tests.harness.configured import ConfiguredServer, closed
from tests.harness.wait import until

UNLIMITED = dict.fromkeys(("subs", "data", "payload"), -1)
SERVER = """
listen: "127.0.0.1:{port}"
server_name: {name}
operator: {operator}
system_account: {system}
resolver: {{ type: {kind}, dir: "{directory}/jwt" }}
resolver_preload: {{ {system}: {preload} }}
leafnodes {{ {leafnodes} }}
"""


class Key:
    """A key pair and what it signs."""

    def __init__(self, prefix: int) -> None:
        self.seed = nkeys.encode_seed(os.urandom(32), prefix)
        self._pair = nkeys.from_seed(self.seed)
        self.public = self._pair.public_key.decode()

    def token(self, subject: str, claims: dict[str, Any]) -> str:
        """A token in which this key says something of another one."""
        body = {"iss": self.public, "sub": subject, "iat": int(time.time()), "name": subject[:8]}
        body["nats"] = {"version": 2, **claims}
        body["jti"] = (
            base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode().rstrip("=")
        )
        parts = [encoded(json.dumps(one).encode()) for one in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)]
        return ".".join([*parts, encoded(self._pair.sign(".".join(parts).encode()))])


def encoded(data: bytes) -> str:
    """Base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Organisation:
    """An operator, its system account and another one, with a user each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._operator, self.system, self.account = (
            Key(prefix)
            for prefix in (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_ACCOUNT)
        )
        named = {"type": "operator", "system_account": self.system.public}
        self.token = self._operator.token(self._operator.public, named)

    def account_token(self, account: Key) -> str:
        """What the operator says of an account."""
        limits = {**UNLIMITED, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
        return self._operator.token(account.public, {"type": "account", "limits": limits})

    def credentials(self, account: Key, name: str) -> Path:
        """A file with which a new user of an account connects."""
        user = Key(nkeys.PREFIX_BYTE_USER)
        token = account.token(user.public, {"type": "user", "pub": {}, "sub": {}, **UNLIMITED})
        file = self._directory / f"{name}.creds"
        parts = (("NATS USER JWT", token), ("USER NKEY SEED", user.seed.decode()))
        file.write_text(
            "\n".join(f"-----BEGIN {what}-----\n{text}\n------END {what}------\n" for what, text in parts)
        )
        return file

    def server(self, name: str, kind: str, leafnodes: str) -> ConfiguredServer:
        """A server that knows the system account, and others by its resolver."""
        directory, port = self._directory / name, free_port()
        text = SERVER.format(
            port=port,
            name=name,
            operator=self.token,
            system=self.system.public,
            kind=kind,
            directory=directory,
            preload=self.account_token(self.system),
            leafnodes=leafnodes,
        )
        return ConfiguredServer(directory, name, port, text)


@pytest.mark.parametrize("linked", [True, False], ids=["linked", "not linked"])
async def test_an_account_that_the_hub_was_told_of_is_known_at_the_leaf_if_the_system_accounts_are_linked(
    tmp_path: Path, linked: bool
) -> None:
    ours = Organisation(tmp_path)
    leaf_port, system = free_port(), ours.credentials(ours.system, "system")
    remote = (
        f'url: "nats-leaf://127.0.0.1:{leaf_port}", account: "{ours.system.public}", credentials: "{system}"'
    )
    hub = ours.server("hub", "full", f'listen: "127.0.0.1:{leaf_port}"')
    leaf = ours.server("leaf", "cache", f"remotes: [ {{ {remote} }} ]" if linked else "")
    async with AsyncExitStack() as stack:
        for one in (hub, leaf):
            stack.push_async_callback(one.kill)
            await one.start()
        teller = await connected(stack, hub, system)
        token = ours.account_token(ours.account).encode()
        told = json.loads((await teller.request("$SYS.REQ.CLAIMS.UPDATE", token, timeout=30)).data)
        assert told["data"]["code"] == 200, told
        user = ours.credentials(ours.account, "user")
        await connected(stack, hub, user)

        async def known() -> bool:
            try:
                await connected(stack, leaf, user)
            except nats.errors.Error:
                return False
            return True

        if linked:
            await until(known, "a user of the account is let in at the leaf")
        else:
            assert not await known()


async def test_a_server_whose_configuration_has_accounts_takes_no_credentials(tmp_path: Path) -> None:
    ours = Organisation(tmp_path)
    with pytest.raises(nats.errors.Error, match="Authorization Violation"):
        await _let_in(tmp_path, "", ours.credentials(ours.account, "user"))
    told = f"operator: {ours.token}\nresolver: MEMORY\n"
    assert "operators do not allow" in await _refused(tmp_path, told)


async def _let_in(directory: Path, more: str, credentials: Path) -> None:
    port = free_port()
    accounts = 'accounts: { A: { users: [ { user: "a", password: "a" } ] } }'
    text = f'listen: "127.0.0.1:{port}"\nserver_name: plain\n{more}{accounts}\n'
    server = ConfiguredServer(directory / "plain", "plain", port, text)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.kill)
        await server.start()
        await connected(stack, server, credentials)


async def _refused(directory: Path, more: str) -> str:
    file = directory / "both.conf"
    file.write_text(f'{more}accounts: {{ A: {{ users: [ {{ user: "a", password: "a" }} ] }} }}\n')
    code, said = await ask(find_binary(), "--port", "-1", "-c", str(file))
    assert code != 0
    return said


async def connected(stack: AsyncExitStack, server: ConfiguredServer, credentials: Path) -> Client:
    """A user's client, which ends with the stack. Raises what nats-py does."""
    client = CancellableClient()
    try:
        await client.connect(
            server.url,
            user_credentials=str(credentials),
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=30,
        )
    except BaseException:
        abort(client)  # nats-py leaves the socket of a client that is refused open
        raise
    stack.push_async_callback(closed, client)
    return client
