"""What keeps a start short: modules that are loaded when they are first used, though an import names them
before; and a garbage collector that leaves imports alone."""

from __future__ import annotations

import atexit
import gc
import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final

_YOUNG_OBJECTS: Final = 50_000
"""New objects after which the collector looks for garbage."""


def load_late(*names: str) -> None:
    """Have an `import` of these modules load nothing; the first use of what is in them does. A module that is
    missing or loaded already is left alone."""
    for name in names:
        if name not in sys.modules and (spec := find_spec(name)) is not None:
            sys.modules[name] = module_from_spec(spec)
            sys.modules[name].__class__ = _Unloaded


def collect_rarely() -> None:
    """Have the garbage collector leave alone what imports make, which is all kept; and what there is when the
    process ends, which takes a fifth of a short one."""
    gc.set_threshold(_YOUNG_OBJECTS)
    atexit.register(gc.freeze)


class _Unloaded(ModuleType):
    """What `importlib.util.LazyLoader` makes is loaded by the next `import` already (Python 3.11 to 3.14)."""

    def __getattr__(self, name: str) -> Any:
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)
