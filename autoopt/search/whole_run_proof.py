"""The confirmation of a script's plan by whole runs, where what predictions promise lies outside of what blocks of
steps hold.

Evaluations, starts of epochs and the end of a run are in none of a step's blocks. A whole run holds them all, and it is
what the user pays.
"""

from __future__ import annotations

from math import exp, log

from autoopt.errors import TrialFailed
from autoopt.events import TrialEnded
from autoopt.records import Estimate, Quality, Verdict
from autoopt.search.accept.evidence import Judgement, TrainedPair
from autoopt.search.accept.gate import judge_runs
from autoopt.search.accept.trainings import ratio_of_pairs
from autoopt.search.candidate import Candidate
from autoopt.search.first_training import train_first
from autoopt.search.proof import announce_start, ruled_without_blocks
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.verify import FRESH_SEEDS, evidence_of, probes_due
from autoopt.search.whole_runs import shown_by_whole_runs

MOST_PAIRS = 8
"""Of whole runs for one confirmation: a plan that takes more of them is better confirmed by a larger budget."""


class WholeRunProof:
    """Confirms a plan on the untouched script by whole runs of both.

    Args:
        context, state: of the run, in which nothing was kept so far.
        candidate: with a prediction of the whole run's speedup.
    """

    def __init__(self, context: RunContext, state: SearchState, candidate: Candidate) -> None:
        self.context, self.state, self.candidate = context, state, candidate
        self.gain = log(candidate.predicted.value) if candidate.predicted is not None else 0.0
        self.seconds = shown_by_whole_runs(context, state, candidate.plan)

    @property
    def pairs(self) -> int | None:
        """Pairs of whole runs that would confirm what is predicted; None where no feasible number does."""
        if self.seconds is None:
            return None
        wanted = 1.0 + self.context.min_gain
        return next((n for n in range(2, MOST_PAIRS + 1) if self._ratio([self.gain] * n).low > wanted), None)

    @property
    def needed(self) -> float | None:
        """Seconds of the confirmation, its probes included; None where there is none."""
        pairs = self.pairs
        if pairs is None or self.seconds is None:
            return None
        return pairs * self.seconds * (1 + exp(-self.gain)) + probes_due(self.context, self.state)

    def run(self) -> bool:
        """True where the plan was kept; its pairs of whole runs then are the verification's."""
        context, state = self.context, self.state
        number, began = state.next_id(), context.now()
        announce_start(context, state, self.candidate, number, began, step="confirming by whole runs")
        judged = self._judged(number)
        before, reason = state.incumbent, "it was compared by whole runs"
        trial = ruled_without_blocks(context, state, self.candidate, number, began, reason, judged)
        kept = trial.verdict is Verdict.KEPT
        if kept:
            state.before_stack, state.together = before, dict(self.candidate.parts)
        context.announce(TrialEnded(at=context.now(), trial=trial, has_target=state.objective.has_target))
        return kept

    def _judged(self, number: int) -> Judgement:
        """The verdict by all pairs that were planned, decided once; fewer where they show no gain."""
        context, state, plan = self.context, self.state, self.candidate.plan
        level = context.gate.quality(plan, state.baseline, state.facts, state.objective)
        if level is not None and level.passed is False:
            return Judgement(verdict=Verdict.QUALITY_LOST, reason=level.detail, quality=level)
        if state.trained is None:
            train_first(context, state, plan, exp(self.gain))
        planned = self.pairs or 0
        found: list[TrainedPair] = [pair for pair in context.gate.in_turns(plan) if pair.whole]
        while len(found) < planned and (len(found) < 2 or self._of(found).value > 1.0) and not context.stopping():
            try:
                found.append(self._pair(number, len(found)))
            except TrialFailed as failure:
                untested = Quality(method="not_tested")
                return Judgement(verdict=Verdict.FAILED, reason=failure.reason, quality=untested)
        if len(found) < 2:
            untested = Quality(method="not_tested")
            return Judgement(verdict=Verdict.INCONCLUSIVE, reason="no time for two whole runs", quality=untested)
        quality = judge_runs(evidence_of(context, state, plan, found, level), state.objective, state.noise)
        return self._ruled(self._of(found), quality)

    def _ruled(self, ratio: Estimate, quality: Quality) -> Judgement:
        least = 1.0 + self.context.min_gain
        if quality.passed is not True and not (quality.passed is None and self.context.gate.accept_undecided):
            verdict = Verdict.QUALITY_LOST if quality.passed is False else Verdict.INCONCLUSIVE
        elif ratio.low > 1.0 and ratio.value >= least:
            verdict = Verdict.KEPT
        else:
            verdict = Verdict.HARMFUL if ratio.high < 1.0 else Verdict.INCONCLUSIVE
        told = f"whole runs: {ratio.value:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}] in {ratio.n} pairs"
        return Judgement(
            verdict=verdict,
            reason=f"{told}; {quality.detail}",
            quality=quality,
            time_to_target=ratio,
            planned_steps=self.state.planned_steps,
        )

    def _pair(self, number: int, index: int) -> TrainedPair:
        context, state = self.context, self.state
        return context.gate.trainings.whole_runs(
            state.baseline,
            self.candidate.plan,
            context.seed + FRESH_SEEDS + index,
            purpose=f"trial {number}, pair {index + 1}",
            steps=state.planned_steps or 0,
            speedup=exp(self.gain),
            max_seconds=context.allocation.budget - context.now(),
        )

    def _of(self, pairs: list[TrainedPair]) -> Estimate:
        return self._ratio([log(pair.baseline.seconds / pair.best.seconds) for pair in pairs])

    def _ratio(self, logs: list[float]) -> Estimate:
        return ratio_of_pairs(logs, self.state.noise.process_sd)
