"""Has the kernel call the clock of its machine synchronised, as a time daemon does (adjtimex(2)). To be run
in a guest only."""

from __future__ import annotations

import ctypes
import struct
import sys

_ADJ_MAXERROR, _ADJ_ESTERROR, _ADJ_STATUS = 4, 8, 16
_SYNCHRONISED = 0

if __name__ == "__main__":
    timex = ctypes.create_string_buffer(208)
    struct.pack_into("I", timex, 0, _ADJ_MAXERROR | _ADJ_ESTERROR | _ADJ_STATUS)
    sys.exit(ctypes.CDLL(None).adjtimex(timex) != _SYNCHRONISED)
