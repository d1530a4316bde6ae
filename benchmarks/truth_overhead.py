"""What the instrumented loop costs beside a bare hand-written one, on the examples.

Both run in one process on the same model, optimizer and data, in alternating short blocks, so that
neither the luck of a process nor drift stands between them. One compute thread, and CPU seconds of the
process, which are wall-clock seconds where nothing else runs: what others take of the machine is not
what the loop costs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from math import exp, log
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch import nn

from autoopt.benchmark.blocks import run_block
from autoopt.benchmark.training import Training
from autoopt.importing import load
from autoopt.optimize.statistics import trimmed
from autoopt.validation import build

WORKLOADS = ("digits", "photos", "stdlib_gpt")
SECONDS = 0.1
PAIRS = 120
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


class Bare:
    """The loop as a person writes it: no clock, no losses kept."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._criterion: Callable[..., Any] | None = None
        if isinstance(training.workload.loss, nn.Module):
            self._criterion = training.workload.loss
        self._batches = self._forever()

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from self._training.loader.loader

    def block(self, seconds: float) -> float:
        """CPU seconds of a step, mean of a block."""
        model, optimizer = self._training.model, self._training.optimizer
        loss_of, schedule = self._training.workload.loss, self._training.schedule
        criterion, batches, steps = self._criterion, self._batches, 0
        began, cpu = perf_counter(), process_time()
        while True:
            batch = next(batches)
            loss = criterion(model(batch[0]), batch[1]) if criterion is not None else loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if not schedule.idle:
                schedule.step()
            steps += 1
            if perf_counter() - began >= seconds and steps >= 2:
                return (process_time() - cpu) / steps


def measure(workload: str, pairs: int = PAIRS) -> dict[str, Any]:
    """The ratio of the instrumented step to the bare one, with its 95 % interval from block pairs."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(EXAMPLES))
    training = Training(build(load(f"{workload}:build", (str(EXAMPLES),))), device="cpu")
    bare = Bare(training)

    def instrumented() -> float:
        spent = [0.0, 0.0]

        def enough(steps: int, seconds: float) -> bool:
            """Reads the CPU clock at the first and the last step: what surrounds the steps is not in their time."""
            if steps == 1:
                spent[0] = process_time()
            if steps < 2 or seconds < SECONDS:
                return False
            spent[1] = process_time()
            return True

        steps = run_block(training, enough).steps
        return (spent[1] - spent[0]) / (steps - 1)

    def plain() -> float:
        return bare.block(SECONDS)

    for _ in range(4):
        instrumented(), plain()
    rng, ratios = np.random.default_rng(0), []
    for _ in range(pairs):
        if rng.random() < 0.5:
            first, second = instrumented(), plain()
        else:
            second, first = plain(), instrumented()
        ratios.append(log(first / second))
    level = trimmed(ratios)
    return {
        "workload": workload,
        "ratio": exp(level.value),
        "low": exp(level.value - 1.96 * level.error),
        "high": exp(level.value + 1.96 * level.error),
        "blocks": pairs,
        "step_seconds": float(np.median([plain() for _ in range(9)])),
    }
