"""The C library's side of this process's memory."""

from __future__ import annotations

import ctypes


def return_free_memory() -> None:
    """Let the C library give what was freed back to the kernel.

    glibc keeps pieces of up to 32 MB for reuse: 10 to 30 MB after loading a 135M model, 250 MB after torch's
    runner of it was closed.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
