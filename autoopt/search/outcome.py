"""The outcome of a run, from which ``autoopt.running.document`` makes result.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from autoopt.events import Stopped, Verified
from autoopt.records import Ablation, Configuration, Estimate, Plan, Quality, Speedup, Stop, StopReason
from autoopt.records.messages import TrainingRun
from autoopt.search.compare.comparison import Side
from autoopt.search.configuration import configuration
from autoopt.search.recollection import remember
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.verify import Verification


@dataclass
class Outcome:
    """The end of a run: baseline and best with all that was measured of them, and why the search stopped."""

    state: SearchState
    baseline: Configuration
    best: Configuration
    speedup: Speedup
    stop: Stop
    quality: Quality | None = None
    ablation: list[Ablation] = field(default_factory=list)


def finished(
    context: RunContext,
    state: SearchState,
    verification: Verification,
    stop: Stop,
    rows: list[Ablation],
    price_per_hour: float | None,
) -> Outcome:
    """The outcome of a run that came to its end: announced, and its plan remembered."""
    outcome = outcome_of(state, verification, stop, rows, price_per_hour)
    has_target = state.objective.has_target
    context.announce(Verified(at=context.now(), best=outcome.best, speedup=outcome.speedup, has_target=has_target))
    remember(context, state, outcome.best.plan, outcome.speedup)
    context.announce(Stopped(at=context.now(), stop=stop))
    return outcome


def broken_off(context: RunContext, state: SearchState, price_per_hour: float | None) -> Outcome:
    """The outcome of a run that was stopped at once: what was not verified is not the best, the baseline is."""
    if state.found:
        names = ", ".join(change.strategy for change in state.found)
        told = f"broken off before it was verified: {names}; autoopt resume goes on from here"
        context.warn(state, told)
    state.incumbent = state.baseline
    stop = Stop(reason=StopReason.INTERRUPTED, detail="stopped at once; nothing was verified")
    return outcome_of(state, Verification(speedup=Speedup(detail="broken off")), stop, [], price_per_hour)


def outcome_of(
    state: SearchState, verification: Verification, stop: Stop, rows: list[Ablation], price_per_hour: float | None
) -> Outcome:
    """Puts the end of a run together.

    Args:
        rows: the ablation of the final plan.
        price_per_hour: of the device.
    """

    def configured(
        plan: Plan,
        side: Side | None,
        runs: tuple[TrainingRun, ...],
        seconds: Estimate | None,
        source: Literal["measured", "modelled"] = "measured",
    ) -> Configuration:
        return configuration(
            plan,
            state.environment,
            profile=state.profiles.get(plan.key),
            side=side,
            runs=runs,
            time_to_target=seconds,
            source=source,
            price_per_hour=price_per_hour,
            processes=state.facts.processes,
        )

    side = verification.baseline_side or (state.control.side if state.control else None)
    runs = verification.baseline_runs or ((state.trained,) if state.trained else ())
    best = baseline = configured(state.baseline, side, runs, verification.baseline_seconds)
    if state.incumbent != state.baseline:
        found = verification
        best = configured(state.incumbent, found.best_side, found.best_runs, found.best_seconds, found.best_source)
    return Outcome(
        state=state,
        baseline=baseline,
        best=best,
        speedup=verification.speedup,
        stop=stop,
        quality=verification.quality,
        ablation=rows,
    )
