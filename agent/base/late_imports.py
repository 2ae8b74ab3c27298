"""Modules that are loaded when they are first used, though an import names them before."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


def load_late(*names: str) -> None:
    """Have an `import` of these modules load nothing; the first use of what is in them does. A module that is
    missing or loaded already is left alone."""
    for name in names:
        if name not in sys.modules and (spec := find_spec(name)) is not None:
            sys.modules[name] = module_from_spec(spec)
            sys.modules[name].__class__ = _Unloaded


class _Unloaded(ModuleType):
    """What `importlib.util.LazyLoader` makes is loaded by the next `import` already (Python 3.11 to 3.14)."""

    def __getattr__(self, name: str) -> Any:
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)
