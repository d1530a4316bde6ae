"""The tiny workload in a module that breaks while it is imported: ``FAULTY_IMPORT`` says how."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

IMPORTED_IN = os.getpid()
FAULT = os.environ.get("FAULTY_IMPORT", "")

if FAULT == "error":
    raise ValueError("broken on purpose")
if FAULT == "missing":
    import a_module_that_nobody_has  # noqa: F401
if FAULT == "hang":
    time.sleep(3600)
if FAULT == "deadlock":
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
if FAULT == "segfault":
    ctypes.string_at(0)
if FAULT == "sys_exit":
    sys.exit("no licence")
if FAULT == "os_exit":
    os._exit(9)
if FAULT == "threads":
    threading.Thread(target=time.sleep, args=(3600,)).start()

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import tiny  # noqa: E402


def build() -> object:
    """As a library does that must not be forked after it was imported."""
    if os.getpid() != IMPORTED_IN:
        raise RuntimeError("this library was imported in another process")
    return tiny.build()
