"""benchmark → simplify → optimize → repeat; then ablate and verify.

Everything that is measured goes through ``run.step``, so that a resumed run executes this same code
and is answered from its journal until it comes to what was not measured yet.
"""

from __future__ import annotations

from autoopt.errors import TrialFailed
from autoopt.events import Stopped, Verified
from autoopt.options import Options
from autoopt.records import Ablation, Speedup, Stop, StopReason
from autoopt.search.ablate import ablate, alone
from autoopt.search.baseline import benchmark, inspected
from autoopt.search.incumbent_profile import simplify
from autoopt.search.outcome import Outcome, outcome_of
from autoopt.search.recollection import recall, remember
from autoopt.search.rounds import Rounds
from autoopt.search.run_context import RunContext
from autoopt.search.scaling import scaling
from autoopt.search.state import SearchState
from autoopt.search.tuning import tune
from autoopt.search.verify import Verification, seconds_due, verify


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
        state = self.state = inspected(self.context, self.options)
        self.context.warn(state, *self.context.runner.registry.warnings, *state.facts.warnings)
        recall(self.context, state)
        benchmark(self.context, state, self.options)
        tune(self.context, state, self.options)
        stop = self._rounds(state)
        rows = self._ablate(state)
        verification, rows = self._verify(state, rows)
        state.scaling = scaling(self.context, state, self.context.allocation.budget)
        return self._end(state, verification, stop, rows)

    def _rounds(self, state: SearchState) -> Stop:
        """Simplifies and optimizes in turn; the reason why that ended."""
        rounds = Rounds(self.context, state)
        while not (over := rounds.over()):
            index = len(state.rounds)
            self.context.begin("simplify", index)
            try:
                round_, pipeline = simplify(self.context, state)
            except TrialFailed as failure:
                detail = f"the incumbent could not be profiled: {failure.reason}"
                return Stop(reason=StopReason.EXHAUSTED, detail=detail)
            self.context.begin("optimize", index)
            stop = rounds.optimize(round_, pipeline)
            if stop:
                return stop
        return over

    def _ablate(self, state: SearchState) -> list[Ablation]:
        self.context.begin("ablate", len(state.rounds))
        until = self.context.allocation.budget - seconds_due(self.context, state)
        rows, dropped = ablate(self.context, state, until)
        self.context.warn(state, *dropped)
        return rows

    def _verify(self, state: SearchState, rows: list[Ablation]) -> tuple[Verification, list[Ablation]]:
        """Verifies the final plan; what time is left then tries each of its changes alone."""
        self.context.begin("verify", len(state.rounds))
        budget = self.context.allocation.budget
        verification = verify(self.context, state, state.aa, budget)
        self.context.warn(state, *verification.notes)
        kept = {change.strategy for change in state.found}
        rows = [row for row in rows if row.strategy in kept and not verification.fell_back]
        return verification, alone(self.context, state, rows, budget)

    def _end(self, state: SearchState, verification: Verification, stop: Stop, rows: list[Ablation]) -> Outcome:
        outcome = outcome_of(state, verification, stop, rows, self.options.price)
        self.context.announce(Verified(at=self.context.now(), best=outcome.best, speedup=outcome.speedup))
        remember(self.context, outcome)
        self.context.announce(Stopped(at=self.context.now(), stop=stop))
        return outcome

    def partial(self) -> Outcome | None:
        """The outcome of a run that is broken off; None before the workload was built.

        Nothing that was not verified is passed on as the best: the best is the baseline.
        """
        state = self.state
        if state is None:
            return None
        if state.found:
            names = ", ".join(change.strategy for change in state.found)
            told = f"broken off before it was verified: {names}; autoopt resume goes on from here"
            self.context.warn(state, told)
        state.incumbent = state.baseline
        stop = Stop(reason=StopReason.INTERRUPTED, detail="stopped at once; nothing was verified")
        return outcome_of(state, Verification(speedup=Speedup(detail="broken off")), stop, [], self.options.price)
