"""Copies of the training's batches to the device that the process does not wait for."""

from __future__ import annotations

import functools
from typing import Any

import torch

from autoopt.benchmark.contents import tensors
from autoopt.script.watcher import Watcher


class UnblockedMoves(Watcher):
    """Where the script moves what its training loader gave, it is moved as by ``x.to(device, non_blocking=True)``.

    It is what the patch writes at those lines. Other tensors are left alone: a buffer of the script's own that is
    filled again while its copy is under way would arrive changed.
    """

    def __init__(self) -> None:
        self._given: dict[int, torch.Tensor] = {}

    def install(self) -> None:
        """Puts it around the two methods that move tensors."""
        for name in ("to", "cuda"):
            setattr(torch.Tensor, name, self._unblocked(getattr(torch.Tensor, name)))

    def batch_given(self, loader: Any, batch: Any, training: bool) -> None:
        if training:
            self._given = {id(tensor): tensor for _, tensor in tensors(batch)}

    def _unblocked(self, plain: Any) -> Any:
        @functools.wraps(plain)
        def moved(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            said = "non_blocking" in kwargs or any(isinstance(value, bool) for value in args)
            if id(tensor) in self._given and not said:
                kwargs["non_blocking"] = True
            return plain(tensor, *args, **kwargs)

        return moved
