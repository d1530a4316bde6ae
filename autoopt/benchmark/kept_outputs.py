"""Outputs of frozen modules, which are computed once for each sample and then taken from memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

_kept: WeakKeyDictionary[Any, KeptOutputs] = WeakKeyDictionary()


def kept_outputs(module: Any, *args: Any, **kwargs: Any) -> Any:
    """``module(*args, **kwargs)`` of a frozen module, whose outputs for samples that come again are kept in memory.

    The same in training and in evaluation where the module computes each row of its batch by itself, and draws no
    random numbers.
    """
    return _kept.setdefault(module, KeptOutputs())(module, args, kwargs)


class KeptOutputs:
    """What a module made of samples, by the bytes of all that it was given of each; only new ones are computed.

    All is forgotten as soon as a weight of the module is another.

    Attributes:
        rows: outputs by sample, tensors without the dimension of the batch.
    """

    def __init__(self) -> None:
        self.rows: dict[Any, torch.Tensor] = {}
        self._weights = torch.empty(0)

    def __call__(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the module makes of these arguments."""
        given = (*args, *kwargs.values())
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        sizes = {len(value) if value.dim() else 0 for value in tensors}
        learnt = any(isinstance(value, torch.Tensor) and value.requires_grad for value in given)
        held = [value for value in module.state_dict().values() if isinstance(value, torch.Tensor)]
        if learnt or len(sizes) != 1 or 0 in sizes or not held:
            return module(*args, **kwargs)
        weights = torch.stack([value.float().norm() for value in held])
        if not torch.equal(weights, self._weights):
            self.rows.clear()
            self._weights = weights
        lower = torch.is_autocast_enabled(tensors[0].device.type)
        others = tuple(map(repr, (value for value in given if not isinstance(value, torch.Tensor))))
        how = (module.training, lower, *kwargs, *others)
        columns = [value.cpu().contiguous().reshape(len(value), -1).view(torch.uint8).numpy() for value in tensors]
        keys = [(how, *(hash(row.tobytes()) for row in sample)) for sample in zip(*columns, strict=True)]
        new = [row for row, key in enumerate(keys) if key not in self.rows]
        whole = len(new) == len(keys)
        if new:
            part = [value[new] if isinstance(value, torch.Tensor) and not whole else value for value in given]
            output = module(*part[: len(args)], **dict(zip(kwargs, part[len(args) :], strict=True)))
            if not isinstance(output, torch.Tensor) or output.requires_grad or output.shape[:1] != (len(new),):
                return output if whole else module(*args, **kwargs)
            self.rows.update(zip([keys[row] for row in new], output.clone().unbind(), strict=True))
            if whole:
                return output
        return torch.stack([self.rows[key] for key in keys])
