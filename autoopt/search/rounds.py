"""Rounds of trials: what is tried next with the time that is left, and when to stop."""

from __future__ import annotations

from collections.abc import Sequence

from autoopt.events import Kept, TrialEnded
from autoopt.records import Round, Speedup, Stop, StopReason, Verdict
from autoopt.search.compare.comparison import Decision
from autoopt.search.compare.sequential_test import SequentialTest
from autoopt.search.configuration import configuration
from autoopt.search.planner import Proposal, Queue, build_queue, fitting
from autoopt.search.run_context import Earlier, RunContext
from autoopt.search.state import SearchState
from autoopt.search.strategy_search import StrategySearch
from autoopt.simplify.pipeline import Pipeline

TRIAL_COMPARISONS = 1.5
"""Trying a strategy takes about so many short comparisons: settings, companions and trainings included."""


class Rounds:
    """What the search does between two profiles.

    Args:
        context, state: of the run.
    """

    def __init__(self, context: RunContext, state: SearchState) -> None:
        self.context, self.state = context, state
        self._seen_bottleneck: dict[str, str | None] = {}
        self._spent: dict[str, float] = {}
        self._settled: set[int] = set()

    def queue(self, pipeline: Pipeline | None) -> Queue:
        """What is worth trying on the incumbent; notes and announces the rest."""
        context, state = self.context, self.state
        registry = context.runner.registry
        plan = build_queue(registry, state.case(registry, pipeline, self._left()), context.choice, self.threshold)
        for skipped in plan.skipped:
            known = state.skipped.get(skipped.strategy.name)
            trial = state.skip(
                skipped.strategy,
                skipped.verdict,
                skipped.reason,
                setting=skipped.setting,
                predicted=skipped.predicted,
            )
            if known is None:
                context.announce(TrialEnded(at=context.now(), trial=trial))
        return plan

    def optimize(self, round_: Round, pipeline: Pipeline | None) -> Stop | None:
        """Tries what is worth it on the incumbent. None where something was kept, else why the search ends."""
        queue = self.queue(pipeline)
        return None if self.try_all(queue, round_, pipeline) else self.stop(round_, queue)

    def try_all(self, plan: Queue, round_: Round, pipeline: Pipeline | None) -> bool:
        """Tries proposals until one is kept (True: the bottleneck has moved, profile again) or none is left.

        Which fit the time is asked again before each, since some take less of it than was thought.
        """
        waiting = [proposal for proposal in plan.proposals if self._comes_back(proposal, round_)]
        while waiting and not self.over():
            chosen = fitting(tuple(waiting), self._left(), self._cost)
            waiting.remove(chosen[0])
            if self._try(chosen[0], len(chosen) - 1, round_, pipeline):
                self._announce_kept()
                return True
        self._no_time(waiting)
        return self._settle(round_, pipeline)

    def over(self) -> Stop | None:
        """Why nothing more may be started: the user, or the budget. None while there is time."""
        if self.context.stopping():
            return Stop(reason=StopReason.INTERRUPTED, detail="stopped by the user; what was kept so far was checked")
        deadline, allocation = self._deadline(), self.context.allocation
        if self.context.now() + allocation.comparison > deadline:
            return Stop(
                reason=StopReason.BUDGET,
                detail=f"the search had {deadline:.0f} s of the {allocation.budget:.0f} s budget; "
                f"{allocation.budget - deadline:.0f} s were kept back for ablation and verification",
            )
        return None

    def stop(self, round_: Round, plan: Queue) -> Stop:
        """Why a round in which nothing was kept ends the search.

        Where no stage holds the step back, that is the reason, also where something was left for lack of time.
        """
        over = self.over()
        if over and over.reason is StopReason.INTERRUPTED:
            return over
        return _at_the_ceiling(round_) or over or _nothing_left(plan, self.threshold)

    @property
    def threshold(self) -> float:
        """The speedup that a prediction must allow: what is worth having, and what could be told from noise."""
        return 1 + max(self.context.min_gain, self.state.noise.floor or 0.0)

    def _deadline(self, earlier: Earlier | None = None) -> float:
        """Until when may be searched.

        Args:
            earlier: an undecided trial that would go on; were it kept, its training would take less by what was seen.
        """
        state = self.state
        speedup = state.speedup_so_far * (max(_seen(earlier), 1.0) if earlier else 1.0)
        return self.context.allocation.search_deadline(len(state.found) + 1, speedup)

    def _left(self, earlier: Earlier | None = None) -> float:
        return self._deadline(earlier) - self.context.now()

    @property
    def _cost(self) -> float:
        """Seconds that trying a strategy takes: as thought beforehand, and as it was with each so far."""
        seen = [TRIAL_COMPARISONS * self.context.allocation.comparison, *self._spent.values()]
        return sum(seen) / len(seen)

    def _try(self, proposal: Proposal, remaining: int, round_: Round, pipeline: Pipeline | None) -> bool:
        context, state, name = self.context, self.state, proposal.strategy.name
        self._seen_bottleneck[name] = round_.bottleneck
        case = state.case(context.runner.registry, pipeline, self._left())
        began = context.now()
        kept = StrategySearch(context, state, proposal, case, self._deadline(), remaining).run()
        self._spent[name] = context.now() - began
        return kept

    def _settle(self, round_: Round, pipeline: Pipeline | None) -> bool:
        """Spends what time is left on trials that looked worth keeping and were not decided. True where one is kept."""
        while not self.context.stopping():
            earlier = self._undecided()
            if earlier is None:
                return False
            self._settled.add(earlier.trial.id)
            proposal = Proposal(self.context.runner.registry[earlier.trial.strategy], earlier.trial.predicted)
            case = self.state.case(self.context.runner.registry, pipeline, self._left(earlier))
            deadline = self._deadline(earlier)
            if StrategySearch(self.context, self.state, proposal, case, deadline).go_on(earlier):
                self._seen_bottleneck[earlier.trial.strategy] = round_.bottleneck
                self._announce_kept()
                return True
        return False

    def _undecided(self) -> Earlier | None:
        """Of the trials on this incumbent that more pairs of processes may settle, the one that promises most."""
        state = self.state
        found = [
            Earlier(trial, comparison, state.noise_before[trial.id])
            for trial in state.trials
            if trial.verdict is Verdict.INCONCLUSIVE and trial.id not in self._settled
            for comparison in [state.comparisons[trial.id]]
            if comparison.decision is Decision.INCONCLUSIVE and comparison.incumbent.plan == state.incumbent
        ]
        return max(filter(self._may_be_settled, found), key=_seen, default=None)

    def _may_be_settled(self, earlier: Earlier) -> bool:
        left = self._left(earlier)
        ledger = SequentialTest(self.context.rule(left), earlier.noise, earlier.comparison.pairs)
        return ledger.promising() and ledger.decide(left) is None

    def _comes_back(self, proposal: Proposal, round_: Round) -> bool:
        """A strategy that was tried comes back only under another bottleneck."""
        name = proposal.strategy.name
        return name not in self._seen_bottleneck or self._seen_bottleneck[name] != round_.bottleneck

    def _no_time(self, waiting: Sequence[Proposal]) -> None:
        """Notes those that were left when the time was up."""
        tried = {trial.strategy for trial in self.state.trials}
        for proposal in waiting:
            if proposal.strategy.name not in tried:
                reason = "no time for it in this budget: others promised more, or came first"
                self.state.skip(proposal.strategy, Verdict.NOT_TRIED, reason, predicted=proposal.predicted)

    def _announce_kept(self) -> None:
        context, state = self.context, self.state
        trial = next(t for t in reversed(state.trials) if str(t.id) == state.base)
        side = state.comparisons[trial.id].candidate
        best = configuration(state.incumbent, state.environment, side=side)
        speedup = Speedup(throughput=trial.throughput, detail="over the incumbent before it")
        context.announce(Kept(at=context.now(), plan=state.incumbent, best=best, speedup=speedup))


def _seen(earlier: Earlier) -> float:
    """The speedup that an undecided trial showed so far."""
    estimate = earlier.comparison.estimate
    return estimate.value if estimate else 0.0


def _at_the_ceiling(round_: Round) -> Stop | None:
    ceiling = round_.ceiling_step_seconds
    if not ceiling or not round_.stages or round_.bottleneck is not None:
        return None
    return Stop(
        reason=StopReason.AT_THE_CEILING,
        detail=f"a step takes {1e3 * round_.step_seconds:.2f} ms, its ceiling here is {1e3 * ceiling:.2f} ms "
        f"({round_.step_seconds / ceiling:.2f} times that): no stage is far enough from its own to hold it back",
    )


def _nothing_left(plan: Queue, threshold: float) -> Stop:
    best = max((p.predicted.high for p in plan.skipped if p.predicted), default=None)
    if not plan.proposals and best is not None:
        return Stop(
            reason=StopReason.DIMINISHING_RETURNS,
            detail=f"the best remaining prediction is {best:.3f}x, below the {threshold:.3f}x that would count",
        )
    return Stop(reason=StopReason.EXHAUSTED, detail="every applicable strategy was tried on the incumbent")
