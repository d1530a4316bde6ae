"""One run of a script as its user starts it, from the start of its process to its end: nothing listens to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autoopt.benchmark.cputime import cpu_times, foreign_seconds
from autoopt.errors import EnvironmentLacks, TrialFailed
from autoopt.records import Curve, CurvePoint
from autoopt.records.messages import WHOLE_RUN, TrainingRun
from autoopt.script.execute import opened, placed
from autoopt.script.metric import MetricReader
from autoopt.trial.protocol import ScriptSpec

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from autoopt.script.whole_run import become; become()"
)
_BEGAN = "began"


@dataclass(frozen=True)
class WholeRun:
    """One run that came to its end.

    Attributes:
        seconds: from the start of the script's process to its end.
        foreign_cpu_seconds: CPU seconds of other programs meanwhile; None where the kernel does not count them.
        metric: the last value that it printed; None where it printed none, or none was asked for.
    """

    seconds: float
    foreign_cpu_seconds: float | None
    metric: float | None

    def as_training(self, steps: int, seed: int) -> TrainingRun:
        """The run as a training that is known by its end alone.

        Args:
            steps: that it took.
            seed: by which trainings of two plans are paired.
        """
        point = CurvePoint(step=steps, seconds=self.seconds, metric=self.metric)
        return TrainingRun(
            seed=seed,
            curve=Curve(seed=seed, points=() if self.metric is None else (point,)),
            seconds=self.seconds,
            training_seconds=self.seconds,
            evaluation_seconds=0.0,
            evaluations=int(self.metric is not None),
            steps=steps,
            samples=None,
            fixed_seconds=0.0,
            reached=None,
            stopped=WHOLE_RUN,
        )


def whole_run(script: ScriptSpec, directory: str, *, timeout: float, metric: str | None = None) -> WholeRun:
    """Runs a script to its end in a view of its own: what it writes into the user's folders stays there.

    Args:
        script: the command, the folders that are viewed, the files that are patched in the view.
        directory: where it runs.
        timeout: seconds after which it is ended.
        metric: what to read in its output (:class:`~autoopt.script.metric.MetricReader`).

    Raises:
        TrialFailed: it ended badly, or not in time.
        EnvironmentLacks: there is no view to be had.
    """
    with tempfile.TemporaryDirectory(prefix="autoopt-whole-", ignore_cleanup_errors=True) as scratch:
        document = {"script": script.model_dump(), "directory": directory, "scratch": scratch}
        before = cpu_times(with_children=False)
        with subprocess.Popen(
            [sys.executable, "-P", "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(json.dumps(document), timeout=timeout)
                ended = time.monotonic()
            except subprocess.TimeoutExpired:
                raise TrialFailed("timeout", f"the run was not at its end after {timeout:.0f} s") from None
            finally:
                with suppress(ProcessLookupError):  # its own children end with it
                    os.killpg(process.pid, signal.SIGKILL)
        began = Path(scratch, _BEGAN)
        last = (output.strip() or "no output").splitlines()[-1]
        if not began.exists():
            raise EnvironmentLacks(f"the script could not be started: {last}")
        if process.returncode != 0:
            raise TrialFailed("error", f"the run ended with exit code {process.returncode}: {last}", detail=output)
        foreign = foreign_seconds(before, cpu_times(with_children=False))
        return WholeRun(ended - float(began.read_text()), foreign, _last(metric, output) if metric else None)


def _last(metric: str, output: str) -> float | None:
    told: list[float] = []
    reader = MetricReader(metric, told.append)
    for line in output.splitlines():
        reader.line(line)
    return told[-1] if told else None


def become() -> None:
    """Becomes the command that standard input describes."""
    document = json.loads(sys.stdin.read())
    script, scratch = ScriptSpec.model_validate(document["script"]), Path(document["scratch"])
    view = opened(script, scratch)
    words, environment = placed(script, view, document["directory"], scratch)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout.flush()
    (scratch / _BEGAN).write_text(repr(time.monotonic()))
    os.execvpe(words[0], words, {**os.environ, **environment})
