"""Requests: calls of a workload's own evaluation to its model, cut from batches, joined, and answered from a record."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

Evaluate = Callable[[Any, Any], Any]


class Recorder(nn.Module):
    """Answers as a model does and keeps every call, ``(args, kwargs)``; its answers too where asked for."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.calls: list[tuple[Any, Any]] = []
        self.answers: list[Any] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        answer = self.model(*args, **kwargs)
        self.calls.append((args, kwargs))
        self.answers.append(answer)
        return answer


class Recorded(nn.Module):
    """Gives recorded answers again, in their order: an evaluation without its model."""

    def __init__(self, answers: Iterable[Any]) -> None:
        super().__init__()
        self._answers = iter(answers)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return next(self._answers)


def single_samples(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches of one sample each."""
    return itertools.chain.from_iterable(_cut(batch, itertools.repeat(1)) for batch in batches)


def cut_to(batches: Iterable[Any], sizes: Iterable[int], lengths: Iterable[int | None]) -> Iterator[Any]:
    """Batches of given sizes, one after the other, shortened to given lengths (None: as they are)."""
    sizes, lengths = iter(sizes), iter(lengths)
    for batch in batches:
        for part in _cut(batch, sizes):
            length = next(lengths)
            yield part if length is None else shortened(part, length)


def _cut(batch: Any, sizes: Iterator[int]) -> Iterator[Any]:
    whole, start = samples_of(batch), 0
    while start < whole:
        stop = min(start + next(sizes), whole)
        yield cut(batch, start, stop, whole)
        start = stop


def calls_of(model: Any, evaluate: Evaluate, batches: Iterable[Any]) -> list[tuple[Any, Any]]:
    """The calls that an evaluation of these batches makes of the model."""
    recorder = Recorder(model).eval()
    with torch.no_grad():
        evaluate(recorder, list(batches))
    return recorder.calls


def mapped(tree: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same structure with each tensor changed; what is no tensor stays."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        items = {key: mapped(value, change) for key, value in tree.items()}
        try:
            return type(tree)(**items) if hasattr(tree, "to_tuple") else type(tree)(items)  # type: ignore[call-arg]
        except TypeError:
            return items
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(value, change) for value in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(value, change) for value in tree)
    return tree


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Every tensor, in a fixed order."""
    found: list[torch.Tensor] = []
    mapped(tree, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def samples_of(tree: Any) -> int:
    """Samples in a batch: the first dimension of its first tensor that has one.

    Raises:
        ValueError: it has none.
    """
    for tensor in tensors_of(tree):
        if tensor.dim():
            return int(tensor.shape[0])
    raise ValueError("a batch without tensors cannot be cut into requests")


def cut(tree: Any, start: int, stop: int, whole: int | None = None) -> Any:
    """Samples ``start`` to ``stop`` of a batch: of each tensor and each list of text that has one entry a sample."""
    whole = samples_of(tree) if whole is None else whole
    if isinstance(tree, torch.Tensor):
        return tree[start:stop] if tree.dim() and tree.shape[0] == whole else tree
    if isinstance(tree, Mapping):
        items = {key: cut(value, start, stop, whole) for key, value in tree.items()}
        try:
            return type(tree)(**items) if hasattr(tree, "to_tuple") else type(tree)(items)  # type: ignore[call-arg]
        except TypeError:
            return items
    if isinstance(tree, list | tuple) and tree and all(isinstance(item, str) for item in tree):
        return tree[start:stop] if len(tree) == whole else tree
    if isinstance(tree, list | tuple):
        parts = [cut(value, start, stop, whole) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


def shortened(tree: Any, length: int) -> Any:
    """Whole-number tensors (tokens, masks) cut to ``length`` along their second dimension."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        tokens = tensor.dim() >= 2 and not tensor.is_floating_point()
        return tensor[:, :length] if tokens else tensor

    return mapped(tree, change)


def joined(trees: list[Any]) -> Any:
    """Requests of one shape as one batch.

    Raises:
        ValueError: their structures or shapes differ.
    """
    first = trees[0]
    if isinstance(first, torch.Tensor):
        if any(tree.shape[1:] != first.shape[1:] for tree in trees):
            raise ValueError("requests of different shapes make no batch")
        return torch.cat(trees) if first.dim() else first
    if isinstance(first, Mapping):
        return {key: joined([tree[key] for tree in trees]) for key in first}
    if isinstance(first, list | tuple):
        parts = [joined(list(items)) for items in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first
