"""The view of a running search: live on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import IO, Self

from rich.console import Console, RenderableType
from rich.live import Live

from autoopt import events
from autoopt.events import Event
from autoopt.records import Estimate, Speedup
from autoopt_reports.frame import PHASES, State, draw
from autoopt_reports.terminal import (
    clock_text,
    console_for,
    encodable,
    first_steps_text,
    listed,
    of_what,
    opportunity_texts,
    prediction_texts,
    ratio_text,
    trial_change,
    trial_outcome,
)
from autoopt_reports.view import units
from autoopt_reports.view.text import change_name, name, throughput
from autoopt_reports.view.trials import UNMEASURED, WORDS

WIDTH = 100
"""Characters of a line; a longer message goes on in the next one, below its own beginning."""


class View:
    """A listener that is entered before the run and left after it. By itself it shows nothing.

    ``clock``: seconds, monotonic; the run's own clock is that of its events.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._state, self._anchor = State(), (clock(), 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def __call__(self, event: Event) -> None:
        self._state.update(event)
        self._anchor = (self._clock(), self._state.at)

    def _times(self) -> tuple[float, float]:
        """Seconds that have passed, which go on between events, and the budget."""
        run = self._state.run
        running = run is not None and not self._state.finished
        elapsed = self._anchor[1] + (self._clock() - self._anchor[0] if running else 0.0)
        return elapsed, run.budget_seconds if run is not None else 0.0


