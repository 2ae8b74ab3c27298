"""What a configuration may add to that of nats-server, and what it may not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from agent.base.nats_server import RenderError
from agent.config.server_overlay import HUB_TAKEN, LEAF_TAKEN, REMOTE_TAKEN, extra_problems
from agent.server.render import _hub, _leaf, render
from agent.server.values import ClusterConfig
from tests.unit.server.test_render import HUB, LEAF, MQTT

ADDED = {
    "leafnodes": {
        "tls": {"cert_file": "/c.pem", "key_file": "/k.pem", "handshake_first": True, "timeout": 2.5},
        "compression": {"mode": "s2_auto", "rtt_thresholds": ["10ms", "50ms"]},
    },
    "websocket": {"listen": "0.0.0.0:443", "no_tls": True},
    "jetstream": {"cipher": "aes", "key": "$STORE_KEY"},
    "max_connections": 100,
}


def test_what_is_added_stands_beside_what_is_rendered() -> None:
    text = render(replace(HUB, extra=ADDED))
    for line in (
        "    handshake_first: true\n",
        "    timeout: 2.5\n",
        '    mode: "s2_auto"\n',
        '      "10ms"\n',
        "  key: $STORE_KEY\n",
        '  domain: "hub"\n',
        "  no_advertise: true\n",
        "max_connections: 100\n",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("added", "key"),
    [
        ({"server_name": "other"}, "server_name"),
        ({"jetstream": {"sync_interval": "2m"}}, "jetstream.sync_interval"),
        ({"jetstream": {"storedir": "/x"}}, "jetstream.storedir"),
        ({"leafnodes": {"no_advertise": False}}, "leafnodes.no_advertise"),
        ({"leafnodes": {"port": 1}}, "leafnodes.port"),
        ({"leafnodes": {"authorization": {"user": "x"}}}, "leafnodes.authorization"),
        ({"leafnodes": 7}, "leafnodes"),
        ({"leafnode": {}}, "leafnode"),
        ({"websocket": {"no_auth_user": "x"}}, "websocket.no_auth_user"),
        ({"accounts": {}}, "accounts"),
        ({"tls": {"cert_file": "/c"}}, "tls"),
        ({"Accounts": {}}, "Accounts"),
        ({"jetstream": {"key": "s3cr3t"}}, "jetstream.key"),
        ({"websocket": {"token": "s3cr3t"}}, "websocket.token"),
        ({"websocket": {"include": "../x"}}, "websocket.include"),
        ({"gateway": {"gateways": [{"token": "x"}]}}, "gateway.gateways[1].token"),
        ({"http": "a\nb"}, "http"),
    ],
)
def test_what_is_rendered_lets_others_in_or_is_a_secret_is_refused(added: dict[str, Any], key: str) -> None:
    found = list(extra_problems(added, HUB_TAKEN))
    assert key in [place for place, _, _ in found]
    assert "s3cr3t" not in str(found)
    with pytest.raises(RenderError):
        replace(HUB, extra=added)


def test_all_that_is_rendered_but_the_compression_of_a_link_is_known_to_be_taken() -> None:
    def missing(body: Mapping[str, Any], taken: Any, at: str = "") -> list[str]:
        if taken is True:
            return []
        lacking = [f"{at}{key}" for key in body if key not in taken]
        for key, value in body.items():
            if isinstance(value, Mapping) and key in taken:
                lacking += missing(value, taken[key], f"{at}{key}.")
        return lacking

    body = _leaf(MQTT)
    hub = _hub(replace(HUB, cluster=ClusterConfig("127.0.0.1:6222")))
    assert missing(hub, HUB_TAKEN) == ["leafnodes.compression"]
    assert missing(body, LEAF_TAKEN) == []
    assert missing(body["leafnodes"]["remotes"][0], REMOTE_TAKEN) == ["compression"]


def test_a_remote_may_be_told_of_tls_and_not_of_another_account() -> None:
    assert "handshake_first: true" in render(replace(LEAF, remote={"tls": {"handshake_first": True}}))
    with pytest.raises(RenderError, match="deny_imports is kept as it is"):
        replace(LEAF, remote={"deny_imports": []})
