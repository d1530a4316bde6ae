"""State of a run at a moment, as the live view needs it: events in, a plain state out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from autoopt.events import (
    AblationMeasured,
    BaselineMeasured,
    EnvironmentRead,
    Event,
    FirstLook,
    Kept,
    NoiseMeasured,
    Noted,
    Opportunities,
    Phase,
    PhaseStarted,
    Predicted,
    RoundMeasured,
    RunEnded,
    RunStarted,
    Stopped,
    TrialEnded,
    TrialProgress,
    TrialStarted,
    Verified,
    Warned,
)
from autoopt.records import Configuration, Estimate, Noise, Round, Speedup, Stop, Trial, Verdict
from autoopt_reports.view.quality import claim_of

PHASES: tuple[Phase, ...] = ("benchmark", "simplify", "optimize", "ablate", "verify")
SHORTEST_HISTORY = 3
NOT_RUN = {Verdict.NOT_APPLICABLE, Verdict.NOT_TRIED}


@dataclass(slots=True)
class Running:
    """The trial in progress."""

    started: TrialStarted
    since: float
    progress: TrialProgress | None = None


@dataclass(slots=True)
class State:
    """Everything the views show. ``at``: the run's clock at the last event."""

    run: RunStarted | None = None
    phase: Phase | None = None
    phase_round: int = 0
    detail: str = ""
    look: FirstLook | None = None
    opportunities: Opportunities | None = None
    predicted: Predicted | None = None
    baseline: Configuration | None = None
    noise: Noise | None = None
    round: Round | None = None
    best: Configuration | None = None
    speedup: Speedup | None = None
    running: Running | None = None
    has_target: bool = True
    trials: deque[Trial] = field(default_factory=lambda: deque(maxlen=40))
    ended: int = 0
    skipped: int = 0
    trial_seconds: list[float] = field(default_factory=list)
    remaining: int | None = None
    claims: list[str] = field(default_factory=list)
    gained: list[Estimate] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stop: Stop | None = None
    finished: bool = False
    at: float = 0.0

    def update(self, event: Event) -> None:
        """Takes an event in; kinds that are not known change nothing but the clock."""
        self.at = max(self.at, event.at)
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def eta(self, elapsed: float, budget: float) -> tuple[float, float] | None:
        """Seconds to go, from and to: the quartiles of past trials times the trials to come, within the budget.

        None until the planner told how many are to come and a few have ended.
        """
        if self.remaining is None or len(self.trial_seconds) < SHORTEST_HISTORY or self.finished:
            return None
        ranked = sorted(self.trial_seconds)
        low, high = ranked[len(ranked) // 4], ranked[(3 * len(ranked)) // 4]
        left = max(0.0, budget - elapsed)
        count = self.remaining + (1 if self.running else 0)
        return min(left, low * count), min(left, high * count)


def stacked(gains: list[Estimate]) -> Estimate | None:
    """The product of gains that were measured one upon the other, each in a comparison of its own.

    The half widths of independent estimates add as squares, on the log scale. None where nothing was measured.
    """
    if not gains:
        return None
    middle = sum(math.log(gain.value) for gain in gains)
    below = math.hypot(*(math.log(gain.value / gain.low) for gain in gains))
    above = math.hypot(*(math.log(gain.high / gain.value) for gain in gains))
    return Estimate(
        value=math.exp(middle),
        low=math.exp(middle - below),
        high=math.exp(middle + above),
        confidence=min((gain.confidence for gain in gains if gain.confidence is not None), default=None),
        n=min(gain.n for gain in gains),
    )


def _run(state: State, event: Event) -> None:
    assert isinstance(event, RunStarted)
    state.run = event


def _environment(state: State, event: Event) -> None:
    assert isinstance(event, EnvironmentRead)
    if state.run is not None:
        seen = event.environment
        state.run = state.run.model_copy(
            update={"device_name": seen.device_name or seen.device, "torch": seen.torch or state.run.torch}
        )


def _first_look(state: State, event: Event) -> None:
    assert isinstance(event, FirstLook)
    state.look = event


def _opportunities(state: State, event: Event) -> None:
    assert isinstance(event, Opportunities)
    state.opportunities = event


def _predicted(state: State, event: Event) -> None:
    assert isinstance(event, Predicted)
    state.predicted = event


def _phase(state: State, event: Event) -> None:
    assert isinstance(event, PhaseStarted)
    state.phase, state.phase_round, state.detail = event.phase, event.round, event.detail
    state.running = None


def _baseline(state: State, event: Event) -> None:
    assert isinstance(event, BaselineMeasured)
    state.baseline = event.baseline


def _noise(state: State, event: Event) -> None:
    assert isinstance(event, NoiseMeasured)
    state.noise = event.noise


def _round(state: State, event: Event) -> None:
    assert isinstance(event, RoundMeasured)
    state.round = event.round


def _started(state: State, event: Event) -> None:
    assert isinstance(event, TrialStarted)
    state.running, state.detail = Running(event, event.at), ""
    if event.remaining is not None:
        state.remaining = event.remaining


def _progress(state: State, event: Event) -> None:
    assert isinstance(event, TrialProgress)
    if state.running is not None and state.running.started.id == event.id:
        state.running.progress = event


def _ended(state: State, event: Event) -> None:
    assert isinstance(event, TrialEnded)
    trial, state.detail, state.has_target = event.trial, "", event.has_target
    if state.running is not None and state.running.started.id == trial.id:
        state.running = None
    if trial.verdict in NOT_RUN:
        state.skipped += 1
        return
    state.ended += 1
    state.trials.appendleft(trial)
    if trial.seconds:
        state.trial_seconds.append(trial.seconds)
    if trial.verdict is Verdict.KEPT:
        if trial.throughput is not None:
            state.gained.append(trial.throughput)
        state.claims.append(claim_of(trial.quality))


def _kept(state: State, event: Event) -> None:
    assert isinstance(event, Kept)
    state.best = event.best


def _verified(state: State, event: Event) -> None:
    assert isinstance(event, Verified)
    state.best, state.speedup = event.best, event.speedup


def _warned(state: State, event: Event) -> None:
    assert isinstance(event, Warned)
    state.warnings.append(event.text)


def _noted(state: State, event: Event) -> None:
    assert isinstance(event, Noted)
    state.notes.append(event.text)


def _stopped(state: State, event: Event) -> None:
    assert isinstance(event, Stopped)
    state.stop, state.running = event.stop, None


def _finished(state: State, event: Event) -> None:
    assert isinstance(event, RunEnded)
    state.finished, state.running = True, None
    state.best, state.speedup, state.stop = event.result.best, event.result.speedup, event.result.stop


def _ablated(state: State, event: Event) -> None:
    assert isinstance(event, AblationMeasured)
    state.detail = event.ablation.strategy


_HANDLERS: dict[type[Event], Callable[[State, Event], None]] = {
    RunStarted: _run,
    EnvironmentRead: _environment,
    PhaseStarted: _phase,
    BaselineMeasured: _baseline,
    NoiseMeasured: _noise,
    FirstLook: _first_look,
    Opportunities: _opportunities,
    Predicted: _predicted,
    RoundMeasured: _round,
    TrialStarted: _started,
    TrialProgress: _progress,
    TrialEnded: _ended,
    Kept: _kept,
    Verified: _verified,
    AblationMeasured: _ablated,
    Warned: _warned,
    Noted: _noted,
    Stopped: _stopped,
    RunEnded: _finished,
}
