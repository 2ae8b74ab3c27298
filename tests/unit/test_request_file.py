"""Idempotency keys beside the state file: what a trim would take away."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.contract import Request
from agent.request_file import load, save
from agent.requests import KNOWN_SECONDS


def test_keys_come_back_with_their_age(tmp_path: Path) -> None:
    path = tmp_path / "requests.json"
    save(path, {("normal", "a"): (7, KNOWN_SECONDS - 60)}, now=1_000.0)
    [(cls, request, age)] = load(path, now=1_010.0)
    assert (cls, request) == ("normal", Request("a", 7))
    assert age == pytest.approx(70.0)


def test_a_key_that_has_had_its_time_does_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "requests.json"
    save(path, {("normal", "old"): (1, 5.0), ("critical", "new"): (2, 50.0)}, now=1_000.0)
    assert [(cls, one.key) for cls, one, _ in load(path, now=1_006.0)] == [("critical", "new")]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"version":1,"requests":{}}', b'{"version":1}'])
def test_a_file_that_cannot_be_used_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "requests.json"
    path.write_bytes(content)
    assert load(path, now=0.0) == []


def test_no_file_is_no_key(tmp_path: Path) -> None:
    assert load(tmp_path / "requests.json", now=0.0) == []
