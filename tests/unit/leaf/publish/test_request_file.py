"""Idempotency keys beside the state file: what a trim would take away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.base.clock import Instant
from agent.contract import Clock, Request, make_request, request_part, request_scope
from agent.leaf.publish.idempotency import RequestLog
from agent.leaf.publish.idempotency_recovery import append_keys, load_keys, save_keys

SECOND = 10**9
A = make_request("a:b", request_scope("http"), b"1")
A_KEY = ("normal", f"{A.scope}:a:b")


BROKEN = b'{"version":1,"known":{"normal":{"x:a":["zz",9e9]}},"saved":1,"clock":""}'


def log_of(*requests: Request) -> RequestLog:
    """What is known of requests that were stored at second 0."""
    found = RequestLog()
    for request in requests:
        found.store("normal", request, 0.0)
    return found


def at(monotonic: float, *, wall: float = 0.0, boot: str = "boot-1", synchronised: bool = False) -> Instant:
    """The clocks so many seconds after a start."""
    clock = Clock(synchronised, boot, int(monotonic * SECOND))
    return Instant(int((wall or 1_000_000 + monotonic) * SECOND), clock)


def test_keys_come_back_with_their_age(tmp_path: Path) -> None:
    path = tmp_path / "requests.json"
    part = replace(A, key="part", part=request_part(["normal", "critical"]))
    save_keys(path, log_of(A, part).known(60.0), at(1_000))
    found = load_keys(path, at(1_010))
    assert [(cls, one.key, one.scope, one.digest) for cls, one, _ in found] == [
        ("normal", "a:b", A.scope, A.digest),
        ("normal", "part", A.scope, A.digest),
    ]
    assert found[1][1].part == part.part
    assert [age for *_, age in found] == pytest.approx([70.0, 70.0])
    again = RequestLog()
    for cls, one, _ in found:
        again.store(cls, one, 0.0)
    assert again.known(0.0) == log_of(A, part).known(0.0)


def test_a_key_that_has_had_its_time_does_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "requests.json"
    save_keys(path, {("normal", ":old"): (b"1111", 5.0), ("critical", ":new"): (b"2222", 50.0)}, at(1_000))
    assert [(cls, one.key) for cls, one, _ in load_keys(path, at(1_006))] == [("critical", "new")]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b'{"version":2,"known":{},"saved":1,"clock":""}', b'{"version":1}', BROKEN],
)
def test_a_file_that_cannot_be_used_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "requests.json"
    path.write_bytes(content)
    assert load_keys(path, at(1)) == []


def test_no_file_is_no_key(tmp_path: Path) -> None:
    assert load_keys(tmp_path / "requests.json", at(1)) == []


@pytest.mark.parametrize("wall", [1.0, 2e9])
def test_a_clock_that_was_set_changes_no_key_s_age(tmp_path: Path, wall: float) -> None:
    path = tmp_path / "requests.json"
    save_keys(path, {A_KEY: (A.digest, 500.0), ("normal", ":old"): (b"1111", 5.0)}, at(1_000))
    [(_, request, age)] = load_keys(path, at(1_010, wall=wall))
    assert request.key == A.key
    assert age == pytest.approx(110.0)


def test_after_a_boot_under_a_doubtful_clock_a_key_is_known_for_as_long_as_the_machine_runs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "requests.json"
    save_keys(path, {A_KEY: (A.digest, 500.0)}, at(1_000))
    [(_, _, age)] = load_keys(path, at(30, wall=3_600.0, boot="boot-2"))
    assert age == pytest.approx(130.0)
    assert load_keys(path, at(501, wall=3_600.0, boot="boot-2")) == []


def test_keys_that_are_added_come_back_with_their_own_age(tmp_path: Path) -> None:
    path, known = tmp_path / "requests.log", log_of(A)
    save_keys(path, known.fresh(0.0), at(1_000))
    assert known.fresh(1.0) == {}
    later = make_request("later", A.scope, b"2")
    known.store("normal", later, 30.0)
    append_keys(path, known.fresh(30.0), at(1_030))
    found = load_keys(path, at(1_040))
    assert [one for _, one, _ in found] == [
        Request(A.key, A.digest, A.scope),
        Request("later", later.digest, A.scope),
    ]
    assert [age for *_, age in found] == pytest.approx([40.0, 10.0])


@pytest.mark.parametrize(("end", "said"), [(b'{"version":1,"kno', False), (b'{"version":1,"kno\n', True)])
def test_only_what_was_added_last_may_be_cut_off(
    tmp_path: Path, end: bytes, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "requests.log"
    save_keys(path, log_of(A).known(0.0), at(1_000))
    with path.open("ab") as file:
        file.write(end)
    assert len(load_keys(path, at(1_000))) == 1
    assert ("idempotency keys" in "".join(capsys.readouterr())) is said
