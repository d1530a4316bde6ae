"""The learning rate: the user's scheduler over the same samples, whatever the batch, times the setup's factor.

The scheduler is made as the user makes it, for the steps of their own batch, and moved on by the
samples that were trained: with a batch twice as large, two of its steps per optimizer step. So any
scheduler keeps its curve, also one with numbers of steps written into it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import suppress
from math import floor
from time import perf_counter
from typing import Any

import torch

from autoopt.errors import WorkloadError


def multiplier(step: int, factor: float, warmup_steps: int) -> float:
    """The factor on the learning rate in an optimizer step, counted from 0.

    The warm-up is linear, from the user's own rate to ``factor`` times it (Goyal et al., "Accurate,
    large minibatch SGD", 2017, section 2.2); where the factor is 1 or less, from next to nothing.
    """
    if warmup_steps <= 0 or step >= warmup_steps:
        return factor
    start = 1 / factor if factor > 1 else 1 / (warmup_steps + 1)
    return factor * (start + (1 - start) * step / warmup_steps)


class Schedule:
    """Sets the learning rate of every parameter group, step by step.

    Args:
        optimizer: whose groups it sets.
        scheduler: ``scheduler(optimizer, total_steps)`` of the user's, or None.
        interval: ``step`` or ``epoch``.
        total_steps: of the planned run with the user's own batch.
        steps_ratio: the user's optimizer steps that one of ours stands for.
        factor, warmup_steps: of the setup.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: Callable[..., Any] | None,
        *,
        interval: str = "step",
        total_steps: int = 1,
        steps_ratio: float = 1.0,
        factor: float = 1.0,
        warmup_steps: int = 0,
    ) -> None:
        self._optimizer = optimizer
        self._ratio = steps_ratio
        self._factor, self._warmup = factor, warmup_steps
        self._total = total_steps
        self._interval = interval
        self.steps = 0
        self._moved = 0
        self._raw: list[Any] = []
        self.scheduler: Any = scheduler(optimizer, total_steps) if scheduler is not None else None
        if scheduler is not None and not callable(getattr(self.scheduler, "step", None)):
            raise WorkloadError(
                f"scheduler(optimizer, total_steps) returned {type(self.scheduler).__name__}; "
                "wanted: a learning-rate scheduler",
                hint="such as scheduler=lambda optimizer, total_steps: "
                "OneCycleLR(optimizer, max_lr=1e-2, total_steps=total_steps)",
            )
        self._by_metric = False
        if self.scheduler is not None:
            with suppress(TypeError, ValueError):  # a step without a signature
                for first in list(inspect.signature(self.scheduler.step).parameters.values())[:1]:
                    self._by_metric = first.name.startswith("metric") and first.default is inspect.Parameter.empty
        self._scaled = factor != 1.0 or warmup_steps > 0
        self._keep()
        self.idle = self.scheduler is None and not self._scaled

    def step(self) -> None:
        """After each optimizer step."""
        self.steps += 1
        if self.scheduler is not None and self._interval == "step" and not self._by_metric:
            self._advance(min(floor(self.steps * self._ratio + 1e-9), self._total) - self._moved)
        elif self._scaled and self.steps <= self._warmup:
            self._scale(multiplier(self.steps, self._factor, self._warmup))

    def epoch(self) -> None:
        """After each epoch."""
        if self.scheduler is not None and self._interval == "epoch" and not self._by_metric:
            self._advance(1)

    def evaluated(self, metric: float) -> None:
        """After each evaluation, for a scheduler that follows the metric (ReduceLROnPlateau)."""
        if self._by_metric:
            self._scale(1.0)
            self.scheduler.step(metric)
            self._keep()

    def ahead(self, total_steps: int, places: int, seconds: float) -> tuple[tuple[int, float], ...]:
        """The first group's rate to the end of the run, by moving the scheduler alone; the schedule is of no use then.

        Args:
            total_steps: of the planned run.
            places: at which it is written down, evenly spaced, in steps (epochs, of a scheduler that counts these).
            seconds: after which it ends.

        Returns:
            Pairs of step and rate, of an epoch as its negative number; empty where the rate follows the metric.
        """
        if self._by_metric:
            return ()
        if self.scheduler is None:
            rate = float(self._optimizer.param_groups[0]["lr"])
            steps = range(0, total_steps + 1, max(total_steps // places, 1))
            return tuple((place, rate) for place in (*range(-places, 0), *steps))
        by_epoch, began, found = self._interval == "epoch", perf_counter(), []
        every = max(total_steps // places, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no optimizer steps in between
            while (self._moved if by_epoch else self.steps) < (places if by_epoch else total_steps):
                try:
                    self.epoch() if by_epoch else self.step()
                except Exception:  # a schedule that ends before the run does: the last place shows where
                    break
                place = self._moved if by_epoch else self.steps
                if by_epoch or place % every == 0:
                    found.append((-place if by_epoch else place, float(self._optimizer.param_groups[0]["lr"])))
                if perf_counter() - began > seconds:
                    break
        return tuple(found)

    def _advance(self, count: int) -> None:
        self._scale(1.0)
        for _ in range(count):
            if self._moved:
                self.scheduler.step()
            else:  # torch warns where the gradient scaler has left the first step out; that is as it should be
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
                    self.scheduler.step()
            self._moved += 1
        self._keep()

    def _keep(self) -> None:
        """The rates as they are now are the scheduler's own, which are scaled."""
        if self._scaled:
            self._raw = [float(group["lr"]) for group in self._optimizer.param_groups]
            self._scale(multiplier(self.steps, self._factor, self._warmup))

    def _scale(self, times: float) -> None:
        """Sets so many times the scheduler's own rates; 1: the scheduler goes on from these, not from scaled ones."""
        if not self._scaled:
            return
        for group, raw in zip(self._optimizer.param_groups, self._raw, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(raw * times)
            else:
                group["lr"] = raw * times

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "moved": self._moved,
            "raw": self._raw,
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """After the optimizer's own state has been loaded."""
        self.steps, self._moved, self._raw = state["steps"], state["moved"], list(state["raw"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
