"""How the final plan scales: the same in fewer processes, each compared with one, in what time the run has left."""

from __future__ import annotations

from typing import Literal

from autoopt.records import Estimate, Plan, Verdict
from autoopt.records.distributed import Scaling, ScalingPoint
from autoopt.search.compare.arm import TrialArm
from autoopt.search.compare.comparison import Decision
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.simplify.pipeline import forecasts

UNTIL_ERROR = 0.02
"""Standard error of a ratio at which a point is known well enough."""


def scaling(context: RunContext, state: SearchState) -> Scaling | None:
    """Throughput of the incumbent in several processes over one; None where it trains in one.

    Of a script that a launcher starts each process has a batch of the script's size, however many there are. What does
    not fit into the budget is noted as missing.
    """
    plan = state.incumbent
    most = max(plan.processes, state.facts.processes)
    if most < 2:
        return None
    points: list[ScalingPoint] = []
    wanted = counts(most)
    for number, count in enumerate(wanted):
        left = context.allocation.budget - context.now()
        if left < context.allocation.comparison:
            state.missing += [f"scaling to {later} processes: no time was left" for later in wanted[number:]]
            break
        point = _measured(context, state, plan, count, left / (len(wanted) - number))
        if point is not None:
            points.append(point)
    # else the speedup of the trial that made it so many processes, on the plan of its time
    made = (trial for trial in state.trials if trial.setting.get("processes") == most)
    found = next((trial.throughput for trial in made if trial.verdict is Verdict.KEPT and trial.throughput), None)
    if found is not None and most not in {point.processes for point in points}:
        points.append(point_of(most, found, "trial"))
    profile = state.profiles.get(plan.key)
    sent = profile.communication if profile is not None else None
    forecast, round_ = None, next((round_ for round_ in reversed(state.rounds) if round_.plan == plan), None)
    if sent is not None and round_ is not None:
        own_batch = state.facts.processes > 1
        forecast = forecasts(round_, sent, own_batch=own_batch, cores=state.environment.cores) or None
    if forecast is None:
        state.missing.append("scaling.forecast: messages of the final plan were not measured")
    return Scaling(
        points=tuple(sorted(points, key=lambda point: point.processes)), communication=sent, forecast=forecast
    )


def counts(processes: int) -> list[int]:
    """Numbers of processes to measure: all of them first, then powers of two below."""
    return [processes, *(2**power for power in range(1, (processes - 1).bit_length()))]


def _measured(context: RunContext, state: SearchState, plan: Plan, count: int, seconds: float) -> ScalingPoint | None:
    def start(plan: Plan, label: str) -> TrialArm:
        """One of the processes of a script's launcher as the incumbent, and so many as the candidate."""
        return context.runner.start(plan, label, 1 if label == "incumbent" else count)

    comparison = context.compare(
        "scaling",
        plan.with_processes(1),
        plan.with_processes(count),
        state,
        seconds=seconds,
        deadline=context.allocation.budget,
        purpose=f"scaling to {count}",
        until_error=UNTIL_ERROR,
        start=start if state.facts.processes > 1 else None,
    )
    if comparison.decision is Decision.FAILED or comparison.estimate is None:
        state.missing.append(f"scaling to {count} processes: {comparison.reason}")
        return None
    return point_of(count, comparison.estimate, "measured")


def point_of(count: int, throughput: Estimate, source: Literal["measured", "trial"]) -> ScalingPoint:
    """The throughput of so many processes over one, and its efficiency: the same divided by their number."""
    each = {name: getattr(throughput, name) / count for name in ("value", "low", "high")}
    efficiency = throughput.model_copy(update=each)
    return ScalingPoint(processes=count, throughput=throughput, efficiency=efficiency, source=source)
