"""The outcome of a run: what ``autoopt.running.document`` makes result.json of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from autoopt.records import Ablation, Configuration, Estimate, Plan, Quality, Speedup, Stop
from autoopt.records.messages import TrainingRun
from autoopt.search.compare.comparison import Side
from autoopt.search.configuration import configuration
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
            examined=state.profiles.get(plan.key),
            side=side,
            runs=runs,
            time_to_target=seconds,
            source=source,
            price_per_hour=price_per_hour,
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
