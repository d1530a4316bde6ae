"""Evaluation that leaves no trace in training: modes, random numbers and statistics are as before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any

import torch
from torch import nn

from autoopt.benchmark.contents import samples_of
from autoopt.benchmark.loader import Loader
from autoopt.benchmark.seeding import kept_modes, kept_random_state
from autoopt.benchmark.transfer import Move
from autoopt.errors import WorkloadError


class TimeUpError(Exception):
    """An evaluation takes longer than it may."""


class Batches:
    """The batches that ``evaluate`` gets: those of the validation on the device, as often as it likes."""

    def __init__(self, loader: Loader, move: Move | None) -> None:
        self._loader = loader
        self._move = move
        self.samples = 0
        self.until: float | None = None
        self.stopped = False

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self._loader.generators.start_epoch(0)
        self.samples = 0
        for batch in self._loader.loader:
            if self.until is not None and perf_counter() > self.until:
                self.stopped = True
                raise TimeUpError
            self.samples += samples_of(batch) or 1
            yield batch if self._move is None else self._move(batch)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards each module is in the mode in which it was, and the
    generators stand where they stood."""
    with kept_modes(model), kept_random_state(), torch.no_grad():
        model.eval()
        yield


class Evaluation:
    """Runs the user's ``evaluate(model, batches) -> {"metric": value}``; ``metric`` is a key that must be there."""

    def __init__(
        self,
        evaluate: Callable[..., Any],
        loader: Loader,
        move: Move | None,
        metric: str | None,
        autocast: AbstractContextManager[Any] | None,
    ) -> None:
        self._evaluate = evaluate
        self.batches = Batches(loader, move)
        self._metric = metric
        self._autocast = autocast or nullcontext()

    @property
    def samples(self) -> int:
        """Samples that the latest evaluation read."""
        return self.batches.samples

    def within(self, model: nn.Module, seconds: float) -> dict[str, float] | None:
        """The metrics; None where the evaluation takes longer than so many seconds. Raises what it raises."""
        self.batches.until, self.batches.stopped = perf_counter() + seconds, False
        try:
            metrics = self(model)
        except TimeUpError:
            return None
        finally:
            self.batches.until = None
        return None if self.batches.stopped else metrics

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """The metrics; one that is not finite is ``nan`` or ``inf`` as it came.

        Raises:
            WorkloadError: it returned no dict of numbers, or not the target's metric.
        """
        return checked_metrics(self.on(model, self.batches), self._metric)

    def on(self, model: nn.Module, batches: Iterable[Any]) -> Any:
        """The user's ``evaluate`` on these batches, on the device; training is left as it was."""
        with evaluating(model), self._autocast:
            return self._evaluate(model, batches)


def checked_metrics(returned: Any, metric: str | None) -> dict[str, float]:
    """The metrics that ``evaluate`` returned as plain floats.

    Raises:
        WorkloadError: no dict of numbers, or without the target's metric.
    """
    example = f'such as return {{"{metric or "accuracy"}": hits / total}}'
    if not isinstance(returned, Mapping):
        raise WorkloadError(f"evaluate returned {type(returned).__name__}; wanted: a dict of numbers", hint=example)
    metrics = {}
    for name, value in returned.items():
        try:
            metrics[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError):
            if name != metric:
                continue  # a confusion matrix next to the metric does no harm
            raise WorkloadError(
                f"evaluate returned {name!r} as {type(value).__name__}; wanted: a number", hint=example
            ) from None
    if metric is not None and metric not in metrics:
        keys = ", ".join(map(repr, returned)) or "nothing"
        raise WorkloadError(
            f"evaluate does not return the target's metric {metric!r}; it returned {keys}",
            hint="return it from evaluate, or name one of these in autoopt.Target",
        )
    return metrics
