"""docs/getting-started.md, block by block as it stands, but for its ports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from agent.demo.ports import free_port

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs" / "getting-started.md"
_BLOCK: Final = re.compile(r"^```(?P<language>toml|sh)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_SECONDS: Final = 90.0


def test_all_that_the_page_says_to_do_works_from_the_first_configuration_to_the_query(tmp_path: Path) -> None:
    said: list[str] = []
    with ExitStack() as servers, ExitStack() as agents:
        # Whatever comes of the rest, no server is left.
        for name in ("hub", "edge-1"):
            servers.callback(run, f"petiole server stop -c {name}.toml", tmp_path)
        for language, text in blocks():
            if language == "toml":
                (tmp_path / text.split()[1]).write_text(text)
            elif text.startswith("petiole run"):
                agents.enter_context(agent(text, tmp_path))
            elif "pip install" not in text:
                if text.startswith("petiole server stop"):
                    agents.close()
                said.append(done(text, tmp_path))
    told = "\n".join(said)
    assert "204 No Content" in told
    assert "nothing is missing, nothing is doubled" in told
    assert re.search(r"edge-1 .* pump-7 .* pressure .* 2\.4 ", told), told


def blocks() -> Iterator[tuple[str, str]]:
    """Language and text of each block, with ports that are free."""
    page = PAGE.read_text()
    ports = {port: str(free_port()) for port in set(re.findall(r"127\.0\.0\.1:(\d+)", page))}
    for one in _BLOCK.finditer(page):
        yield one["language"], re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda port: ports[port[0]], one["text"])


def done(text: str, place: Path) -> str:
    """What a block printed, which a reader may have to run again while something is still starting."""
    end = time.monotonic() + _SECONDS
    while (found := run(text, place)).returncode != 0:
        assert time.monotonic() < end, f"{text}\n{found.stdout}\n{found.stderr}"
        time.sleep(0.5)
    return found.stdout


def run(text: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Run a block by a shell that ends at its first error."""
    command = ["bash", "-e", "-o", "pipefail", "-c", text]
    return subprocess.run(command, cwd=place, env=environment(), capture_output=True, text=True, check=False)


@contextmanager
def agent(text: str, place: Path) -> Iterator[None]:
    """An agent in a terminal of its own, until Ctrl-C."""
    with (
        (place / "agents.log").open("a") as log,
        subprocess.Popen(["bash", "-c", f"exec {text}"], cwd=place, env=environment(), stderr=log) as process,
    ):
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(_SECONDS) == 0


def environment() -> dict[str, str]:
    """As after `source .venv/bin/activate`."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
