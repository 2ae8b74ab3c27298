"""Implements `petiole map`, which maps payloads of files or of a broker to readings, without an agent.

Exit codes: 0 all payloads became readings; 1 nothing came, or nothing can be proposed; 2 wrong usage; 3 a
payload or member was refused; 5 the broker can't be reached.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, NoReturn
from urllib.parse import urlsplit

import typer

from agent.base.logs import harmless, shown
from agent.base.terminal import closed_pipe
from agent.base.wait import timeout
from agent.cli.configuration import ConfigFile, end, seconds_or_end
from agent.config import ConfigError
from agent.config.keys import SeedError, read_password
from agent.config.load import load_map
from agent.contract import Exit
from agent.mapping import presets
from agent.mapping.compiled import MapError, MappingError, compile_map
from agent.mapping.payload import PayloadError, decode, is_cbor
from agent.mapping.propose import fitting_presets, propose
from agent.mapping.schema import Map

_MOST: Final = 16 * 2**20
"""Bytes read of a file."""
_MOST_PAYLOADS: Final = 10_000
_CONNECT_SECONDS: Final = 10.0

Files = Annotated[
    list[str] | None,
    typer.Argument(
        help="Files with a payload, or one a line; - or none: standard input.", show_default=False
    ),
]
MapName = Annotated[str, typer.Option("--map", help="The name of a map of the configuration file.")]
PresetName = Annotated[str, typer.Option("--preset", help="A shipped mapping.")]
Topic = Annotated[
    str, typer.Option("--topic", help="The topic of the payloads; with --url the filter to subscribe.")
]
Url = Annotated[
    str, typer.Option("--url", help="A broker to listen to: mqtt://host:1883 or nats://host:4222.")
]
User = Annotated[str, typer.Option("--user", help="As whom to connect.")]
PasswordFile = Annotated[Path | None, typer.Option("--password-file", help="A file with the password.")]
SeedFile = Annotated[Path | None, typer.Option("--seed-file", help="A file with the NATS seed to log in by.")]
Length = Annotated[str, typer.Option("--for", help="How long to listen.")]
Propose = Annotated[bool, typer.Option("--propose", help="Print a map for payloads that fit no preset.")]
AsTable = Annotated[bool, typer.Option("--table", help="Print columns in place of NDJSON.")]
List = Annotated[bool, typer.Option("--presets", help="List the shipped mappings.")]


class Login(NamedTuple):
    """How to log in to a broker."""

    user: str
    password_file: Path | None
    seed_file: Path | None


class Received(NamedTuple):
    """A payload with its topic, or the place where it was read."""

    payload: bytes
    topic: str
    place: str


def command(
    config: ConfigFile,
    files: Files = None,
    map_name: MapName = "",
    preset: PresetName = "",
    topic: Topic = "",
    url: Url = "",
    user: User = "",
    password_file: PasswordFile = None,
    seed_file: SeedFile = None,
    length: Length = "10s",
    proposing: Propose = False,
    as_table: AsTable = False,
    listing: List = False,
) -> None:
    """Map payloads of a file or broker to readings; report skipped members and why. Stores nothing."""
    if listing:
        for name in presets.names():
            typer.echo(f"{name}: {presets.load(name).about}")
        return
    if url and files:
        end(["files stand beside --url; give one of them"])
    if sum(map(bool, (map_name, preset, proposing))) != 1:
        end(["give one of --map, --preset and --propose; --presets lists the presets"])
    given = None if proposing else _given(config, map_name, preset)
    seconds = seconds_or_end("--for", length)
    separator = "." if url.startswith("nats:") else "/"
    if url:
        login = Login(user, password_file, seed_file)
        received = _listened(url, topic or _only_topic(given), login, seconds)
    else:
        received = _read(files or ["-"], topic)
    if not received:
        end(["no payload came; is the topic right?" if url else "there is no payload in it"], Exit.FAILED)
    try:
        code = _proposed(received) if given is None else _mapped(given, received, separator, as_table)
    except BrokenPipeError:
        closed_pipe()
    raise typer.Exit(code)


def _given(config: Path, map_name: str, preset: str) -> Map:
    if preset:
        if preset not in presets.names():
            end([f"there is no preset {preset!r:.60}; take one of {', '.join(presets.names())}"])
        return Map(name=preset, preset=preset)
    try:
        return load_map(config, map_name)
    except ConfigError as error:
        end(error.problems)


def _only_topic(given: Map | None) -> str:
    """Return the filter of a mapping with one, or exit."""
    topics = [] if given is None else presets.complete(given).topics or []
    if len(topics) != 1:
        end(["give --topic, the filter to subscribe"])
    return topics[0]


def _read(files: list[str], topic: str) -> list[Received]:
    received = []
    for name in files:
        try:
            if name == "-":
                data = sys.stdin.buffer.read(_MOST + 1)
            else:
                with Path(name).open("rb") as file:
                    data = file.read(_MOST + 1)
        except OSError as error:
            end([f"{name} cannot be read: {error.strerror or error}"], Exit.FAILED)
        if len(data) > _MOST:
            end([f"{name} has more than {_MOST} bytes; give a part of it"], Exit.FAILED)
        received += [Received(payload, topic, f"{name}:{at}") for at, payload in _payloads(data)]
    return received


def _payloads(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield a whole payload, or one a line, with its first line's number."""
    lines = data.split(b"\n")
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if len(filled) > 1 and not is_cbor(data):
        try:
            value, _ = decode(data)
            is_whole = not isinstance(value, str)
        except PayloadError:
            # JSON over several lines with a fault is one payload, as an input receives it.
            is_whole = not any(_is_json(line) for _, line in (filled[0], filled[-1]))
        if not is_whole:
            yield from filled
            return
    if filled:
        yield filled[0][0], data


