"""State of a run at a moment, as the live view needs it: events in, a plain state out."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

from autoopt import events
from autoopt.events import Event
from autoopt.records import Configuration, Estimate, Speedup, Trial, Verdict
from autoopt_reports.view.quality import claim_of
from autoopt_reports.view.trials import UNMEASURED

E = TypeVar("E", bound=Event)

PHASES: dict[events.Phase, str] = {
    "benchmark": "measuring the baseline",
    "simplify": "measuring each stage and its ceiling",
    "optimize": "trying changes",
    "ablate": "removing each kept change once",
    "verify": "training baseline and plan",
}
"""Phases in their order, each with its work."""


@dataclass(slots=True)
class Running:
    """The trial in progress."""

    started: events.TrialStarted
    since: float
    progress: events.TrialProgress | None = None


@dataclass(slots=True)
class State:
    """Everything the views show. ``latest``: event of each kind; ``at``: the run's clock at the last event."""

    run: events.RunStarted | None = None
    phase: events.Phase | None = None
    phase_round: int = 0
    detail: str = ""
    latest: dict[type[Event], Event] = field(default_factory=dict)
    best: Configuration | None = None
    speedup: Speedup | None = None
    running: Running | None = None
    has_target: bool = True
    trials: deque[Trial] = field(default_factory=lambda: deque(maxlen=40))
    trial_seconds: list[float] = field(default_factory=list)
    remaining: int | None = None
    claims: list[str] = field(default_factory=list)
    gained: list[Estimate] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    finished: bool = False
    at: float = 0.0

    def last(self, kind: type[E]) -> E | None:
        """The latest event of a kind."""
        found = self.latest.get(kind)
        return found if isinstance(found, kind) else None

    def update(self, event: Event) -> None:
        """Takes an event in; kinds that are not known change nothing but the clock."""
        self.at, self.latest[type(event)] = max(self.at, event.at), event
        match event:
            case events.RunStarted():
                self.run = event
            case events.EnvironmentRead(environment=seen) if self.run is not None:
                device, torch = seen.device_name or seen.device, seen.torch or self.run.torch
                self.run = self.run.model_copy(update={"device_name": device, "torch": torch})
            case events.PhaseStarted():
                self.phase, self.phase_round, self.detail = event.phase, event.round, event.detail
                self.running = None
            case events.TrialStarted():
                self.running, self.detail = Running(event, event.at), ""
                self.remaining = self.remaining if event.remaining is None else event.remaining
            case events.TrialProgress() if self.running is not None and self.running.started.id == event.id:
                self.running.progress = event
            case events.TrialEnded():
                self._ended(event.trial, event.has_target)
            case events.Kept():
                self.best = event.best
            case events.Verified():
                self.best, self.speedup = event.best, event.speedup
            case events.AblationMeasured():
                self.detail = event.ablation.strategy
            case events.Warned():
                self.warnings.append(event.text)
            case events.Noted():
                self.notes.append(event.text)
            case events.Stopped():
                self.running = None
            case events.RunEnded(result=result):
                self.finished, self.running = True, None
                self.best, self.speedup = result.best, result.speedup

    def _ended(self, trial: Trial, has_target: bool) -> None:
        self.detail, self.has_target = "", has_target
        if self.running is not None and self.running.started.id == trial.id:
            self.running = None
        if trial.verdict in UNMEASURED:
            return
        self.trials.appendleft(trial)
        if trial.seconds:
            self.trial_seconds.append(trial.seconds)
        if trial.verdict is Verdict.KEPT:
            if trial.throughput is not None:
                self.gained.append(trial.throughput)
            self.claims.append(claim_of(trial.quality))

    def eta(self, elapsed: float, budget: float) -> tuple[float, float] | None:
        """Seconds to go, from and to: the quartiles of past trials times the trials to come, within the budget.

        None until the planner reported how many are to come and a few have ended.
        """
        if self.remaining is None or len(self.trial_seconds) < 3 or self.finished:
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
