"""Finds selected variables by id, or by browse paths below Objects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from asyncua import ua
from asyncua.ua.object_ids import ObjectIds

from agent.leaf.inputs.opcua import NodeSelection
from agent.leaf.inputs.opcua.limits import OpcuaError
from agent.leaf.inputs.opcua.notifications import FollowedNode
from agent.leaf.inputs.opcua.session import OpcuaSession, standard

MAX_NODES: Final = 20_000
_MAX_DEPTH: Final = 32
_ANY_DEPTH: Final = "**"

Browse = Callable[[Sequence[ua.NodeId]], Awaitable[list[list[ua.ReferenceDescription]]]]


class _Found(NamedTuple):
    id: ua.NodeId
    path: tuple[str, ...]


async def find(
    session: OpcuaSession, selections: Sequence[NodeSelection]
) -> tuple[list[FollowedNode], list[str]]:
    """Return each selected variable once, and a sentence per empty selection. The first selection names it.

    Raises `OpcuaError`.
    """
    nodes: dict[str, FollowedNode] = {}
    lacking: list[str] = []
    for selection in selections:
        found = await (
            _by_id(session, selection.id) if selection.id else _by_path(session.browse, selection.path or "")
        )
        if not found:
            lacking.append(f"no variable of the server is {selection.id or selection.path!r:.200}")
        for variable in found:
            ident, path = variable.id.to_string(), "/".join(variable.path)
            nodes.setdefault(ident, FollowedNode(ident, path, selection.names(path)))
        if len(nodes) > MAX_NODES:
            raise OpcuaError(
                f"more than {MAX_NODES} variables are selected; make several inputs of narrower paths"
            )
    return sorted(nodes.values()), lacking


async def _by_id(session: OpcuaSession, ident: str) -> list[_Found]:
    node = ua.NodeId.from_string(ident)
    (name,) = await session.browse_names([node])
    return [] if name is None else [_Found(node, (name,))]


async def _by_path(browse: Browse, path: str) -> list[_Found]:
    """Find level by level, in few requests."""
    pattern = path.split("/")
    level = [_Found(standard(ObjectIds.ObjectsFolder), ())]
    found: dict[str, _Found] = {}
    seen: set[str] = set()
    for _ in range(_MAX_DEPTH):
        below: list[_Found] = []
        answers = await browse([parent.id for parent in level])
        for parent, references in zip(level, answers, strict=True):
            for reference in references:
                child = _Found(_local(reference.NodeId), (*parent.path, reference.BrowseName.Name or ""))
                if not leads(child.path, pattern) or child.id.to_string() in seen:
                    continue
                seen.add(child.id.to_string())
                below.append(child)
                if reference.NodeClass == ua.NodeClass.Variable and covers(child.path, pattern):
                    found[child.id.to_string()] = child
        if len(below) > MAX_NODES:
            raise OpcuaError(
                f"more than {MAX_NODES} nodes lie on the path {path!r:.200}; write a narrower one"
            )
        if not below:
            break
        level = below
    return list(found.values())


def _local(node: ua.ExpandedNodeId) -> ua.NodeId:
    return ua.NodeId(node.Identifier, node.NamespaceIndex, node.NodeIdType)


def covers(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Tell whether a pattern selects a path; `*` and `?` in names, `**` at the end for everything below."""
    if pattern[-1] == _ANY_DEPTH:
        return len(path) >= len(pattern) and leads(path, pattern)
    return len(path) == len(pattern) and leads(path, pattern)


def leads(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Tell whether a selected path may lie at or below. The server object only if named."""
    if path[0] == "Server" and pattern[0] != "Server":
        return False
    fixed = pattern[:-1] if pattern[-1] == _ANY_DEPTH else pattern
    if len(path) > len(fixed) and len(fixed) == len(pattern):
        return False
    return all(fnmatchcase(name, wanted) for name, wanted in zip(path, fixed, strict=False))
