"""Rounds of trials: what is tried next with the time that is left, and when to stop."""

from __future__ import annotations

from collections.abc import Sequence

from autoopt.events import Kept, TrialEnded
from autoopt.records import Round, Speedup, Stop, StopReason, Verdict
from autoopt.search.compare.comparison import Decision
from autoopt.search.compare.sequential_test import SequentialTest
from autoopt.search.configuration import configuration
from autoopt.search.planner import Proposal, Queue, agenda, fitting
from autoopt.search.run_context import Earlier, RunContext
from autoopt.search.state import SearchState
from autoopt.search.strategy_search import StrategySearch
from autoopt.simplify.pipeline import Pipeline

TRIAL_COMPARISONS = 1.5
"""Trying a strategy takes about so many short comparisons: settings, companions and trainings included."""


class Rounds:
    """What the search does between two profiles.

    Args:
        tools, search: of the run.
    """

    def __init__(self, tools: RunContext, search: SearchState) -> None:
        self.tools, self.search = tools, search
        self._seen_bottleneck: dict[str, str | None] = {}
        self._spent: dict[str, float] = {}
        self._settled: set[int] = set()

    def agenda(self, pipeline: Pipeline | None) -> Queue:
        """What is worth trying on the incumbent; notes and announces the rest."""
        tools, search = self.tools, self.search
        registry = tools.bench.registry
        plan = agenda(registry, search.case(registry, pipeline, self._left()), tools.choice, self.threshold)
        for refusal in plan.refusals:
            known = search.refusals.get(refusal.strategy.name)
            trial = search.refuse(
                refusal.strategy,
                refusal.verdict,
                refusal.reason,
                setting=refusal.setting,
                predicted=refusal.predicted,
            )
            if known is None:
                tools.announce(TrialEnded(at=tools.now(), trial=trial))
        return plan

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
        if self.tools.stopping():
            return Stop(reason=StopReason.INTERRUPTED, detail="stopped by the user; what was kept so far was checked")
        deadline, shares = self._deadline(), self.tools.shares
        if self.tools.now() + shares.comparison > deadline:
            return Stop(
                reason=StopReason.BUDGET,
                detail=f"the search had {deadline:.0f} s of the {shares.budget:.0f} s budget; "
                f"{shares.budget - deadline:.0f} s were kept back for ablation and verification",
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
        return 1 + max(self.tools.min_gain, self.search.noise.floor or 0.0)

    def _deadline(self, earlier: Earlier | None = None) -> float:
        """Until when may be searched.

        Args:
            earlier: an undecided trial that would go on; were it kept, its training would take less by what was seen.
        """
        search = self.search
        speedup = search.speedup_so_far * (max(_seen(earlier), 1.0) if earlier else 1.0)
        return self.tools.shares.search_deadline(len(search.found) + 1, speedup)

    def _left(self, earlier: Earlier | None = None) -> float:
        return self._deadline(earlier) - self.tools.now()

    @property
    def _cost(self) -> float:
        """Seconds that trying a strategy takes: as thought beforehand, and as it was with each so far."""
        seen = [TRIAL_COMPARISONS * self.tools.shares.comparison, *self._spent.values()]
        return sum(seen) / len(seen)

    def _try(self, proposal: Proposal, remaining: int, round_: Round, pipeline: Pipeline | None) -> bool:
        tools, search, name = self.tools, self.search, proposal.strategy.name
        self._seen_bottleneck[name] = round_.bottleneck
        case = search.case(tools.bench.registry, pipeline, self._left())
        began = tools.now()
        kept = StrategySearch(tools, search, proposal, case, self._deadline(), remaining).run()
        self._spent[name] = tools.now() - began
        return kept

    def _settle(self, round_: Round, pipeline: Pipeline | None) -> bool:
        """Spends what time is left on trials that looked worth keeping and were not decided. True where one is kept."""
        while not self.tools.stopping():
            earlier = self._undecided()
            if earlier is None:
                return False
            self._settled.add(earlier.trial.id)
            proposal = Proposal(self.tools.bench.registry[earlier.trial.strategy], earlier.trial.predicted)
            case = self.search.case(self.tools.bench.registry, pipeline, self._left(earlier))
            deadline = self._deadline(earlier)
            if StrategySearch(self.tools, self.search, proposal, case, deadline).go_on(earlier):
                self._seen_bottleneck[earlier.trial.strategy] = round_.bottleneck
                self._announce_kept()
                return True
        return False

    def _undecided(self) -> Earlier | None:
        """Of the trials on this incumbent that more pairs of processes may settle, the one that promises most."""
        search = self.search
        found = [
            Earlier(trial, comparison, search.noise_before[trial.id])
            for trial in search.trials
            if trial.verdict is Verdict.INCONCLUSIVE and trial.id not in self._settled
            for comparison in [search.comparisons[trial.id]]
            if comparison.decision is Decision.INCONCLUSIVE and comparison.incumbent.plan == search.incumbent
        ]
        return max(filter(self._may_be_settled, found), key=_seen, default=None)

    def _may_be_settled(self, earlier: Earlier) -> bool:
        left = self._left(earlier)
        ledger = SequentialTest(self.tools.rule(left), earlier.noise, earlier.comparison.pairs)
        return ledger.promising() and ledger.decide(left) is None

    def _comes_back(self, proposal: Proposal, round_: Round) -> bool:
        """A strategy that was tried comes back only under another bottleneck."""
        name = proposal.strategy.name
        return name not in self._seen_bottleneck or self._seen_bottleneck[name] != round_.bottleneck

    def _no_time(self, waiting: Sequence[Proposal]) -> None:
        """Notes those that were left when the time was up."""
        tried = {trial.strategy for trial in self.search.trials}
        for proposal in waiting:
            if proposal.strategy.name not in tried:
                reason = "no time for it in this budget: others promised more, or came first"
                self.search.refuse(proposal.strategy, Verdict.NOT_TRIED, reason, predicted=proposal.predicted)

    def _announce_kept(self) -> None:
        tools, search = self.tools, self.search
        trial = next(t for t in reversed(search.trials) if str(t.id) == search.base)
        side = search.comparisons[trial.id].candidate
        best = configuration(search.incumbent, search.environment, side=side)
        speedup = Speedup(throughput=trial.throughput, detail="over the incumbent before it")
        tools.announce(Kept(at=tools.now(), plan=search.incumbent, best=best, speedup=speedup))


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
    best = max((p.predicted.high for p in plan.refusals if p.predicted), default=None)
    if not plan.proposals and best is not None:
        return Stop(
            reason=StopReason.DIMINISHING_RETURNS,
            detail=f"the best remaining prediction is {best:.3f}x, below the {threshold:.3f}x that would count",
        )
    return Stop(reason=StopReason.EXHAUSTED, detail="every applicable strategy was tried on the incumbent")