class LiveView(View):
    """Redraws one frame in place, twice a second."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._console = console
        # What others write to standard error (warnings, logs) goes above the frame instead of through it.
        redirect = console.file is sys.stderr
        self._live = Live(
            console=console,
            refresh_per_second=2,
            transient=True,
            get_renderable=self.frame,
            redirect_stdout=False,
            redirect_stderr=redirect,
            vertical_overflow="crop",
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """A run that came to its end leaves room for the summary; one that did not keeps its last frame."""
        self._live.transient = self._state.finished
        self._live.stop()

    def frame(self) -> RenderableType:
        size = self._console.size
        return draw(self._state, *self._times(), size.width, size.height)


class PlainView(View):
    """A listener that prints lines.

    Args:
        stream: where to; flushed after every line, so that a log can be followed.
        clock: see :class:`View`; it decides on heartbeats alone.
        beat: whether a thread looks for silence; without it, :meth:`tick` does when called.
    """

    def __init__(self, stream: IO[str], clock: Callable[[], float], *, beat: bool = False) -> None:
        super().__init__(clock)
        self._stream, self._last = encodable(stream), clock()
        self._unmeasured: list[events.TrialEnded] = []
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="autoopt-heartbeat", daemon=True) if beat else None

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._tell_unmeasured()

    def __call__(self, event: Event) -> None:
        with self._lock:
            super().__call__(event)
            if event.replayed and not isinstance(event, events.RunStarted):
                pass
            elif isinstance(event, events.TrialEnded) and event.trial.verdict in UNMEASURED:
                self._unmeasured.append(event)
            elif line := describe(event):
                self._tell_unmeasured()
                self._print(event.at, line)
        self.tick()

    def tick(self) -> None:
        """Prints a heartbeat where nothing was printed for a minute and the run goes on."""
        with self._lock:
            if self._state.run is None or self._state.finished or self._clock() - self._last < 60.0:
                return
            self._print(self._times()[0], self._heartbeat())

    def _tell_unmeasured(self) -> None:
        """One line for all that were set aside at the same time: two dozen reasons would hide what was measured."""
        for verdict in UNMEASURED:
            names = [ended.trial.strategy for ended in self._unmeasured if ended.trial.verdict is verdict]
            if names:
                unique = list(dict.fromkeys(names))
                line = f"{WORDS[verdict]} ({len(unique)}, reasons in the report): {listed(unique)}"
                self._print(self._unmeasured[-1].at, line)
        self._unmeasured = []

    def _heartbeat(self) -> str:
        state = self._state
        elapsed, budget = self._times()
        left = f"at most {clock_text(budget - elapsed)} left"
        if state.running is None:
            return f"still in {state.phase or 'the start'}; {left}"
        started, progress = state.running.started, state.running.progress
        note = f", {name(progress.note, 60)}" if progress is not None and progress.note else ""
        change = change_name(started.strategy, started.setting, started.companions, 55)
        return f"trial {started.id}: still {started.step} {change}{note}; {left}"

    def _print(self, at: float, line: str) -> None:
        self._last = self._clock()
        lead = f"[{clock_text(at):>7}] "
        lines = textwrap.wrap(
            line, WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead),
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        self._stream.write("\n".join(lines) + "\n")
        self._stream.flush()

    def _watch(self) -> None:
        while not self._over.wait(5.0):
            try:
                self.tick()
            except (OSError, ValueError):  # the stream was closed: nobody reads it
                return


def describe(event: Event) -> str:
    """The line of an event; "" where it gets none (the heartbeat shows progress)."""
    match event:
        case events.RunStarted():
            resumed, torch = "resumed: " if event.replayed else "", _torch(event.torch)
            return (
                f"{resumed}autoopt {name(event.spec, 80)} on {name(event.device_name, 60)}{torch}; "
                f"budget {clock_text(event.budget_seconds)}; {name(event.run_directory)}"
            )
        case events.EnvironmentRead(environment=seen):
            cores = f", {seen.cores} cores" if seen.cores else ""
            return f"device {seen.device}: {name(seen.device_name or 'unnamed', 60)}{cores}{_torch(seen.torch)}"
        case events.PhaseStarted():
            round_ = f", round {event.round}" if event.round else ""
            return f"{event.phase}{round_}: {name(event.detail) if event.detail else PHASES[event.phase]}"
        case events.BaselineMeasured(baseline=baseline):
            step, rate = baseline.step_seconds, throughput(baseline, "/baseline")
            measured = [units.duration(step.p50) + " a step"] if step else []
            measured += [] if rate.missing else [str(rate)]
            return "baseline: " + (", ".join(measured) or units.NOT_MEASURED)
        case events.NoiseMeasured(noise=noise):
            floor = "" if noise.floor is None else f"; gains under {units.percent(noise.floor)} are within noise"
            control = noise.aa_ratio
            once = control is not None and control.n == 1
            shown = f"{units.ratio(control.value)} in one pair" if control is not None and once else _measured(control)
            return f"noise: baseline against itself {shown}{floor}"
        case events.FirstSteps():
            return f"first {event.steps} steps: {first_steps_text(event)}"
        case events.Opportunities():
            return "upper bounds of the gain: " + "; ".join(opportunity_texts(event))
        case events.Predicted():
            return "predicted gains: " + "; ".join(prediction_texts(event))
        case events.RoundMeasured(round=round_):
            least = round_.ceiling_step_seconds
            ceiling = f", ceiling {units.duration(least)}" if least is not None else ""
            bottleneck = f"; bottleneck: {name(round_.bottleneck, 60)}" if round_.bottleneck else ""
            step_ = units.duration(round_.step_seconds)
            return f"profile, round {round_.index}: {step_} a step{ceiling}{bottleneck}"
        case events.TrialStarted():
            predicted = f", predicted {units.ratio(event.predicted)}" if event.predicted is not None else ""
            change = change_name(event.strategy, event.setting, event.companions, 55)
            return f"trial {event.id}: {event.step} {change}{predicted}"
        case events.TrialEnded(trial=trial):
            verdict, outcome = WORDS[trial.verdict], trial_outcome(trial, event.has_target)
            return f"trial {trial.id}: {trial_change(trial, 55)} → {verdict}, {outcome}"
        case events.Kept():
            detail = f" {name(event.speedup.detail, 80)}" if event.speedup.detail else ""
            return f"plan: {listed(event.plan.names())}; {_speedup(event.speedup)}{detail}"
        case events.Verified() if not event.best.plan.changes:
            return "nothing was kept, so there is no plan to verify"
        case events.Verified():
            word = "verified end to end" if event.speedup.end_to_end_verified else "not verified"
            return f"final plan {word}: {_speedup(event.speedup, event.has_target)}"
        case events.AblationMeasured(ablation=found):
            others = f" (with {listed(found.beside)} still in it)" if found.beside else ""
            change = change_name(found.strategy, found.setting, (), 40)
            gain = f"{_measured(found.without)}{others}, alone {_measured(found.alone)}"
            return f"ablation {change}: gain in the plan {gain}"
        case events.Warned():
            return f"warning: {name(event.text, 400)}"
        case events.Noted():
            return f"note: {name(event.text, 400)}"
        case events.Stopped(stop=stop):
            detail = f": {name(stop.detail)}" if stop.detail else ""
            return f"search ended ({stop.reason.value.replace('_', ' ')}){detail}"
        case events.RunEnded():
            return f"report: {name(event.run_directory)}/report.html"
    return ""


def _torch(version: str | None) -> str:
    return f", torch {name(version, 30)}" if version else ""


def _measured(estimate: Estimate | None) -> str:
    return ratio_text(estimate) or units.NOT_MEASURED


def _speedup(speedup: Speedup, has_target: bool = True) -> str:
    if speedup.headline is not None:
        return speedup.headline.text
    if speedup.time_to_target is not None:
        return f"{ratio_text(speedup.time_to_target)} {of_what(has_target, speedup.planned_steps)}"
    return f"{ratio_text(speedup.throughput)} in samples per second" if speedup.throughput else units.NOT_MEASURED


def make_view(stream: IO[str], *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> View:
    """The view that fits the stream.

    A terminal that can move its cursor gets the live view; anything else, ``TERM=dumb`` included,
    gets plain lines. Colours follow ``NO_COLOR`` and ``FORCE_COLOR``; they never turn a log file
    into a terminal.
    """
    if quiet:
        return View()
    console = console_for(stream)
    if stream.isatty() and not console.is_dumb_terminal:
        return LiveView(console, clock)
    return PlainView(stream, clock, beat=clock is time.monotonic)
