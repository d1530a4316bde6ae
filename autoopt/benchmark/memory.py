"""A memory limit on the CPU: every tensor's storage is counted while it lives."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that are made under it, or shown to it, until they are freed.

    It stands for a device's memory where there is none: activations that autograd saves, gradients and
    optimizer state are all storages, so that a search for the largest batch meets its limit as on a GPU.

    Args:
        limit: bytes; the operator that goes beyond raises ``torch.OutOfMemoryError``.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.limit = limit
        self.bytes = 0
        self.peak = 0
        self._seen: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.add(result)
        return result

    def add(self, tensors: Any) -> None:
        """Counts tensors that are alive already, such as parameters.

        Raises:
            torch.OutOfMemoryError: the limit is passed.
        """
        for tensor in _tensors(tree_leaves(tensors)):
            self._add_storage(tensor.untyped_storage())
        if self.bytes > self.limit:
            raise torch.OutOfMemoryError(
                f"out of memory: {self.bytes / 2**20:.1f} MiB of tensors are alive, "
                f"the limit is {self.limit / 2**20:.1f} MiB"
            )

    def _add_storage(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._seen and self._seen[key]() is storage:
            return
        size = storage.nbytes()

        def gone(_: Any, key: int = key, size: int = size) -> None:
            self.bytes -= size
            self._seen.pop(key, None)

        self._seen[key] = weakref.ref(storage, gone)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)

    def reset_peak(self) -> None:
        self.peak = self.bytes


def _tensors(leaves: Iterable[Any]) -> Iterable[torch.Tensor]:
    return (leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided)
