"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import os
import threading
from copy import deepcopy
from typing import Any

import torch

_writing: list[threading.Thread] = []
_failed: list[BaseException] = []


def save_in_background(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    """``torch.save`` of a copy that is written while training goes on, and takes the file's place once it is whole.

    What cannot be copied, or is written to no path, is saved at once.

    Raises:
        OSError: the checkpoint before this one could not be written.
    """
    wait_until_saved()
    held = None
    if isinstance(f, (str, os.PathLike)):
        try:
            with torch.no_grad():
                held = deepcopy(obj)
        except Exception:  # such as a tensor within a graph
            held = None
    if held is None:
        torch.save(obj, f, *args, **kwargs)
        return
    thread = threading.Thread(target=_write, args=(held, os.path.abspath(f), args, kwargs), name="checkpoint")
    thread.start()  # Python waits for it at the end of the process
    _writing.append(thread)


def wait_until_saved() -> None:
    """Waits for the checkpoint that is being written.

    Raises:
        OSError: it could not be written.
    """
    while _writing:
        _writing.pop().join()
    if _failed:
        raise _failed.pop()


def load_saved(*args: Any, **kwargs: Any) -> Any:
    """``torch.load`` once the checkpoint that is being written is whole."""
    wait_until_saved()
    return torch.load(*args, **kwargs)


def _write(held: Any, path: str, args: Any, kwargs: Any) -> None:
    try:
        torch.save(held, f"{path}.part", *args, **kwargs)
        os.replace(f"{path}.part", path)
    except BaseException as error:
        _failed.append(error)
        raise
