"""Events that the loop announces; the journal, the live view and the trackers listen.

An event is a frozen record with its kind and the run's own clock. Listeners are plain
callables; one that raises must not end the run, so :class:`Announcer` drops it with a note.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

from autoopt.records import (
    Ablation,
    Change,
    Configuration,
    Environment,
    JsonDict,
    Noise,
    Plan,
    Prediction,
    Record,
    Result,
    Round,
    Speedup,
    Stop,
    Trial,
)

Phase = Literal["benchmark", "simplify", "optimize", "ablate", "verify"]

logger = logging.getLogger(__name__)


class Event(Record):
    """Base of all events. ``at``: seconds on the run's clock (downtime excluded).

    ``replayed``: an earlier process of a run that was resumed announced it; the :class:`Announcer` stamps it.
    """

    at: float = 0.0
    replayed: bool = False


class RunStarted(Event):
    spec: str
    device_name: str
    torch: str | None = None
    budget_seconds: float
    run_directory: str


class EnvironmentRead(Event):
    """The machine as a first trial saw it: until then the device is known as it was asked for ("auto")."""

    environment: Environment


class PhaseStarted(Event):
    phase: Phase
    round: int = 0
    detail: str = ""


class FirstSteps(Event):
    """Where the time of a script's first steps went, before anything is measured. ``shares``: of a step, by stage."""

    steps: int
    step_seconds: float
    shares: dict[str, float]


class Opportunities(Event):
    """Strategies that may shorten a script's step, before anything is measured.

    ``at_most``: strategies by the speedup that is left to them where their stages took no time, the largest first.
    ``unknown``: strategies that have to look into the model or its data before they can say whether they apply.
    """

    at_most: tuple[tuple[float, tuple[str, ...]], ...] = ()
    unknown: tuple[str, ...] = ()


class Predicted(Event):
    """Gains that strategies are predicted to bring, once the stages are measured and before any is tried.

    ``predictions``: of those that are worth trying, the largest gain first; bounds and what has no prediction last.
    """

    predictions: tuple[Prediction, ...] = ()


class BaselineMeasured(Event):
    baseline: Configuration


class NoiseMeasured(Event):
    noise: Noise


class RoundMeasured(Event):
    round: Round


class TrialStarted(Event):
    """``step``: what the trial does, such as ``screening``. ``remaining``: trials expected after it, if known."""

    id: int
    round: int
    strategy: str
    setting: JsonDict
    companions: tuple[Change, ...] = ()
    step: str = "trying"
    predicted: float | None = None
    remaining: int | None = None


class TrialProgress(Event):
    """How a trial stands: a note ("compiling", "block 12"), and the ratio so far where there is one."""

    id: int
    note: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


class TrialEnded(Event):
    """``has_target``: times are those to a value of the metric; else they are those of the same steps."""

    trial: Trial
    has_target: bool = True


class Kept(Event):
    plan: Plan
    best: Configuration
    speedup: Speedup


class AblationMeasured(Event):
    ablation: Ablation


class Verified(Event):
    """``has_target``: as :class:`TrialEnded` has it."""

    best: Configuration
    speedup: Speedup
    has_target: bool = True


class Warned(Event):
    text: str


class Noted(Event):
    """Something to know that casts no doubt on the result."""

    text: str


class Stopped(Event):
    stop: Stop


class RunEnded(Event):
    result: Result
    run_directory: str


Listener = Callable[[Event], None]


class Announcer:
    """Hands every event to every listener, in the order in which they subscribed.

    Args:
        announced: whether an earlier process announced an event.
    """

    def __init__(self, announced: Callable[[Event], bool] = lambda event: False) -> None:
        self._announced = announced
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def __call__(self, event: Event) -> None:
        if self._announced(event):
            event = event.model_copy(update={"replayed": True})
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:  # a view or tracker that fails must not cost the run
                self._listeners.remove(listener)
                logger.warning("a listener failed and was dropped: %r", listener, exc_info=True)
