"""The calls of one training step's models, held for measuring each stage alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from autoopt.benchmark.contents import samples_of
from autoopt.benchmark.fingerprint import digests
from autoopt.benchmark.losses import takes_probabilities
from autoopt.script.watcher import Watcher


@dataclass
class ModelCall:
    """One training call of a root model: its tensors without their history, and the dtype of autocast around it."""

    model: nn.Module
    args: Any
    kwargs: Any
    dtype: torch.dtype | None = None

    def __call__(self, model: nn.Module) -> torch.Tensor:
        """A scalar to begin a backward pass with, of this model or of another in its place."""
        return scalar_of(model(*self.args, **self.kwargs))


class MicroBatch(list[ModelCall]):
    """The training calls of one micro-batch, in their order."""

    @property
    def samples(self) -> int:
        return max((samples_of((call.args, call.kwargs)) or 0 for call in self), default=0)


class Recording(Watcher):
    """Holds the calls of the script's first training step, digests of the host batch that it began with, and what its
    losses are.

    Attributes:
        takes_probabilities: a loss is made of probabilities (``benchmark.losses``).
    """

    def __init__(self) -> None:
        self.batches: list[MicroBatch] = []
        self.host_digests: tuple[str, str, str] | None = None
        self.takes_probabilities = False
        self._over = False
        self._next = True
        self._loads = False

    def stop(self) -> None:
        self._over = True

    def batch_given(self, loader: Any, batch: Any, training: bool) -> None:
        if not self._over and training:
            self._next = self._loads = True
            self.host_digests = digests(batch) if self.host_digests is None else self.host_digests

    def forward(self, model: nn.Module, args: Any, kwargs: Any, training: bool) -> None:
        if self._over or not training:
            return
        if self._next:
            self.batches.append(MicroBatch())
            self._next = False
        self.batches[-1].append(ModelCall(model, _detached(args), _detached(kwargs), _autocast(model)))

    def backward(self, loss: Any) -> None:
        if not self._over and isinstance(loss, torch.Tensor):
            self.takes_probabilities = self.takes_probabilities or takes_probabilities(loss)
        if not self._loads:
            self._next = True


def _autocast(model: nn.Module) -> torch.dtype | None:
    """The precision that autocast computes in as the model is called; None where it is off."""
    kind = next((parameter.device.type for parameter in model.parameters()), "cpu")
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _detached(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, value)


def scalar_of(output: Any) -> torch.Tensor:
    """A scalar to begin a backward pass with: the loss that a model returns itself, else the mean of its outputs.

    The script's own loss is made by lines that cannot be called alone; what it costs is small beside the model.
    """
    leaves = tree_leaves(dict(output) if hasattr(output, "keys") else output)
    floating = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    found = [leaf for leaf in floating if leaf.requires_grad] or floating
    scalars = [leaf for leaf in found if leaf.numel() == 1]
    if scalars:
        return scalars[0].reshape(())
    means = [leaf.float().mean() for leaf in found]
    return torch.stack(means).sum() if len(means) > 1 else means[0]
