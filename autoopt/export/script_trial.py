"""The exported script's own loop as the training of a trial, so that it is measured like that of any plan."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from autoopt.benchmark.clock import DeferredCost, clock_for
from autoopt.benchmark.contents import samples_of
from autoopt.benchmark.distributed.group import Each, Enough, Group
from autoopt.benchmark.live import Printed, Stretch, Values, drives
from autoopt.benchmark.losses import LossRecorder
from autoopt.errors import WorkloadError
from autoopt.records import JsonDict
from autoopt.workload import Target

ENDLESS = ("--epochs", "1000000", "--evaluate-every", "1000000000")
"""A training that is never evaluated and does not end."""


class ExportedTraining:
    """The script's loop: what blocks and whole trainings ask of an ``autoopt.benchmark.live.LiveTraining``.

    Evaluations are its own, and count as part of the steps in which it makes them.

    Args:
        whole: trained as the user planned it; else without evaluations, and from the start again at its end.
    """

    restarts = over = False
    evaluation = ends_at = None
    openings: tuple[float, ...] = ()

    def __init__(self, live: Any, path: Path, whole: bool) -> None:
        self.device, self.group, self.endless = live.device, Group(), not whole
        self.target: Target | None = live.workload.target
        spec = importlib.util.spec_from_file_location("optimized_train", path)
        if spec is None or spec.loader is None:
            raise WorkloadError(f"{path} is no Python file")
        module: Any = importlib.util.module_from_spec(spec)
        self.module = sys.modules["optimized_train"] = module
        spec.loader.exec_module(module)
        words = ["--seed", str(live.seed), "--device", str(live.device), *(() if whole else ENDLESS)]
        self.arguments = self.module.arguments(words)
        self.samples = self.steps = self.evaluations = 0
        self.clock = clock_for(live.device)
        self.deferred_cost = DeferredCost(searches=False, compiles=False)
        grouped = self.module.groups

        def counting(batches: Any, size: int) -> Iterator[Any]:
            for group in grouped(batches, size):
                self.samples += sum(samples_of(batch) or 1 for batch in group)
                yield group

        self.module.groups = counting
        self._begin()

    def _begin(self) -> None:
        own = self.module.Run(self.arguments)
        self.model, self.lengths = own.model, SimpleNamespace(evaluate_every=own.evaluate_every)
        self.loader, self.own_steps = SimpleNamespace(loader=own.loader), own.steps()

    def follow(self, enough: Enough, each: Each | None = None, *, most: int | None = None) -> Stretch:
        clock, recorder, done, begun = self.clock, LossRecorder(self.device.kind == "cpu"), 0, False
        self.stretch = Stretch(recorder)
        clock.start()
        while True:
            found = next(self.own_steps, None)
            if found is None and self.endless:  # a run of a fixed number of steps
                if begun:
                    raise WorkloadError("the exported script trained no step")
                self._begin()
                begun = True
                continue
            self.over = found is None
            if found is None:
                break
            step, loss, metrics = found
            recorder.add(loss)
            clock.step_done()
            done, begun, self.steps = done + 1, False, self.steps + 1
            if metrics and self.target is not None:
                self.evaluations += 1
                self.stretch.metrics.append((step, clock.elapsed(), float(metrics[self.target.metric])))
            if each is not None:
                each(done, clock.elapsed())
            if enough(done, clock.elapsed()):
                break
        self.stretch.laps.append(clock.stop())
        return self.stretch

    def do(self, work: Callable[[], Any]) -> Any:
        return work()

    uncounted = do

    def metric_of(self, lines: list[Printed], known: Values) -> tuple[tuple[str, ...], Target | None, Values]:
        return (), self.target, known

    def close(self) -> None:
        """Drops the script's loop, and with it the loader's workers."""
        self.own_steps = iter(())


@drives
def take_over(live: Any, script: str, whole: bool = False) -> JsonDict:
    """From now on the trial trains by the script's own loop; see :class:`ExportedTraining`."""
    _ = live.facts  # of the training that the plan describes
    live.take(lambda: ExportedTraining(live, Path(script), whole))
    return {}