def _is_json(line: bytes) -> bool:
    try:
        decode(line)
    except PayloadError:
        return False
    return line.lstrip().startswith((b"{", b"["))


def _mapped(given: Map, received: list[Received], separator: str, as_table: bool) -> Exit:
    has_topic = any(one.topic for one in received)
    try:
        mapping = compile_map(given, "domain", has_topic=has_topic, separator=separator)
    except MapError as error:
        end(
            [
                f"map {given.name}: {one.key}: {one.stood}; {one.remedy}"
                f"{'' if has_topic or 'topic' not in one.stood else ', or give --topic'}"
                for one in error.problems
            ]
        )
    readings = odd = no_value = refused = 0
    for one in received:
        try:
            mapped = mapping.apply(one.payload, time.time_ns(), one.topic)
        except MappingError as error:
            refused += 1
            _say(f"{one.place}: the payload is refused: {error}")
            continue
        _show(mapped.payload, as_table)
        readings, no_value = readings + mapped.count, no_value + mapped.no_value
        odd += mapped.odd_count
        for name, reason in mapped.odd:
            _say(f"{one.place}: {name}: {reason}")
    _say(
        f"{len(received)} payloads: {readings} readings, {no_value} members without value, "
        f"{odd} odd members, {refused} payloads refused"
    )
    return Exit.LOSS if odd or refused else Exit.WELL


def _show(payload: bytes, as_table: bool) -> None:
    if not as_table:
        sys.stdout.buffer.write(harmless(payload))
        sys.stdout.buffer.flush()
        return
    for line in payload.splitlines():
        row: dict[str, Any] = json.loads(line)
        tags = " ".join(f"{name}={text}" for name, text in row.get("tags", {}).items())
        value = json.dumps(row["value"], ensure_ascii=False)
        text = f"{row['ts']:<35} {row['device']:<24} {row['metric']:<32} {value:<16} {tags}"
        typer.echo(shown(text.rstrip()))


