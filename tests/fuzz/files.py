"""Files that a person or a crash may have left in any state: configuration, state, known keys."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from agent.base.clock import Instant
from agent.base.files import write_private
from agent.cli.members.edit import (
    LEAVES,
    Enrolled,
    MemberError,
    added,
    enrolled,
    forgotten,
    replaced,
    revoked,
)
from agent.config import ConfigError, load
from agent.contract import Checkpoint, Clock, Readings, new_run
from agent.leaf import state
from agent.leaf.inputs import OPTIONS
from agent.leaf.publish.idempotency_recovery import load_keys
from agent.leaf.state import PullPosition
from agent.leaf.state_file import StateError
from agent.leaf.state_file import load as load_state
from tests.fuzz.target import only, target

ROOT = Path(__file__).parents[2]
PLACE = Path(tempfile.mkdtemp(prefix="petiole-fuzz-"))
EXAMPLE = (ROOT / "config.example.toml").read_bytes()
HUB = (ROOT / "deploy" / "nats" / "hub" / "petiole.toml").read_bytes()
LEAF = b'domain = "edge-1"\n[[class]]\nname = "normal"\n[[input]]\ntype = "http"\nlisten = "127.0.0.1:8080"\n'


def kept(data: bytes) -> Path:
    """The bytes in a file."""
    path = PLACE / "file"
    path.write_bytes(data)
    return path


@target(
    LEAF,
    EXAMPLE,
    HUB,
    b'role = "hub"\n[[leaf]]\ndomain = "a"\nkey = "U"\n',
    b"domain = 1\nclass = 3\ninput = 4",
)
def configuration(data: bytes) -> None:
    with only(ConfigError):
        load(kept(data), OPTIONS)


@target(
    HUB,
    b"# a\n[[leaf]]\ndomain = 'edge-1'\nkey = 'U'\n",
    b"leaf = [{domain = 'edge-1'}]\n",
    b"leaf = 1",
)
def members(data: bytes) -> None:
    text = data.decode(errors="replace")
    with only(MemberError):
        enrolled(text)
    with only(MemberError):
        assert "new-1" in added(text, Enrolled("new-1", "UKEY"))
    with only(MemberError):
        replaced(text, LEAVES, "edge-1", "UKEY")
    for change in (revoked, forgotten):
        with only(MemberError):
            change(text, LEAVES, "edge-1")


def _state() -> bytes:
    acked = state.Acked(new_run(0), 7, 70, "now", Readings(5, 4, 1), closed=True)
    one = state.State(
        state.VERSION, "m", "edge-1", epochs={"normal": "0123456789abc"}, acked={"normal": acked}
    )
    one.checkpoint = {"normal": Checkpoint(1, "id", "TELEMETRY_0", 2)}
    one.positions = {"normal": {"tail": PullPosition("12", 3)}}
    return msgspec.json.encode(one)


@target(_state(), _state()[:-9], b"", b'{"version":1}')
def state_file(data: bytes) -> None:
    path = kept(data)
    with only(StateError):
        found = load_state(path, "edge-1")
        again = PLACE / "again"
        write_private(again, msgspec.json.encode(found))
        assert load_state(again, "edge-1") == found


NOW = Instant(10**18, Clock(True, "boot", 10**15))
KEYS = b'{"version":2,"requests":{"normal":{"k":[1,2e9]}}}'
TIMED = KEYS[:-1] + b',"saved":1000000000000000000,"clock":"synchronised=yes; boot=boot; monotonic=1"}'


@target(KEYS, TIMED, b"{", b"")
def known_requests(data: bytes) -> None:
    for _, request, seconds in load_keys(kept(data), NOW):
        assert request.key is not None
        assert seconds >= 0
