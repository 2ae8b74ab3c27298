"""Which folder may import which. A newcomer reads the floors below and knows where a thing may stand."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FLOORS = (
    {"agent.contract"},
    {"agent.base", "agent.mapping"},
    {"agent.config", "agent.jetstream"},
    {"agent.server"},
    {"agent.mirrors", "agent.leaf", "agent.hub"},
    {"agent.plugin"},
    {"agent.process"},
    {"agent.cli"},
    {"agent.demo"},
    {"agent.testing"},
)
"""A folder imports of lower floors only, and of no other on its own."""

LEAF = {
    "inputs": {"intake"},
    "rules": {"intake", "publish"},
    "publish": {"intake", "events", "ledger", "acks", "state", "state_file"},
    "ledger": {"intake", "events", "state", "state_file"},
    "link": {"intake", "events", "acks", "state", "state_file", "stream_configs"},
    "commands": {"intake", "publish", "state", "state_file", "stream_configs"},
    "clock": {"intake", "state_file", "timeline"},
}
"""What the parts of `agent/leaf` import of each other."""


def name_of(path: Path) -> str:
    """The dotted name of a module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules() -> dict[str, Path]:
    """Every module of the product by name."""
    return {name_of(path): path for top in ("agent", "hub_jobs") for path in (ROOT / top).rglob("*.py")}


@cache
def imports() -> dict[str, dict[str, bool]]:
    """Which modules of the product each one imports, and whether only within functions. No tree is kept:
    trees would slow down every collection of garbage in this process."""
    known = modules()
    found: dict[str, dict[str, bool]] = {}
    for name, path in known.items():
        tree = ast.parse(path.read_text())
        late = {other: True for node in ast.walk(tree) for other in _imported(node, known)}
        early = {other: False for node in tree.body for other in _imported(node, known)}
        found[name] = late | early
    return found


def _imported(node: ast.AST, known: Container[str]) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            found = whole if whole in known else node.module
            if found in known:
                yield found
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)


def arrows(*, late: bool) -> Iterator[tuple[str, str]]:
    """Who imports whom; `late` counts what functions import, too."""
    for name, others in imports().items():
        for other, within in others.items():
            if other != name and (late or not within):
                yield name, other


def folder(name: str) -> str:
    """The folder of `agent` that a module is in."""
    return ".".join(name.split(".")[:2])


def floor(name: str) -> int | None:
    """The floor of a module, None for one that stands on none, such as those of the jobs."""
    return next((n for n, folders in enumerate(FLOORS) if folder(name) in folders), None)


def test_every_module_of_the_agent_stands_on_a_floor() -> None:
    assert [name for name in imports() if name.startswith("agent.") and floor(name) is None] == []


def test_nothing_imports_upward_or_across() -> None:
    wrong = []
    for name, other in arrows(late=True):
        above, below = floor(name), floor(other)
        if above is None or below is None or folder(name) == folder(other):
            continue
        if below >= above and (name, folder(other)) != ("agent.cli.demo", "agent.demo"):
            wrong.append((name, other))
    assert wrong == []


def test_a_command_imports_the_demonstration_when_it_is_given() -> None:
    early = {folder(name) for name, other in arrows(late=False) if folder(other) == "agent.demo"}
    assert early <= {"agent.demo", "agent.testing"}


@pytest.mark.parametrize("folder_", ["agent.plugin", "agent.testing"])
def test_nothing_of_the_agent_imports_what_is_for_other_packages(folder_: str) -> None:
    assert [one for one in arrows(late=True) if folder(one[1]) == folder_ != folder(one[0])] == []


def test_the_jobs_import_only_the_contract_of_the_agent() -> None:
    found = {folder(other) for name, other in arrows(late=True) if name.startswith("hub_jobs")}
    assert {one for one in found if one.startswith("agent")} == {"agent.contract"}


def test_only_commands_and_the_demonstration_import_the_jobs_and_late() -> None:
    late = {folder(name) for name, other in arrows(late=True) if other.startswith("hub_jobs")}
    assert {one for one in late if one.startswith("agent")} <= {"agent.cli", "agent.demo"}
    early = [name for name, other in arrows(late=False) if other.startswith("hub_jobs")]
    assert [name for name in early if name.startswith("agent.cli")] == []


@pytest.mark.parametrize("part", LEAF)
def test_a_part_of_the_leaf_imports_only_these_others(part: str) -> None:
    inside = f"agent.leaf.{part}"
    found = set()
    for name, other in arrows(late=True):
        if f"{name}.".startswith(f"{inside}.") and other.startswith("agent.leaf."):
            found.add(other.split(".")[2])
    assert found - {part} <= LEAF[part]


def test_the_leaf_has_no_other_parts() -> None:
    folders = {path.name for path in (ROOT / "agent" / "leaf").iterdir() if (path / "__init__.py").exists()}
    modules_of_one_file = {"clock"}
    assert folders == LEAF.keys() - modules_of_one_file


def test_no_files_import_each_other_in_a_circle() -> None:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, other in arrows(late=False):
        # A package that names what its modules offer is no circle of its own.
        if not name.startswith(f"{other}.") and not other.startswith(f"{name}."):
            sorter.add(name, other)
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(f"these import each other: {error.args[1]}")


def test_no_folders_import_each_other_in_a_circle() -> None:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, other in arrows(late=False):
        if folder(name) != folder(other):
            sorter.add(folder(name), folder(other))
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(f"these folders import each other: {error.args[1]}")
