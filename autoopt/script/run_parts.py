"""The parts of a script's whole run, as far as its first steps and what came between them have shown."""

from __future__ import annotations

import builtins
import sys
import threading
from statistics import median
from time import perf_counter
from typing import Any

from autoopt.benchmark.clock import Lap
from autoopt.benchmark.steady import excess
from autoopt.benchmark.whole_run import epoch_start
from autoopt.records import RunParts
from autoopt.script.between import seconds_of_one, steps_between


def run_parts(training: Any, lap: Lap) -> RunParts:
    """All parts that are known by now.

    Args:
        training: the ``ScriptTraining``, which stands at a step's end.
        lap: of steps that it has trained since its first.
    """
    session = training.session
    between, step = session.between, median(lap.steps) if lap.steps else None
    evaluations, saved = between.of("evaluate"), between.of("checkpoint")
    first_batch = between.openings[0] if between.openings else None if training.script.joints.roles.known else 0.0
    begun = session.began if between.first_at is None else between.first_at
    ready = session.began if session.first_step_at is None else session.first_step_at
    before = training.script.imports_seconds
    return RunParts(
        imports_seconds=None if before is None else before + (between.imports or 0.0),
        build_seconds=max(begun - session.began - (between.imports or 0.0), 0.0),
        first_batch_seconds=first_batch,
        warm_up_seconds=max(ready - begun - (first_batch or 0.0) - (step or 0.0), 0.0) + excess(lap.steps),
        step_seconds=step,
        steps=training.lengths.total or None,
        steps_per_epoch=training.lengths.per_epoch,
        epoch_seconds=epoch_start(
            between.openings, training.loader.loader, lap.stages.get("data", 0.0) / max(len(lap.steps), 1)
        ),
        evaluation_seconds=seconds_of_one(evaluations),
        evaluate_every=steps_between(evaluations),
        checkpoint_seconds=seconds_of_one(saved),
        checkpoint_every=steps_between(saved),
        evaluations=tuple(each.evaluated() for each in evaluations),
    )


class ImportClock:
    """Seconds of imports in the thread that trains, until :meth:`stop`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._plain: Any = None
        self._inside = False

    def start(self) -> None:
        plain = self._plain = builtins.__import__
        main = threading.main_thread()

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside or threading.current_thread() is not main or args[0] in sys.modules:
                return plain(*args, **kwargs)
            self._inside, began = True, perf_counter()
            try:
                return plain(*args, **kwargs)
            finally:
                self._inside = False
                self.seconds += perf_counter() - began

        self._timed = builtins.__import__ = timed

    def stop(self) -> float:
        """Puts the import back as it was; seconds so far."""
        if builtins.__import__ is self._timed:
            builtins.__import__ = self._plain
        return self.seconds
