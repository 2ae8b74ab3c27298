from __future__ import annotations

import os
import stat
from pathlib import Path

import nkeys
import pytest

from agent.base.files import write_private
from agent.config import load
from agent.config.keys import SeedError, ensure_key, make_key, public_key, renew_key, seed_line
from agent.config.server_checks import check_files
from agent.leaf.inputs import OPTIONS


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes keys for another user")
def test_a_key_that_root_makes_belongs_to_the_user_of_the_directory(tmp_path: Path) -> None:
    state, user = tmp_path / "state", 12345
    state.mkdir()
    os.chown(state, user, user)
    path = state / "keys" / "link.nk"
    make_key(path)
    made = (path, path.parent, renewed := path.with_name("link.nk.old"))
    renew_key(path)
    assert renewed.exists()
    assert [(one.stat().st_uid, one.stat().st_gid) for one in made] == [(user, user)] * 3
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700


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
    with pytest.raises(SeedError, match=r"agent cannot be read \(No such file .*; put it there"):
        public_key(tmp_path / "agent")


def test_the_include_of_a_link_holds_the_seed_for_its_owner_alone(tmp_path: Path) -> None:
    make_key(tmp_path / "link")
    write_private(tmp_path / "link.conf", seed_line("nkey", tmp_path / "link").encode())
    assert (tmp_path / "link.conf").read_text() == f'nkey: "{(tmp_path / "link").read_text()}"\n'
    assert mode(tmp_path / "link.conf") == 0o600


TOML = """
role = "leaf"
domain = "edge-1"
state_dir = "{state}"

[nats]
hub_urls = ["nats-leaf://127.0.0.1:7422"]
link_seed_file = "$CREDENTIALS_DIRECTORY/link.nk"
"""


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "credentials"
    directory.mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(directory))
    return directory


def config(tmp_path: Path) -> Path:
    file = tmp_path / "petiole.toml"
    file.write_text(TOML.format(state=tmp_path / "state"))
    return file


def test_a_secret_is_found_where_the_supervisor_hands_it_over(given: Path, tmp_path: Path) -> None:
    key = make_key(given / "link.nk")
    found = load(config(tmp_path), OPTIONS).nats.link_seed_file
    assert found == given / "link.nk"
    assert public_key(found) == key


def test_a_secret_may_be_opened_to_its_user_by_an_access_list_only_there(given: Path, tmp_path: Path) -> None:
    for directory in (given, tmp_path / "elsewhere"):
        make_key(directory / "link.nk")
        (directory / "link.nk").chmod(0o440)
    public_key(given / "link.nk")
    assert list(check_files(load(config(tmp_path), OPTIONS))) == []
    with pytest.raises(SeedError, match="read by others"):
        public_key(tmp_path / "elsewhere" / "link.nk")
    (given / "link.nk").chmod(0o444)
    (problem,) = check_files(load(config(tmp_path), OPTIONS))
    assert "read by others" in str(problem)


def test_without_a_supervisor_the_place_of_the_shipped_unit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    (problem,) = check_files(load(config(tmp_path), OPTIONS))
    assert "/run/credentials/petiole.service/link.nk cannot be read" in str(problem)
