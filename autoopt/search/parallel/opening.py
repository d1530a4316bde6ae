"""The race of a screening: on several places at once, where there are some and a control allows it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoopt.records.parallel import Sharing
from autoopt.search.compare.arena import LiveArm
from autoopt.search.parallel.race import ParallelRace
from autoopt.search.parallel.sharing import Neighbours, sharing_of
from autoopt.search.race import Race
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.time_limits import STEADY_SECONDS
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.places import Workers

CONTROL_SHARE = 0.2
"""Of the time that is left, for the control of neighbours at most."""


def open_race(context: RunContext, state: SearchState, looks: int, until: float) -> Race | ParallelRace:
    """The race for about so many looks on the present incumbent.

    Args:
        until: when the screening ends, on the run's clock.
    """
    seed = [context.seed, state.numbers, 2]
    rule = context.rule(1.0)
    if context.runner.parallel > 1 and looks > context.runner.parallel:
        runners = context.runner.placed()
        found, live, workers = _control(context, state, runners, until)
        if found.allowed:
            return ParallelRace(
                context.runner,
                runners,
                state.incumbent,
                rule,
                workers=context.runner.workers,
                clock=context.now,
                seed=seed,
                live=live,
                begun=workers,
            )
    rng = np.random.default_rng(seed)
    return Race(context.runner.start, state.incumbent, rule, clock=context.now, rng=rng)


def _control(
    context: RunContext, state: SearchState, runners: Sequence[TrialRunner], until: float
) -> tuple[Sharing, list[LiveArm], Workers | None]:
    """Costs of neighbours to the incumbent, measured once; its processes and who started them, where they live on."""
    known = state.sharing.get(state.incumbent.key)
    if known is not None:
        return known, [], None
    workers: Workers | None = None
    live: list[LiveArm] = []
    names = [runner.place for runner in runners]

    def measure() -> Sharing:
        nonlocal workers
        rule = context.rule(1.0).model_copy(update={"warm_up_seconds": STEADY_SECONDS})
        workers = context.runner.workers()
        neighbours = Neighbours(runners, state.incumbent, rule, workers)
        try:
            found = sharing_of(
                neighbours,
                names,
                state.incumbent,
                state.noise.floor,
                clock=context.now,
                deadline=context.now() + CONTROL_SHARE * max(until - context.now(), 0.0),
                rng=np.random.default_rng([context.seed, state.numbers, 4]),
            )
            if found.allowed:
                live.extend(neighbours.live())
            return found
        finally:
            if not live:
                neighbours.close()
                workers.close()

    key = {"purpose": "neighbours", "incumbent": state.incumbent.model_dump(mode="json")}
    found = state.sharing[state.incumbent.key] = context.run.step("sharing", key, measure, Sharing)
    if not found.allowed:
        context.warn(state, f"--parallel {len(names)}: pairs are measured one after the other: {found.reason}")
    return found, live, workers if live else None
