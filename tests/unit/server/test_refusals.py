"""What the server's log says of MQTT devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.server.refusals import LATEST, RefusalLog, refusal_of

HEAD = b"[25399] 2026/11/28 17:50:27.215717 [ERR] 127.0.0.1:42166"


def line(number: int) -> bytes:
    return HEAD + b' - mid:7 - "c" - Publish Violation - Subject "plant.p%d"\n' % number


@pytest.mark.parametrize(
    ("said", "reason", "what"),
    [
        (b'"b" - Publish Violation - Subject "plant.pump//7.in"', "publish", "plant/pump.7/in"),
        (b'"b" - Subscription Violation - Subject "readings.>", SID 5', "subscribe", "readings/>"),
        (b'"b" - authentication error - User "plant"', "password", 'User "plant"'),
        (b'"vm.leaf" - invalid character in client ID "vm.leaf"', "client_id", '"vm.leaf"'),
        (b'"" - unacceptable protocol version of 132', "protocol", "132"),
        (b'"b" - unable to connect: authentication error', None, None),
        (rb'"x\" - Publish Violation - Subject \"y" - something else', None, None),
    ],
)
def test_a_line_of_the_log_is_a_refusal_or_none(said: bytes, reason: str | None, what: str | None) -> None:
    found = refusal_of(HEAD + b" - mid:43 - " + said)
    assert (found and found.reason, found and found.what) == (reason, what)
    bare = refusal_of(b"[ERR] 127.0.0.1:42166 - mid:43 - " + said)
    assert (bare and bare.reason) == reason, "a log may have no times"
    assert refusal_of(HEAD + b" - cid:43 - " + said) is None, "it is no device"


def test_lines_are_counted_once_over_starts_and_over_files_that_the_server_has_replaced(
    tmp_path: Path,
) -> None:
    log, memory = tmp_path / "nats-server.log", tmp_path / "mqtt" / "refusals.json"
    reader = RefusalLog(log, memory)
    assert reader.read() == []
    log.write_bytes(line(1) + b"[1] something else\n" + line(2) + line(3)[:40])
    assert len(reader.read()) == 2
    reader.save()
    with log.open("ab") as file:
        file.write(line(3)[40:])
    log.rename(tmp_path / "nats-server.log.2026.11.28.17.50.28.000000001")
    log.write_bytes(line(4))
    log.rename(tmp_path / "nats-server.log.2026.11.28.17.50.29.000000001")
    log.write_bytes(line(5) + line(6))
    for _ in range(2):
        reader = RefusalLog(log, memory)
        reader.load()
        found = reader.read()
        reader.save()
    assert found == []
    assert reader.seen.counts == {"publish": 6}
    assert [each.what for each in reader.seen.latest] == [f"plant/p{number}" for number in range(2, 7)]
    assert len(reader.seen.latest) == LATEST
    memory.write_text("damaged")
    RefusalLog(log, memory).load()


def test_a_log_that_was_truncated_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "nats-server.log"
    log.write_bytes(line(1) * 3)
    reader = RefusalLog(log, tmp_path / "refusals.json")
    reader.read()
    log.write_bytes(line(2))
    assert [each.what for each in reader.read()] == ["plant/p2"]
