"""Has Arrow leave pandas alone, which PySpark brings along. Arrow imports it with the first array it makes,
in case it was given an object of it; that is a third of what a job imports, and no job has such an object. To
be imported before anything makes an array; pandas can be imported afterwards as ever. PySpark does so with a
session, which `maintain` and a run with nothing to do have none of."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final


class _NoPandas(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return None


_FINDER: Final = _NoPandas()

sys.meta_path.insert(0, _FINDER)
try:
    import pyarrow as pa

    pa.array([0])
finally:
    sys.meta_path.remove(_FINDER)
