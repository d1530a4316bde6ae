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
        self.rows: dict[Any, tuple[torch.Tensor, ...]] = {}
        self._weights = torch.empty(0)
        self._outputs: dict[Any, Any] = {}

    def __call__(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the module makes of these arguments."""
        given = (*args, *kwargs.values())
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        sizes = {len(value) if value.dim() else 0 for value in tensors}
        learnt = any(isinstance(value, torch.Tensor) and value.requires_grad for value in given)
        if learnt or len(sizes) != 1 or 0 in sizes or not module.state_dict():
            return module(*args, **kwargs)
        weights = weights_of(module)
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
            made = columns_of(output, len(new))
            if not made:
                return output if whole else module(*args, **kwargs)
            each = zip(*(column.clone() for column in made), strict=True)
            self.rows.update(zip([keys[row] for row in new], each, strict=True))
            self._outputs[how] = output
            if whole:
                return output
        found = zip(*(self.rows[key] for key in keys), strict=True)
        return rebuilt(self._outputs[how], [torch.stack(rows) for rows in found])


def weights_of(module: Any) -> torch.Tensor:
    """A number for each tensor that a module holds, which is another one when the tensor is."""
    held = [value for value in module.state_dict().values() if isinstance(value, torch.Tensor)]
    return torch.stack([value.float().norm() for value in held])


def columns_of(output: Any, rows: int) -> list[Any]:
    """The tensors of an output, a tensor or a flat container of such; none where not all have so many rows."""
    columns = [output]
    if isinstance(output, (tuple, list)):
        columns = [*output]
    elif isinstance(output, dict) and all(isinstance(name, str) for name in output):
        columns = [*output.values()]
    of_rows = (isinstance(each, torch.Tensor) and each.shape[:1] == (rows,) for each in columns)
    return columns if all(of_rows) and not any(each.requires_grad for each in columns) else []


def rebuilt(output: Any, columns: list[torch.Tensor]) -> Any:
    """An output with other tensors."""
    if isinstance(output, dict):
        return type(output)(**dict(zip(output, columns, strict=True)))
    if isinstance(output, (tuple, list)):
        return type(output)(*columns) if hasattr(output, "_fields") else type(output)(columns)
    return columns[0]
