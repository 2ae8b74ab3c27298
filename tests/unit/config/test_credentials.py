"""Secrets that the supervisor hands over, named in a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.config import load
from agent.config.keys import SeedError, make_key, public_key
from agent.config.server_checks import check_files
from agent.leaf.inputs import OPTIONS

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
