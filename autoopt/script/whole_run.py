"""Runs of scripts as their users start them, from the start of the process to its end: nothing listens to them.

Several runs take turns: one goes on while the others stand still, stopped as a whole. So each sees the same stretches
of a machine whose speed changes, by a third within minutes on shared ones, and a single pair measures their ratio.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path

from autoopt.benchmark.cputime import cpu_times, foreign_seconds
from autoopt.errors import EnvironmentLacks, TrialFailed
from autoopt.records import Curve, CurvePoint
from autoopt.records.machine import disturbed
from autoopt.records.messages import WHOLE_RUN, TrainingRun
from autoopt.records.protocol import ScriptSpec
from autoopt.script.execute import entered, seeded
from autoopt.script.metric import MetricReader
from autoopt.trial.start import interpreter
from autoopt.trial.tree import die_with_parent, freeze, thaw

TURN_SECONDS = 1.0
"""Of the run that goes on longest: caches are filled in a small part of it, and speed changes in many of them."""


def turn_of(limit_bytes: int | None) -> float:
    """Seconds of a turn; infinite where one run follows the other: a device works on while its process stands still.

    Args:
        limit_bytes: of the device's memory; None on the CPU.
    """
    return TURN_SECONDS if limit_bytes is None else inf


@dataclass(frozen=True)
class WholeRun:
    """One run that came to its end.

    Attributes:
        seconds: from the start of the script's process to its end.
        metrics: all values that it printed, where :meth:`reading` looked for them.
        output: what it printed.
        foreign_cores: that other programs used in the meantime; None where the system does not count them.
    """

    seconds: float
    metrics: tuple[float, ...] = ()
    output: str = ""
    foreign_cores: float | None = None

    @property
    def metric(self) -> float | None:
        """The last value that it printed."""
        return self.metrics[-1] if self.metrics else None

    def reading(self, metric: str | None) -> WholeRun:
        """The same run with the values of a metric in its output (:class:`~autoopt.script.metric.MetricReader`)."""
        reported = list[float]()
        if metric:
            reader = MetricReader(metric, reported.append)
            for line in self.output.splitlines():
                reader.line(line)
        return replace(self, metrics=tuple(reported))

    def as_training(
        self, steps: int, seed: int, patterns: tuple[str, ...] = (), every: float | None = None
    ) -> TrainingRun:
        """The run as a training that is known by its end and by what it printed, evenly spaced as far as is known.

        Args:
            steps: that it took; at most, where it may end by what it has reached.
            seed: by which trainings of two plans are paired.
            patterns: patterns of what may be its metric, where none is known.
            every: steps between two evaluations of a run that may end so; None of one that does not.
        """
        n = len(self.metrics)
        if every and n:
            steps = min(steps, round(n * every)) if steps else round(n * every)
        points = (
            CurvePoint(step=round(steps * at / n), seconds=self.seconds * at / n, metric=value)
            for at, value in enumerate(self.metrics, 1)
        )
        return TrainingRun(
            seed=seed,
            curve=Curve(seed=seed, points=tuple(points)),
            seconds=self.seconds,
            training_seconds=self.seconds,
            evaluation_seconds=0.0,
            evaluations=n,
            steps=steps,
            samples=None,
            fixed_seconds=0.0,
            reached=None,
            stopped=WHOLE_RUN,
            metric_patterns=patterns,
        )


def whole_runs(
    scripts: Sequence[ScriptSpec],
    directory: str,
    *,
    timeout: float,
    shares: Sequence[float] | None = None,
    turn: float = TURN_SECONDS,
    seed: int | None = None,
    within: tuple[int, float] | None = None,
) -> list[WholeRun]:
    """Runs scripts to their ends, interleaved, each in a view of its own: what it writes into the user's folders stays
    there.

    Args:
        scripts: each the command, the folders that are viewed, the files that are patched in the view; the first one
            begins.
        directory: where they run.
        timeout: seconds of its own after which one is ended.
        shares, turn, within: see :func:`run_time_sliced`; infinite where two do not fit next to each other.
        seed: mixed with those that the script sets, by all alike; None: they stand.

    Raises:
        TrialFailed: one ended badly, or not in time; ``side`` is its index.
        EnvironmentLacks: there is no view to be had.
    """
    with ExitStack() as held:
        commands = []
        for script in scripts:
            scratch = held.enter_context(
                tempfile.TemporaryDirectory(prefix="autoopt-whole-", ignore_cleanup_errors=True)
            )
            document = {"script": script.model_dump(), "directory": directory, "scratch": scratch, "seed": seed}
            commands.append(Command(interpreter("autoopt.script.whole_run"), text=json.dumps(document)))
        found = run_time_sliced(commands, timeout=timeout, shares=shares, turn=turn, within=within)
    for side, each in sorted(enumerate(found), key=lambda item: item[1].code is None):  # those were ended with others
        if each.code is not None and not each.begun:
            raise EnvironmentLacks(f"the script could not be started: {each.last}")
        if each.code == 0:
            continue
        failure = TrialFailed("timeout", f"the run was not at its end after {each.seconds:.0f} s")
        if each.code is not None:
            reason = f"the run ended with exit code {each.code}: {each.last}"
            failure = TrialFailed("error", reason, detail=each.output)
        failure.side = side
        raise failure
    return [WholeRun(each.seconds, output=each.output, foreign_cores=each.foreign_cores) for each in found]


def saw_one_machine(runs: Iterable[WholeRun], turn: float) -> bool:
    """Whether runs took turns on a machine that did nothing else: how a system shares its cores with other programs
    differs from run to run, by a fifth next to one busy core.
    """
    return isfinite(turn) and not any(disturbed(run.foreign_cores) for run in runs)


@dataclass(frozen=True)
class Command:
    """A command to run from start to end.

    Args:
        text: for its standard input; a process that gets one stops itself once it has made itself ready, and its
            seconds count from there.
        folder, variables: that it runs in, and its whole environment; None: as here.
    """

    words: Sequence[str]
    text: str = ""
    folder: Path | None = None
    variables: Mapping[str, str] | None = None


def run_time_sliced(
    commands: Sequence[Command],
    *,
    timeout: float,
    shares: Sequence[float] | None = None,
    turn: float = TURN_SECONDS,
    all_of_them: bool = False,
    within: tuple[int, float] | None = None,
) -> list[CommandRun]:
    """Runs commands from start to end, each in a session of its own, and ends whatever they leave behind.

    Args:
        all_of_them: one that fails does not end the others.
        timeout: seconds of its own after which one is ended.
        shares: about how long each takes, next to the others: by them they come to their ends together.
        turn: seconds of the longest turn; infinite: one after the other.
        within: a command's place, and how many times the seconds that it took to its end the others may take.
    """
    shares = shares or [1.0] * len(commands)
    before = cpu_times(with_children=False)
    with ExitStack() as held:
        runs = [held.enter_context(CommandRun(command, timeout)) for command in commands]
        while left := [(run, share) for run, share in zip(runs, shares, strict=True) if not run.over]:
            for run, share in left:
                run.go_on(inf if len(left) < 2 else turn * share / max(shares))
                if within is not None and run is runs[within[0]] and run.over:
                    for other in runs:
                        other.timeout = min(other.timeout, within[1] * run.seconds)
                if run.over and run.code != 0 and not all_of_them:
                    left = []
                    break
            if not left:
                break
    after = cpu_times(with_children=False)
    foreign, whole = foreign_seconds(before, after), sum(run.seconds for run in runs)
    for run in runs:
        run.foreign_cpu_seconds = None if foreign is None else foreign * run.seconds / max(whole, 1e-9)
    return runs


class CommandRun:
    """One command from its start to its end, for at most ``timeout`` seconds of its own.

    Attributes:
        seconds: in which it went on.
        code: its exit code; None where it was ended: it took too long, or another one had failed.
        lines: of its output, each with the seconds at which it came.
        own_cpu_seconds, foreign_cpu_seconds: of its processes, and of other programs in the meantime; of several that
            took turns, the latter in proportion to their seconds.
        begun, over: it came as far as to be timed, and to its end.
    """

    def __init__(self, command: Command, timeout: float) -> None:
        self._command, self.timeout = command, timeout
        self.seconds = self.own_cpu_seconds = 0.0
        self.foreign_cpu_seconds: float | None = None
        self._resumed: float | None = None
        self.code: int | None = None
        self.over = self.begun = False
        self.lines: list[tuple[float, str]] = []
        self._process: subprocess.Popen[str] | None = None

    @property
    def foreign_cores(self) -> float | None:
        """Cores that other programs used in the meantime, on average."""
        return None if self.foreign_cpu_seconds is None else self.foreign_cpu_seconds / self.seconds

    @property
    def output(self) -> str:
        return "".join(line for _, line in self.lines)

    @property
    def last(self) -> str:
        """The last line that says something."""
        return (self.output.strip() or "no output").splitlines()[-1]

    def __enter__(self) -> CommandRun:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            end(self._process)
            self._process.wait()
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def go_on(self, seconds: float) -> None:
        """Goes on for so many seconds, or to its end."""
        if self._process is None and not self._made_ready():
            return
        process, most = self._process, min(seconds, self.timeout - self.seconds)
        assert process is not None
        self._resumed = time.monotonic()
        self.begun, until = True, self._resumed + most
        thaw(process.pid, process.pid)
        while self._reader.is_alive() and (left := until - time.monotonic()) > 0:
            self._reader.join(min(left, TURN_SECONDS / 10))
            with suppress(ProcessLookupError):  # a worker that was made as the run was stopped may stand still yet
                os.killpg(process.pid, signal.SIGCONT)
        if self._reader.is_alive():
            freeze(process.pid, process.pid)
        else:
            before, left = os.times(), self.timeout - self.seconds - (time.monotonic() - self._resumed)
            with suppress(subprocess.TimeoutExpired):  # it has closed its output, and goes on
                self.code = process.wait(max(left, 0.0))
            after, self.over = os.times(), True
            used = after.children_user + after.children_system
            self.own_cpu_seconds = used - before.children_user - before.children_system
        self.seconds += time.monotonic() - self._resumed
        self._resumed = None
        self.over = self.over or self.seconds >= self.timeout

    def _made_ready(self) -> bool:
        """Starts the process; False where it has ended before it was ready."""
        command = self._command
        if not command.text:
            self._resumed = time.monotonic()
        process = self._process = subprocess.Popen(
            command.words,
            cwd=command.folder,
            env=command.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._reader.start()
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it ended before it read
            process.stdin.write(command.text)
            process.stdin.close()
        if not command.text:
            self.seconds += time.monotonic() - (self._resumed or 0.0)
            return True
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            self.begun = True
            return True
        process.returncode = self.code = os.waitstatus_to_exitcode(status)
        self._reader.join()
        self.over = True
        return False

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            resumed = self._resumed
            self.lines.append((self.seconds + (time.monotonic() - resumed if resumed else 0.0), line))


def end(process: subprocess.Popen[str]) -> None:
    """Ends a process with everything that it started, where it has a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    """Becomes the command that standard input describes, once it is let go on."""
    document = json.loads(sys.stdin.read())
    script, scratch = ScriptSpec.model_validate(document["script"]), Path(document["scratch"])
    _, words, environment = entered(script, document["directory"], scratch)
    environment = {**os.environ, **environment}
    if document["seed"] is not None:
        environment = seeded(document["seed"], environment)
    sys.stdout.flush()
    die_with_parent()
    os.kill(os.getpid(), signal.SIGSTOP)
    os.execvpe(words[0], words, environment)
