"""Memory that a step frees, kept by the process for the next step."""

from __future__ import annotations

import ctypes

M_MMAP_MAX, M_TRIM_THRESHOLD = -4, -1
"""Parameters of glibc's ``mallopt`` (malloc.h)."""


def keep_freed_memory() -> None:
    """Has glibc take large blocks from the heap and never give the heap's end back (mallopt(3)).

    Else a step's large tensors are given back to the system as they are freed, and their pages are asked for, and
    zeroed, one by one in the next step.

    Raises:
        RuntimeError: the C library has no ``mallopt``, or refuses.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not (mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1)):
        raise RuntimeError("freed memory can be kept with glibc's malloc alone")
