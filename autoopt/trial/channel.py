"""A private pipe that carries JSON documents, one a line; nothing on it is pickled."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

from autoopt.records import JsonDict

FIRST_DESCRIPTOR = 500
"""Descriptors of ours live from here on, out of the reach of code that closes the low ones."""

LONGEST = 64 * 2**20
"""Bytes of one document; beyond it something else is writing on the pipe."""


class ChannelClosed(Exception):  # noqa: N818 - the other side is gone; a fact, not an error
    """The other side is gone."""


class ChannelBroken(Exception):  # noqa: N818
    """Raised where a message is no document."""


class Channel:
    """One end of a pipe between two processes.

    Args:
        end: a connected stream socket; the channel owns it.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)
        self._end = end
        self._buffer = bytearray()

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, document: JsonDict) -> None:
        """Sends one document.

        Raises:
            ChannelClosed: the other side is gone.
            ValueError, TypeError: not JSON; a number that is not finite counts as such.
        """
        data = json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            self._end.sendall(data)
        except OSError as error:
            raise ChannelClosed(str(error)) from None

    def receive(self, timeout: float | None = None) -> JsonDict | None:
        """The next document, or None when ``timeout`` seconds pass without one.

        Raises:
            ChannelClosed: the other side is gone and has left nothing more.
            ChannelBroken: not a document.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > LONGEST:
                raise ChannelBroken(f"a message of more than {LONGEST} bytes")
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not readable([self], left):
                return None
            try:
                data = self._end.recv(1 << 16)
            except OSError as error:
                raise ChannelClosed(str(error)) from None
            if not data:
                raise ChannelClosed("end of messages")
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise ChannelBroken(f"not a document: {line[:80]!r}")
        return document

    def pending(self) -> bool:
        """Whether a whole document has arrived already."""
        return b"\n" in self._buffer

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._end.close()


readable: Callable[[list[Any], float | None], list[Any]] = wait
"""Those of the ends that have something to read, or are closed; empty when the time is up."""


def move_up(descriptor: int) -> int:
    """The same open file under a high number, closed on exec; the low one is closed."""
    high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR)
    os.close(descriptor)
    return high
