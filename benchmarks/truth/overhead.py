"""Overhead of the instrumented loop beside a bare hand-written one, on the examples.

In each process both train the same model with the same optimizer, loader and seed, in short alternating blocks of
equally many steps, in an order drawn by lot, so that drift does not stand between
them. Processes are replicated, since the place of code and data in memory favours one or the other for a
process's whole life. One compute thread, and CPU seconds of the process, which are wall-clock seconds where
nothing else runs: what others take of the machine is not what the loop costs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from math import log
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from scipy.stats import trim_mean
from torch import nn

from autoopt.benchmark.live import run_until
from autoopt.benchmark.training import Training
from autoopt.benchmark.warmup import run_block
from autoopt.loading.importing import load
from autoopt.loading.validation import build
from benchmarks.documents import ROOT, environment
from benchmarks.whole_runs.figures import ratio

SECONDS, RAMP = 0.15, 0.05
"""Of a block and of what is trained before it unmeasured: half of a comparison's, so that drift has less time and what
a block costs at its ends counts twice."""
PROCESS_SECONDS = 20.0
PAIRS = 50
PROCESSES = 6
EXAMPLES = ROOT / "examples"


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

    def block(self, ramp: int, steps: int) -> float:
        """CPU seconds of a step, mean of a block."""
        model, optimizer = self._training.model, self._training.optimizer
        loss_of, schedule = self._training.workload.loss, self._training.schedule
        criterion, batches, began = self._criterion, self._batches, 0.0
        for step in range(ramp + steps):
            if step == ramp:
                began = process_time()
            batch = next(batches)
            loss = criterion(model(batch[0]), batch[1]) if criterion is not None else loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if not schedule.idle:
                schedule.step()
        return (process_time() - began) / steps


class Instrumented:
    """The loop of every trial."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def block(self, ramp: int, steps: int) -> float:
        """CPU seconds of a step, with all that surrounds the steps of a block, as its document tells them."""
        run_until(self._training, lambda done, _: done >= ramp)
        block = run_block(self._training, lambda done, _: done >= steps)
        assert block.cpu_seconds is not None
        return block.cpu_seconds / steps


def one_process(workload: str) -> dict[str, Any]:
    """The mean log ratio of instrumented to bare step of this process; fewer pairs than most where steps are long."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(EXAMPLES))
    training = Training(build(load(f"{workload}:build", (str(EXAMPLES),))), device="cpu")
    sides = [Instrumented(training).block, Bare(training).block]
    step = min(sides[1](1, 2) for _ in range(3))
    ramp, steps = max(1, round(RAMP / step)), max(2, round(SECONDS / step))
    pairs = max(8, min(PAIRS, round(PROCESS_SECONDS / (2 * (ramp + steps) * step))))
    for side in sides:
        side(ramp, steps)
    rng, ratios, bare = np.random.default_rng(), [], []
    for _ in range(pairs):
        first = int(rng.integers(2))
        seconds = {index: sides[index](ramp, steps) for index in (first, 1 - first)}
        ratios.append(log(seconds[0] / seconds[1]))
        bare.append(seconds[1])
    return {
        "log_ratio": float(trim_mean(ratios, 0.2)),
        "step_seconds": float(np.median(bare)),
        "steps_per_block": steps,
        "pairs": pairs,
    }


def another(workload: str) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), workload]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def measure(workloads: Sequence[str]) -> list[dict[str, Any]]:
    """The overhead on each example, over several processes."""
    return [
        {**summary(name, [another(name) for _ in range(PROCESSES)]), "environment": environment()} for name in workloads
    ]


def summary(workload: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """The ratio of the instrumented step to the bare one, with its 95 % interval over processes."""
    over = ratio([one["log_ratio"] for one in found]) or {}
    return {
        "workload": workload,
        "ratio": over["value"],
        "low": over["low"],
        "high": over["high"],
        "processes": len(found),
        "block_pairs_each": found[0]["pairs"],
        "step_seconds": float(np.median([one["step_seconds"] for one in found])),
        "found": found,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(one_process(sys.argv[1])) + "\n")
