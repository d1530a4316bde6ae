"""Exchange of a kept change: a rival for the same stages in its place.

Of two ways to shorten one stage the better is kept, and what is kept later may turn that round: beside it the second
one may serve better.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoopt.records import Change, Plan, Trial, Verdict
from autoopt.registry import Registry
from autoopt.search.candidate import Candidate
from autoopt.search.planner import PLUGIN_ERRORS, candidate_plan
from autoopt.search.screened import rival_strategies
from autoopt.search.state import SearchState


def exchanges(state: SearchState, registry: Registry) -> list[Candidate]:
    """Candidates with a rival in a kept change's place, the largest gain that was seen of one first; each only once.

    Only what did well before on a plan without that change, and was neither kept nor refused, is one.
    """
    seen = sorted(state.trials, key=_gain, reverse=True)
    found = (
        candidate
        for kept in state.found
        for trial in seen
        if _open(trial)
        and trial.strategy in registry
        and rival_strategies(registry[kept.strategy], registry[trial.strategy])
        for candidate in _exchanged(state, registry, kept, trial)
    )
    return list(found)


def exchanged(state: SearchState, before: Plan) -> str:
    """Writes into the kept trial of what is no longer in the plan what stands in its place, and says it."""
    gone = ", ".join(name for name in before.names() if name not in state.incumbent.names())
    new = ", ".join(name for name in state.incumbent.names() if name not in before.names())
    for name in gone.split(", "):
        state.revise(name, Verdict.NO_GAIN, f"{new} in its place is faster", "exchanged")
    return f"{gone} was kept first and exchanged for {new}, which is faster in its place"


def _open(trial: Trial) -> bool:
    return trial.verdict is Verdict.INCONCLUSIVE and _gain(trial) > 1.0


def _gain(trial: Trial) -> float:
    estimate = trial.time_to_target or trial.throughput
    return estimate.value if estimate is not None else 0.0


def _exchanged(state: SearchState, registry: Registry, kept: Change, trial: Trial) -> Iterator[Candidate]:
    """The rival's changes on the incumbent without what was kept; nothing where that is no plan, or was tried."""
    change = Change(strategy=trial.strategy, setting=trial.setting)
    changes = (change, *(c for c in trial.companions if c.strategy != kept.strategy))
    if kept.strategy in {c.strategy for c in changes} or change.strategy in state.incumbent.names():
        return
    try:
        plan = candidate_plan(registry, state.without(kept.strategy), changes)
        registry.fold(plan)
    except PLUGIN_ERRORS:
        return
    if state.first_time((kept, *changes)):
        yield Candidate(registry[trial.strategy], change, changes[1:], plan, None)
