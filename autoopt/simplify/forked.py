"""Measuring in a forked child, so that caches, iterators and random numbers of this process stay as they are."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from autoopt.records import JsonDict


class ChildFailed(Exception):  # noqa: N818
    """The forked measurement raised, died or took too long; the message says which."""


def can_fork() -> bool:
    return "fork" in multiprocessing.get_all_start_methods()


def in_child(measure: Callable[[], JsonDict], timeout: float) -> JsonDict:
    """Runs ``measure`` in a forked child with one compute thread and hands back its document.

    Raises:
        ChildFailed: it raised, died, or took longer than ``timeout`` seconds; it is gone then.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(measure, theirs), daemon=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads, as a DataLoader does it
        process.start()
    theirs.close()
    try:
        return _answer(ours, timeout)
    finally:
        ours.close()
        process.join(2.0)
        if process.is_alive():
            process.kill()
            process.join()


def _answer(connection: Connection, timeout: float) -> JsonDict:
    if not connection.poll(timeout):
        raise ChildFailed(f"took longer than {timeout:.0f} s")
    try:
        kind, value = connection.recv()
    except EOFError:
        raise ChildFailed("its process died") from None
    if kind == "error":
        raise ChildFailed(value)
    return dict(value)


def _child(measure: Callable[[], JsonDict], connection: Connection) -> None:
    import torch

    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork; a loader's worker does the same
    try:
        answer: tuple[str, Any] = ("answer", measure())
    except Exception as error:
        answer = ("error", f"{type(error).__name__}: {error}".split("\n")[0])
    connection.send(answer)
    connection.close()