def _proposed(received: list[Received]) -> Exit:
    one = received[0]
    topic = one.topic
    if fitting := fitting_presets(one.payload, topic):
        _say(f"{one.place}: these presets fit: {', '.join(fitting)}")
    if len(received) > 1:
        _say(f"{one.place}: the proposal is for this payload; {len(received) - 1} more were not used")
    proposal = propose(one.payload, topic)
    if proposal is None:
        _say(f"{one.place}: nothing in it can be a reading")
        return Exit.WELL if fitting else Exit.FAILED
    sys.stdout.buffer.write(harmless(proposal.as_toml().encode()))
    return Exit.WELL


def _say(text: str) -> None:
    typer.echo(f"petiole: {shown(text)}", err=True)


def _listened(url: str, topic: str, login: Login, seconds: float) -> list[Received]:
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
        if "@" in parts.netloc:
            end(["--url has a user in it; give --user and --password-file"])
    except ValueError:
        scheme, host, port = "", None, None
    if host is None or scheme not in ("mqtt", "mqtts", "nats"):
        end([f"{url!r:.80} is no broker; write it as mqtt://host:1883 or nats://host:4222"])
    try:
        password = None if login.password_file is None else read_password(login.password_file)
    except (SeedError, OSError) as error:
        end([str(error)])
    if scheme == "nats":
        return asyncio.run(_of_nats(f"nats://{host}:{port or 4222}", topic, login, password, seconds))
    port = port or (1883 if scheme == "mqtt" else 8883)
    return _of_mqtt(scheme, host, port, topic, login.user, password, seconds)


def _of_mqtt(
    scheme: str, host: str, port: int, topic: str, user: str, password: str | None, seconds: float
) -> list[Received]:
    try:
        from paho.mqtt.client import Client, MQTTMessage
        from paho.mqtt.enums import CallbackAPIVersion
    except ImportError:
        end(['--url mqtt:// needs the extra mqtt; install it with: pip install "petiole[mqtt]"'])
    received: list[Received] = []
    failed: list[str] = []
    client = Client(CallbackAPIVersion.VERSION2)

    def connected(_client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            failed.append(str(reason))
        else:
            client.subscribe(topic)

    def came(_client: Any, _data: Any, message: MQTTMessage) -> None:
        if len(received) < _MOST_PAYLOADS:
            received.append(Received(bytes(message.payload), message.topic, message.topic))

    client.on_connect, client.on_message = connected, came
    if user:
        client.username_pw_set(user, password)
    if scheme == "mqtts":
        client.tls_set()
    try:
        client.connect(host, port)
    except (OSError, ValueError) as error:
        _unreachable(f"{host}:{port}", error)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not failed and len(received) < _MOST_PAYLOADS:
        if client.loop(min(left, 1.0)):
            _unreachable(f"{host}:{port}", "the connection ended")
    client.disconnect()
    if failed:
        _unreachable(f"{host}:{port}", failed[0])
    return received


async def _of_nats(
    server: str, topic: str, login: Login, password: str | None, seconds: float
) -> list[Received]:
    import nats
    from nats.aio.msg import Msg
    from nats.errors import Error

    received: list[Received] = []
    enough = asyncio.Event()

    async def came(message: Msg) -> None:
        received.append(Received(message.data, message.subject, message.subject))
        if len(received) >= _MOST_PAYLOADS:
            enough.set()

    async def ignore(_error: Exception) -> None:
        pass  # the outcome of `connect` has it

    how: dict[str, Any] = {"user": login.user, "password": password} if login.user else {}
    if login.seed_file is not None:
        how["nkeys_seed"] = str(login.seed_file)
    try:
        async with timeout(_CONNECT_SECONDS):
            client = await nats.connect(
                server, allow_reconnect=False, error_cb=ignore, connect_timeout=5, **how
            )
        await client.subscribe(topic, cb=came)
    except (OSError, Error, TimeoutError) as error:
        _unreachable(server, error)
    try:
        async with timeout(seconds):
            await enough.wait()
    except TimeoutError:
        pass
    await client.close()
    return received


def _unreachable(place: str, error: object) -> NoReturn:
    end([f"{place} cannot be used: {error}"], Exit.UNREACHABLE)
