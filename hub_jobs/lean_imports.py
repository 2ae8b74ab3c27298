"""Has numpy and Arrow bring along only what the jobs use. To be imported before either.

Arrow imports pandas with the first array it makes, in case it was given an object of it; that is a third of
what a job imports, and no job has such an object. It leaves pandas alone from then on, which can be imported
as ever: PySpark does so with a session, which `maintain` and a run with nothing to do have none of. Half of
the time that Arrow's functions take to import it reads the documents of their options, which no job shows.
numpy starts a thread for every core, for algebra that no job does, and workers are forked from a process that
has imported it. Python looks for garbage after each 700 new objects; the imports make eighty thousand and no
garbage. When it ends it would look at all of them again, for a fifth of what the start of a job takes."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
gc.set_threshold(10_000)
atexit.register(gc.freeze)


class _NoPandas:
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return None


_FINDER: Final = _NoPandas()
_PARSER: Final = ModuleType("pyarrow.vendored.docscrape")
_PARSER.__dict__["NumpyDocString"] = lambda _: {"Parameters": ()}

sys.meta_path.insert(0, _FINDER)
sys.modules[_PARSER.__name__] = _PARSER
try:
    import pyarrow as pa
    import pyarrow.compute

    pa.array([0])
finally:
    sys.meta_path.remove(_FINDER)
    del sys.modules[_PARSER.__name__]
