"""Defines formats across processes: names, subjects, message ids, headers and records.

Shared by `agent` and `hub_jobs`; standard library only, no I/O. Refusals raise `ContractError` with fault and
place. Records have a version `v`; unknown fields are ignored, unknown versions refused.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.contract.audit import *
    from agent.contract.batch import *
    from agent.contract.checkpoint import *
    from agent.contract.checks import *
    from agent.contract.command import *
    from agent.contract.lake import *
    from agent.contract.leaf_state import *
    from agent.contract.ledger import *
    from agent.contract.link import *
    from agent.contract.names import *
    from agent.contract.reading import *
    from agent.contract.verify import *
else:
    from importlib import import_module

    # Each is imported once a name of it is asked for; those that no job needs come last.
    _MODULES = (
        *("checks", "names", "ledger", "batch", "reading", "audit"),
        *("checkpoint", "lake", "command", "leaf_state", "link", "verify"),
    )

    def __getattr__(name: str) -> object:
        for module in () if name.startswith("_") else _MODULES:
            found = import_module(f"{__name__}.{module}")
            if name in found.__all__:
                return globals().setdefault(name, getattr(found, name))
        raise AttributeError(f"module {__name__} has no attribute {name}")

    def __dir__() -> list[str]:
        names = (import_module(f"{__name__}.{module}").__all__ for module in _MODULES)
        return sorted({*globals(), *(name for one in names for name in one)})
