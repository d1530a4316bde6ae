"""benchmark → simplify → optimize → repeat; then ablate and verify.

Everything that is measured goes through ``run.step``, so that a resumed run executes this same code
and is answered from its journal until it comes to what was not measured yet.
"""

from __future__ import annotations

from autoopt.options import Options
from autoopt.records import Stop
from autoopt.search.ablate import ablate, alone, unconfirmed
from autoopt.search.baseline import benchmark, described
from autoopt.search.first_training import run_to_target
from autoopt.search.incumbent_profile import diagnose, simplify
from autoopt.search.outcome import Outcome, broken_off, finished
from autoopt.search.rounds import Rounds
from autoopt.search.run_context import RunContext
from autoopt.search.scaling import model_scaling, scaling
from autoopt.search.state import SearchState
from autoopt.search.tuning import tune
from autoopt.search.verify import seconds_due, verify


class Loop:
    """One run of the loop.

    Args:
        context: trials, journal, clock, announcements.
        options: what the user asked for.
    """

    def __init__(self, context: RunContext, options: Options) -> None:
        self.context, self.options = context, options
        self.state: SearchState | None = None

    def run(self) -> Outcome:
        """Benchmark; rounds of simplify and optimize; ablate; verify.

        Raises:
            WorkloadError: the baseline fails.
        """
        self.context.begin("benchmark")
        state = self.state = described(self.context, self.options)
        run_to_target(self.context)
        diagnose(self.context)
        benchmark(self.context)
        tune(self.context, self.options)
        rounds = Rounds(self.context)
        stop = self._rounds(rounds, state)
        rounds.train_kept()
        budget = self.context.allocation.budget
        if state.found:
            self.context.begin("ablate", len(state.rounds))
        whole = self.context.by_whole_runs
        rows, dropped = ablate(self.context, budget - seconds_due(self.context, state.incumbent))
        self.context.note(*dropped, *unconfirmed(state, rows, whole=whole))
        self.context.begin("verify", len(state.rounds))
        ablated = state.incumbent
        verification = verify(self.context)  # what time is left then tries each of its changes alone
        rows = alone(self.context, rows if state.incumbent == ablated else [], budget)
        state.model_scaling = model_scaling(state, self.context.gate.trainings)
        state.scaling = scaling(self.context)
        return finished(self.context, verification, stop, rows)

    def _rounds(self, rounds: Rounds, state: SearchState) -> Stop:
        """Simplifies and optimizes one after the other; the reason why that ended."""
        while not (over := rounds.over()):
            index = len(state.rounds)
            self.context.begin("simplify", index)
            profile = simplify(self.context)
            if isinstance(profile, Stop):
                return profile
            self.context.begin("optimize", index)
            stop = rounds.optimize(profile[1])
            if stop:
                return stop
        return over

    def partial(self) -> Outcome | None:
        """The outcome of a run that is broken off; None before the workload was built.

        Nothing that was not verified is passed on as the best: the best is the baseline.
        """
        if self.state is None:
            return None
        self.state.model_scaling = model_scaling(self.state, self.context.gate.trainings)
        return broken_off(self.context)
