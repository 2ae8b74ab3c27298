"""Speeds up the start: loads modules at first use, and keeps the garbage collector off imports."""

from __future__ import annotations

import atexit
import gc
import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final

_YOUNG_OBJECTS: Final = 50_000
"""New objects before a collection."""


def load_late(*names: str) -> None:
    """Defer loading of modules to their first use. Ignores missing and loaded ones."""
    for name in names:
        if name not in sys.modules and (spec := find_spec(name)) is not None:
            sys.modules[name] = module_from_spec(spec)
            sys.modules[name].__class__ = _Unloaded


def collect_rarely() -> None:
    """Exclude imported objects from collection, and skip the collection at the process's end."""
    gc.set_threshold(_YOUNG_OBJECTS)
    atexit.register(gc.freeze)


class _Unloaded(ModuleType):
    """A lazy module; `importlib.util.LazyLoader`'s are loaded by the next `import` (Python 3.11 to 3.14)."""

    def __getattr__(self, name: str) -> Any:
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)
