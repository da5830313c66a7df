"""Asks the kernel for the CPU's AMX tiles.

Linux (5.16 and later) lets a process use them only after it has asked, once, for all of its threads: their
state is 8 KiB that every switch between threads may have to save (Documentation/arch/x86/xstate.rst).
Children inherit the leave, programs that are executed do not.
"""

from __future__ import annotations

import ctypes
import os
import platform

_ARCH_PRCTL = 158  # number of the system call on x86-64
_REQUEST_PERMISSION = 0x1023
_TILE_DATA = 18  # number of the state component


def ask_for_tiles() -> str | None:
    """None where this process may use tiles from now on, else why not. Asking again changes nothing."""
    if platform.machine() != "x86_64":
        return "this is no x86-64 CPU"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(
        ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_REQUEST_PERMISSION), ctypes.c_long(_TILE_DATA)
    ):
        words = os.strerror(ctypes.get_errno())
        return f"Linux gives this process no leave ({words}): it is older than 5.16, or a seccomp filter"
    return None
