from __future__ import annotations

import stat
from pathlib import Path

import nkeys
import pytest

from agent.base.files import write_private
from agent.config.keys import SeedError, ensure_key, make_key, public_key, seed_line


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_is_written_for_its_owner_alone_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "state" / "keys" / "agent"
    public = make_key(path)
    assert public == public_key(path)
    assert mode(path) == 0o600
    assert mode(path.parent) == mode(path.parent.parent) == 0o700
    pair = nkeys.from_seed(path.read_bytes())
    assert pair.verify(b"nonce", pair.sign(b"nonce"))
    assert bytes(pair.public_key).decode() == public
    assert [file.name for file in path.parent.iterdir()] == ["agent"]


def test_a_key_that_is_there_is_kept(tmp_path: Path) -> None:
    public = ensure_key(tmp_path / "agent")
    assert ensure_key(tmp_path / "agent") == public
    with pytest.raises(FileExistsError):
        make_key(tmp_path / "agent")
    assert public_key(tmp_path / "agent") == public


def test_two_keys_differ(tmp_path: Path) -> None:
    assert make_key(tmp_path / "one") != make_key(tmp_path / "two")


def test_a_seed_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    make_key(tmp_path / "agent")
    (tmp_path / "agent").chmod(0o640)
    with pytest.raises(SeedError, match="chmod 600"):
        public_key(tmp_path / "agent")


@pytest.mark.parametrize("kind", [nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_SERVER])
def test_a_seed_that_is_not_a_users_is_refused_and_not_shown(tmp_path: Path, kind: int) -> None:
    seed = nkeys.encode_seed(b"s" * 32, kind).decode()
    write_private(tmp_path / "agent", seed.encode())
    with pytest.raises(SeedError, match="user's NKey") as refusal:
        public_key(tmp_path / "agent")
    assert seed not in str(refusal.value)


@pytest.mark.parametrize("text", ["", "SU", "nothing of the kind", "SU" + "A" * 200, "\x00ä"])
def test_what_is_no_seed_is_refused(tmp_path: Path, text: str) -> None:
    write_private(tmp_path / "agent", text.encode())
    with pytest.raises(SeedError):
        public_key(tmp_path / "agent")


def test_a_missing_seed_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SeedError, match="agent cannot be read: No such file"):
        public_key(tmp_path / "agent")


def test_the_include_of_a_link_holds_the_seed_for_its_owner_alone(tmp_path: Path) -> None:
    make_key(tmp_path / "link")
    write_private(tmp_path / "link.conf", seed_line("nkey", tmp_path / "link").encode())
    assert (tmp_path / "link.conf").read_text() == f'nkey: "{(tmp_path / "link").read_text()}"\n'
    assert mode(tmp_path / "link.conf") == 0o600
