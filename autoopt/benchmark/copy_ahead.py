"""Batches that are copied to a CUDA device ahead, on a stream of their own, while it computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from autoopt.benchmark.transfer import mapped

END = object()
"""In place of a batch where there is no further one."""


class CopyAhead:
    """A queue of batches on their way to the device.

    Args:
        device: a CUDA device.
        move: a host batch to the device.
        depth: batches that are on their way at the most.
    """

    def __init__(self, device: torch.device, move: Callable[[Any], Any], depth: int) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._move = move
        self._depth = depth
        self._ready: deque[tuple[Any, Any, Any]] = deque()
        self._ended = False

    def fill(self, batches: Iterator[Any], depth: int | None = None) -> None:
        """Reads and copies until so many batches are on their way."""
        while not self._ended and len(self._ready) < (depth or self._depth):
            batch = next(batches, END)
            if batch is END:
                self._ended = True
                return
            with torch.cuda.stream(self._stream):
                moved = self._move(batch)
                event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record()
            self._ready.append((moved, event, batch))  # the source lives until its copy is done

    def take(self) -> Any:
        """The next batch, safe to use on the stream that computes; ``END`` where there is none."""
        if not self._ready:
            self._ended = False
            return END
        moved, event, _ = self._ready.popleft()
        current = torch.cuda.current_stream()
        current.wait_event(event)

        def used(part: Any) -> Any:  # a tensor, or an object that moved by itself
            if hasattr(part, "record_stream") and getattr(part, "is_cuda", True):
                part.record_stream(current)
            return part

        mapped(moved, used, used)
        return moved
