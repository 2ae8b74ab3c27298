"""Where a relative path in a configuration leads: to the directory of the file, wherever the command runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.files import RelativePath, named, place
from agent.base.http.access import AccessError, read_token
from agent.cli.configuration import read
from agent.config import Config, parse
from agent.config.files import placed_pattern
from agent.leaf.inputs.file.listing import matches

BASE = 'domain = "edge-1"\n[nats]\nhub_urls = ["nats-leaf://hub.example:7422"]\n'
HTTP = '[[input]]\ntype = "http"\n'
FILE = '[[input]]\ntype = "file"\npath = '
EXTRA = "[nats.extra.websocket.tls]\ncert_file = "
KEYS: list[tuple[str, Callable[[Config], Any]]] = [
    ('state_dir = "a/b"\n' + BASE, lambda config: config.state_dir),
    (BASE + 'store_dir = "a/b"\n', lambda config: config.nats.store_dir),
    (BASE + 'link_seed_file = "./a/b"\n', lambda config: config.nats.link_seed_file),
    (BASE + '[admin]\ntoken_file = "a/b"\n', lambda config: config.admin.token_file),
    (BASE + HTTP + 'tls_cert = "a/b"\ntls_key = "/k"\n', lambda config: config.input[0].tls_cert),
    (
        BASE + '[[input]]\ntype = "exec"\ncommand = ["/x"]\ndirectory = "a/b"\n',
        lambda config: config.input[0].directory,
    ),
    (BASE + FILE + '"a/b"\n', lambda config: config.input[0].path),
    (BASE + FILE + '["a/b", "/x"]\n', lambda config: config.input[0].path[0]),
    (BASE + EXTRA + '"a/b"\n', lambda config: config.nats.extra["websocket"]["tls"]["cert_file"]),
]
ELSEWHERE: list[tuple[str, Callable[[Config], Any], str]] = [
    ('state_dir = "/a/b"\n' + BASE, lambda config: config.state_dir, "/a/b"),
    (BASE, lambda config: config.state_dir, "/var/lib/petiole"),
    (
        BASE + '[admin]\ntoken_file = "$CREDENTIALS_DIRECTORY/t"\n',
        lambda config: config.admin.token_file,
        "/run/credentials/petiole.service/t",
    ),
    (BASE + FILE + '"/var/log/*.log"\n', lambda config: config.input[0].path, "/var/log/*.log"),
    (BASE + EXTRA + '"$CERT"\n', lambda config: config.nats.extra["websocket"]["tls"]["cert_file"], "$CERT"),
]


def written(directory: Path, text: str) -> Path:
    """A configuration of this text in a directory."""
    directory.mkdir(exist_ok=True)
    file = directory / "edge.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(("text", "key"), KEYS)
def test_a_relative_path_begins_at_the_directory_of_the_file(
    text: str, key: Callable[[Config], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "site", text)
    found = set()
    for here, name in ((tmp_path, "site/edge.toml"), (file.parent, "edge.toml"), (Path("/"), str(file))):
        monkeypatch.chdir(here)
        found.add(str(key(read(Path(name)))))
    assert found == {f"{tmp_path}/site/a/b"}


@pytest.mark.parametrize(("text", "key", "leads"), ELSEWHERE)
def test_no_other_path_is_changed(
    text: str, key: Callable[[Config], Any], leads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    assert str(key(read(written(tmp_path, text)))) == leads


def test_in_a_fragment_it_begins_where_those_of_the_file_do(tmp_path: Path) -> None:
    file = written(tmp_path, BASE)
    fragments = tmp_path / "edge.conf.d"
    fragments.mkdir()
    (fragments / "20-log.toml").write_text(FILE + '"access.log"\n')
    assert read(file).input[0].path == f"{tmp_path}/access.log"


def test_a_file_goes_by_its_name_and_a_way_up_by_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "kept", 'state_dir = "state"\n' + BASE)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "link.toml").symlink_to(file)
    assert read(tmp_path / "etc" / "link.toml").state_dir == tmp_path / "etc" / "state"
    (tmp_path / "kept" / "deep").mkdir()
    (tmp_path / "way").symlink_to(tmp_path / "kept" / "deep")
    monkeypatch.chdir(tmp_path)
    assert read(Path("way/../edge.toml")).state_dir == tmp_path / "kept" / "state"


def test_the_name_of_the_directory_holds_no_wildcard(tmp_path: Path) -> None:
    site = tmp_path / "plant[1]*"
    site.mkdir()
    (tmp_path / "plant1x").mkdir()
    for directory in (site, tmp_path / "plant1x"):
        (directory / "a.log").write_text("")
    for pattern in ("a.log", "*.log"):
        found = matches(placed_pattern(pattern, site))
        assert found == [f"{site}/a.log"]


def test_what_no_file_names_stays_relative() -> None:
    table = {"domain": "edge-1", "state_dir": "state", "nats": {"hub_urls": ["nats-leaf://h:7422"]}}
    assert parse(table, {}).state_dir == Path("state"), "a table without a file has no directory"


@given(
    st.text(st.characters(exclude_characters="\0/"), min_size=1), st.lists(st.sampled_from(["a", "..", "."]))
)
def test_a_path_leads_where_a_shell_in_that_directory_would_go(name: str, parts: list[str]) -> None:
    text = "/".join([*parts, name])
    directory = Path("/etc/petiole")
    assert place(text, directory) == directory / text
    assert place(f"/{text}", directory) == Path(f"/{text}")


def test_a_secret_that_stands_in_place_of_its_file_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(AccessError) as told:
        read_token(place("correct-horse-battery", tmp_path))
    assert "correct-horse" not in str(told.value)
    with pytest.raises(AccessError, match=f"token_file {tmp_path}/keys/t cannot be read"):
        read_token(place("./keys/t", tmp_path))
    (tmp_path / "t").write_text("x")
    assert named(place("t", tmp_path)) == f"{tmp_path}/t"
    made = place("state", tmp_path) / "keys" / "a.nk"
    assert named(made) == f"{tmp_path}/state/keys/a.nk"
    assert isinstance(place("state", tmp_path), RelativePath)
