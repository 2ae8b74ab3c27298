"""Frees what a registrar that has ended knew of its fleet, without the garbage collector.

All of a large fleet is kept from the collector (`readiness`, `upkeep`), and to have that look at everything
again would hold up the event loop for as long as it looks. So the records go one at a time, and the parts of
the registrar, which know each other in circles, let go of each other.
"""

from __future__ import annotations

from typing import Final

from agent.base.wait import Pacer
from agent.hub.registrar.exchanges import Exchanges
from agent.hub.registrar.fleet_state import FleetState
from agent.hub.registrar.fleet_store import FleetStore

_PARTS: Final = __name__.rpartition(".")[0]
_LARGE: Final = (FleetState, FleetStore, Exchanges)
"""What holds a record of each leaf, and hands out copies only."""


async def dissolve(registrar: object) -> None:
    """Free a registrar, of which nothing is of use afterwards; the loop runs meanwhile."""
    parts, pacer = _parts(registrar), Pacer()
    for part in parts:
        for known in list(vars(part).values()) if isinstance(part, _LARGE) else ():
            while isinstance(known, dict) and known:
                known.popitem()
                await pacer.give_way()
    for part in parts:
        vars(part).clear()
        await pacer.give_way()


def _parts(registrar: object) -> list[object]:
    """The registrar and all of its parts, each once."""
    found: dict[int, object] = {}
    waiting = [registrar]
    while waiting:
        part = waiting.pop()
        if id(part) not in found:
            found[id(part)] = part
            for known in vars(part).values():
                waiting += filter(_is_part, known.values() if isinstance(known, dict) else (known,))
    return list(found.values())


def _is_part(known: object) -> bool:
    return type(known).__module__.startswith(_PARTS) and hasattr(known, "__dict__")
