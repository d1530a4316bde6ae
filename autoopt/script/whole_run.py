"""One run of a script as its user starts it, from the start of its process to its end: nothing listens to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
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
        foreign_cpu_seconds: CPU seconds of other programs in the meantime; None where the kernel does not count them.
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
        words = [sys.executable, "-P", "-c", _START, json.dumps(sys.path)]
        found = run_to_end(words, timeout=timeout, text=json.dumps(document))
        if found.code is None:
            raise TrialFailed("timeout", f"the run was not at its end after {timeout:.0f} s")
        began = Path(scratch, _BEGAN)
        if not began.exists():
            raise EnvironmentLacks(f"the script could not be started: {found.last}")
        if found.code != 0:
            reason = f"the run ended with exit code {found.code}: {found.last}"
            raise TrialFailed("error", reason, detail=found.output)
        told: list[float] = []
        if metric:
            reader = MetricReader(metric, told.append)
            for line in found.output.splitlines():
                reader.line(line)
        seconds = found.ended - float(began.read_text())
        return WholeRun(seconds, found.foreign_cpu_seconds, told[-1] if told else None)


@dataclass(frozen=True)
class Ended:
    """A process that came to its end.

    Attributes:
        seconds: from its start to its end, ``ended`` on the monotonic clock.
        code: its exit code; None where it was ended since it took too long.
        lines: of its output, each with the seconds at which it came.
        own_cpu_seconds, foreign_cpu_seconds: of this program's processes, and of other programs in the meantime.
    """

    seconds: float
    ended: float
    code: int | None
    lines: tuple[tuple[float, str], ...]
    own_cpu_seconds: float
    foreign_cpu_seconds: float | None

    @property
    def output(self) -> str:
        return "".join(line for _, line in self.lines)

    @property
    def last(self) -> str:
        """The last line that says something."""
        return (self.output.strip() or "no output").splitlines()[-1]


def run_to_end(
    words: Sequence[str],
    *,
    timeout: float,
    text: str = "",
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Ended:
    """Runs a command from start to end in a session of its own, and ends whatever it leaves behind.

    Args:
        timeout: seconds after which it is ended.
        text: for its standard input.
        folder, variables: that it runs in, and its whole environment; None: as here.
    """
    before, began, lines = cpu_times(with_children=False), time.monotonic(), list[tuple[float, str]]()
    with subprocess.Popen(
        words,
        cwd=folder,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(timeout, end, [process])
        timer.start()
        try:
            with suppress(BrokenPipeError):  # it ended before it read
                process.stdin.write(text)
                process.stdin.close()
            lines += ((time.monotonic() - began, line) for line in process.stdout)
            code = process.wait()
            ended = time.monotonic()
        finally:
            late = not timer.is_alive()
            timer.cancel()
            end(process)
    after = cpu_times(with_children=False)
    own, foreign = after.own - before.own, foreign_seconds(before, after)
    return Ended(ended - began, ended, None if late else code, tuple(lines), own, foreign)


def end(process: subprocess.Popen[str]) -> None:
    """Ends a process with everything that it started, where it has a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


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
