"""What an input says before it runs, whatever its options name: sentences, and never an exception."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import fields

from agent.base.metrics import Metrics
from agent.cli.configuration import mistakes, obstacles, read
from agent.config import ConfigError
from agent.leaf.inputs import OPTIONS, make_inputs
from agent.leaf.inputs.modbus import RegisterSelection
from agent.leaf.inputs.mqtt import TopicTemplate
from agent.leaf.inputs.nats import SubjectTemplate
from agent.leaf.inputs.opcua import NodeSelection
from agent.leaf.inputs.shared import LocalServer

NOBODY = 65534
REQUIRED: dict[str, dict[str, Any]] = {
    "exec": {"command": ["true"]},
    "file": {"path": "/nonexistent"},
    "modbus": {"url": "tcp://127.0.0.1", "registers": [RegisterSelection(metric="a", address=0)]},
    "mqtt": {"url": "mqtt://127.0.0.1", "topics": [TopicTemplate(filter="a")]},
    "nats": {"subjects": [SubjectTemplate(filter="a.b")]},
    "opcua": {"url": "opc.tcp://127.0.0.1", "nodes": [NodeSelection(id="i=1")]},
    "prometheus": {"urls": ["http://127.0.0.1:1/metrics"]},
}
HOSTS = ["edge..plant", "a" * 64 + ".b", "ü", "[::1", "a\0b", "256.1.1.1", "", "-", "127.0.0.1"]
TCP = ("tcp://{}:80", "udp://{}:80", "{}:80", "{}")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Paths that can't be used, each in another way."""
    here = tmp_path_factory.mktemp("paths")
    for one in (*here.parents, here):
        if one.owner() != "root" or one == here:
            one.chmod(0o755)
    (here / "file").write_text("x")
    (here / "closed").mkdir(mode=0)
    (here / "loop").symlink_to(here / "loop")
    os.mkfifo(here / "fifo")
    found = [
        here / "file",
        here / "closed" / "below",
        here / "closed" / "below" / "that",
        here / "loop",
        here / "loop" / "below",
        here / "file" / "below",
        here / ("x" * 300),
        here / "/".join(["x" * 200] * 30),
        here / "fifo",
        here,
        Path("/proc/1/mem"),
        Path("/root/sensor.ndjson"),
        Path(f"{here}/a\0b"),
    ]
    yield [str(one) for one in found]
    (here / "closed").chmod(0o700)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """As a user who may not enter everything, which root may."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def of_kind(kind: str, name: str, path: st.SearchStrategy[str]) -> Callable[[Any], st.SearchStrategy[Any]]:
    """What to put in an option, by what its default or type is like."""
    texts = st.one_of(path, st.sampled_from(HOSTS), st.sampled_from(["", "a\0b", "é" * 5000]))
    addresses = st.builds(str.format, st.sampled_from(TCP), st.sampled_from(HOSTS))
    sockets = st.one_of(path.map(lambda one: f"unix://{one}"), path.map(lambda one: f"unixgram://{one}"))

    def strategy(type_: Any) -> st.SearchStrategy[Any]:
        if "Path" in str(type_):
            return path.map(Path)
        if name == "listen":
            return st.one_of(addresses, sockets, texts)
        if name in ("command", "urls"):
            return st.lists(texts, max_size=3)
        if name == "path":
            return st.one_of(path, st.lists(path, max_size=4))
        return texts

    return strategy


@pytest.mark.parametrize("kind", list(OPTIONS))
def test_an_input_says_in_words_what_is_wrong_whatever_its_options_name(kind: str, paths: list[str]) -> None:
    schema = OPTIONS[kind]
    texts = {
        one.name: of_kind(kind, one.name, st.sampled_from(paths))(one.type)
        for one in fields(schema)
        if "Path" in str(one.type)
        or one.name in ("listen", "command", "urls", "path", "url", "user", "group", "mode", "device")
    }

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.fixed_dictionaries({}, optional=texts))
    def tried(options: dict[str, Any]) -> None:
        given_options = schema(**{**REQUIRED.get(kind, {}), **options})
        one: Any = make_inputs([given_options], Metrics(), LocalServer("", Path("x")))[0]
        for who in (contextlib.nullcontext(), as_nobody()):  # the first imports what is imported late
            with who:
                found = [*one.check(), *one.obstacles()]
            for problem in found:
                assert problem.startswith(f"input '{kind}': ")

    tried()


def test_an_input_whose_library_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.leaf.inputs.shared.find_spec", lambda _: None)
    for kind in ("modbus", "mqtt", "opcua", "otlp_grpc", "prometheus"):
        options = OPTIONS[kind](**REQUIRED.get(kind, {}))
        (one,) = make_inputs([options], Metrics(), LocalServer("", Path("x")))
        extra = kind.replace("_", "-")
        assert f'pip install "petiole[{extra}]"' in "".join([*one.check(), *one.obstacles()])


def test_a_check_that_fails_itself_is_a_problem_in_words() -> None:
    class Broken:
        name = "broken"

        async def run(self, intake: object, stopping: object) -> None: ...

        def check(self) -> list[str]:
            raise PermissionError(13, "Permission denied", "/root/x")

        obstacles = check

    for look in (mistakes, obstacles):
        (problem,) = look([Broken()])
        assert problem.startswith("broken: cannot be checked (PermissionError: ")


def test_one_mistake_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "edge-1.toml"
    path.write_text(
        'domain = "edge-1"\n[nats]\nhub_urls = ["nats-leaf://127.0.0.1:7422"]\n'
        '[[input]]\ntype = "syslog"\nlisten = "127.0.0.1:80801"\ntls_cert = "a.crt"\n'
    )
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert [text.partition(":")[0] for text in caught.value.problems] == [
        "input[1].listen",
        "input 'syslog'",
    ]


def test_a_fault_of_a_mapping_is_named_once_also_where_an_input_has_its_topics_from_it(
    tmp_path: Path,
) -> None:
    faulty = '[[map]]\nname = "a"\npreset = "nope"\n[[map]]\nname = "b"\nvalue = "v..x"\n'
    inputs = "".join(
        f'[[input]]\ntype = "mqtt"\nname = "{name}"\nurl = "mqtt://127.0.0.1"\nmap = "{name}"\n'
        for name in ("a", "b")
    )
    file = tmp_path / "petiole.toml"
    file.write_text(f'domain = "edge-1"\nrole = "leaf"\n{faulty}{inputs}')
    with pytest.raises(ConfigError) as caught:
        read(file)
    text = "\n".join(caught.value.problems)
    assert text.count('there is no preset "nope"') == text.count("'v..x' is no path") == 1
