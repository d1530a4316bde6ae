"""Calls of a workload's own evaluation to its model: the requests, and metrics of recorded answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from .trees import cut, samples_of, shortened

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
