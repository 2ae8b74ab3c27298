"""The container image: made without a registry, run by podman, and what it stored outlives its container."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.deb import native, package
from deploy.dist import project_version
from deploy.image import TOOLS, image
from deploy.tools import lacking
from tests.harness.wait import wait_for
from tests.package.machine import LEAF_CONFIG

NEEDED = {**TOOLS, "podman": "podman", "runc": "runc", "catatonit": "catatonit"}
pytestmark = pytest.mark.skipif(bool(lacking(NEEDED, root=True)), reason=lacking(NEEDED, root=True))

POST = """
import urllib.request
request = urllib.request.Request("http://127.0.0.1:8080/v1/readings", b'{"metric": "n", "value": 7}')
request.add_header("Content-Type", "application/json")
print(urllib.request.urlopen(request).status)
"""
TAP = ("petiole", "tap", "-c", "/etc/petiole.toml", "--json", "--metric", "n")
Podman = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """A podman with a store of its own, which has the image."""
    directory = tmp_path_factory.mktemp("containers")
    store = ["--root", str(directory / "store"), "--runroot", str(directory / "run")]
    options = [*store, "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none"]

    def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = ["podman", *options, "--runtime", shutil.which("runc") or "runc", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done

    deb = package(directory, project_version(), native(), ("-Znone",))
    run("load", "-i", str(image(directory, deb, native())))
    yield run
    run("rm", "--all", "--force", "--time", "0", check=False)


def test_what_a_container_stored_is_there_in_the_next_one_after_it_was_killed(
    podman: Podman, tmp_path: Path
) -> None:
    config = tmp_path / "petiole.toml"
    config.write_text(LEAF_CONFIG)
    named = f"localhost/petiole:{project_version()}"
    limits = ["--ulimit", "nofile=1024:4096", "--ulimit", "nproc=1024:1024"]
    # Without systemd podman can't keep a timer for the health check; it is run below by hand.
    start = ["run", "--detach", "--init", "--network", "none", "--no-healthcheck", *limits]
    start += ["--volume", "petiole:/var/lib/petiole", "--volume", f"{config}:/etc/petiole.toml:ro"]

    podman(*start, "--name", "first", named)
    health = json.loads(podman("image", "inspect", named).stdout)[0]["Healthcheck"]["Test"][1:]
    wait_for(lambda: podman("exec", "first", *health, check=False).returncode == 0, "it is well")
    assert podman("exec", "first", "id", "-un").stdout.strip() == "petiole"
    assert podman("exec", "first", "python", "-c", POST).stdout.strip() == "204"
    podman("kill", "--signal", "KILL", "first")

    podman(*start, "--name", "second", named)
    wait_for(lambda: podman("exec", "second", *health, check=False).returncode == 0, "the next one is well")
    batches = podman("exec", "second", *TAP).stdout.splitlines()
    assert [row["value"] for batch in batches for row in json.loads(batch)["readings"]] == [7]
