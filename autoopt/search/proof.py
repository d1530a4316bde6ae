"""Confirmation of a candidate: fresh pairs of processes until it is decided, then its quality."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log, log1p
from statistics import median

from autoopt.events import TrialEnded, TrialStarted
from autoopt.records import Change, Estimate, EstimateKind, Plan, Trial, Verdict
from autoopt.search.accept.evidence import Judgement
from autoopt.search.at_once import compare_switched, compared
from autoopt.search.candidate import Candidate, shares
from autoopt.search.compare.comparison import Comparison, Decision, Side
from autoopt.search.compare.noise import compiled_again, learned
from autoopt.search.compare.sequential_test import alpha_of
from autoopt.search.first_training import expected, train_beside
from autoopt.search.planner import candidate_plan
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState, changes_text
from autoopt.search.whole_runs import shown_by_whole_runs
from autoopt.strategy import Risk

ONCE_AT_MOST = 0.05
"""Of the expected first training: more seconds at a start than that are weighed against the steps to the target."""


class Proof:
    """Confirms candidates on the incumbent.

    Args:
        context, state: of the run.
        deadline: on the run's clock.
    """

    def __init__(self, context: RunContext, state: SearchState, deadline: float) -> None:
        self.context, self.state, self.deadline = context, state, deadline

    def measure(
        self,
        candidate: Candidate,
        *,
        seconds: float,
        number: int | None = None,
        note: str = "",
        remaining: int = 0,
    ) -> Trial:
        """The trial of a candidate, which is the incumbent thereafter where it is kept.

        Args:
            seconds: for its comparison; one that looks worth keeping may take half as much again.
            number: of the screening that it follows, whose trial it replaces; a new one where None.
            note: where the candidate comes from, for the reason that the report shows.
            remaining: trials that are expected after this one.
        """
        context, state = self.context, self.state
        number, began = number or state.next_id(), context.now()
        announce_start(context, state, candidate, number, began, remaining)
        comparison = context.compare(
            "trial",
            state.incumbent,
            candidate.plan,
            state,
            seconds=seconds,
            more_seconds=seconds / 2,
            deadline=self.deadline,
            purpose=f"trial {number}",
            progress_id=number,
        )
        comparison = state.with_fixed_costs(comparison)
        told = self._told_by_probes(candidate) and not self._pays_once(comparison)
        # whole runs are of the patch, which is known once what was confirmed together was ablated
        whole = shown_by_whole_runs(context, state, candidate.plan)
        if not told and comparison.decision is Decision.ACCEPT and whole is None:
            train_beside(context, state, candidate.plan, comparison)
        state.comparisons[number] = comparison
        ruling = self._rule(candidate, comparison, number)
        state.noise = learned(state.noise, comparison)
        again = "" if comparison.incumbent.recompilations else compiled_again(comparison.candidate)
        if again:
            context.warn(state, f"trial {number}: {again}")
        notes = (
            ruling.reason,
            self._parameters(candidate),
            again,
            note,
        )
        ruling = ruling.model_copy(update={"reason": "; ".join(text for text in notes if text)})
        trial = trial_of(context, state, candidate, number, began, comparison, ruling)
        state.trials.append(trial)
        if trial.verdict is Verdict.KEPT:
            self._keep(trial, candidate)
        context.announce(TrialEnded(at=context.now(), trial=trial, has_target=state.objective.has_target))
        return trial

    def _told_by_probes(self, candidate: Candidate) -> bool:
        """Whether no training is needed to tell its quality: it is exact, or was probed and passed."""
        gate, state = self.context.gate, self.state
        risk = gate.risk_over(candidate.plan, state.incumbent)
        if risk is not Risk.NUMERIC or gate.probes is None or not gate.probes.has(candidate.plan):
            return risk is Risk.EXACT
        level = gate.quality(candidate.plan, state.incumbent, state.facts, state.objective)
        return level is not None and level.passed is True

    def _pays_once(self, comparison: Comparison) -> bool:
        """Whether its start costs so much more that only the steps to the target decide."""
        before, after = comparison.incumbent.fixed_seconds, comparison.candidate.fixed_seconds
        more = median(after) - median(before) if before and after else 0.0
        return more > ONCE_AT_MOST * expected(self.context, self.state)

    def _rule(self, candidate: Candidate, comparison: Comparison, number: int) -> Judgement:
        """The verdict; trained are those whose quality nothing else reports: the final plan is trained anyway."""
        context, state = self.context, self.state
        return context.gate.decide(
            candidate.plan,
            comparison,
            state.facts,
            state.objective,
            state.noise,
            deadline=self.deadline,
            number=number,
            alpha_accept=alpha_of(len(state.comparisons) - 1, state.kept),
        )

    def _parameters(self, candidate: Candidate) -> str:
        """How many parameters a change of the model trains; empty for other changes, and where none was trained."""
        trained, whole = _trained(self.context, candidate.plan), self.state.facts.model.trainable_parameters
        if candidate.strategy.risk is not Risk.MODEL or trained is None:
            return ""
        return f"trains {trained:,} parameters of {whole:,}"

    def _keep(self, trial: Trial, candidate: Candidate) -> None:
        """Makes the plan the incumbent, without those halves that do not carry their weight."""
        before, plan = self.state.incumbent, candidate.plan
        for companion in self._redundant(before, candidate, trial.id):
            old = before.setting(companion.strategy)
            plan = plan.without(companion.strategy)
            if old is not None:
                plan = plan.with_change(Change(strategy=companion.strategy, setting=old))
        if candidate.stacked:
            if not self.state.together:
                self.state.before_stack = before
            self.state.together |= shares(candidate, self.state.comparisons[trial.id], self.state.looks)
        self.state.incumbent = self.context.runner.registry.order(plan)
        self.state.base = str(trial.id)

    def _redundant(self, before: Plan, candidate: Candidate, number: int) -> Iterator[Change]:
        """Of changes that won together, those without which it is as fast."""
        changes, plan = candidate.changes, candidate.plan
        if len(changes) < 2 or candidate.stacked:
            return
        less = {change.strategy: self._without(change, before, changes) for change in reversed(changes)}
        # what is left would have to be tested as a plan of its own; without the time for that the whole stands
        last = min(self.deadline, *(self.context.tested_by(self.state, without) for without in less.values()))
        told = f"trial {number}: without each, in processes that put it on and off"
        compare_switched(self.context, self.state, plan, list(less.values()), "candidate", last, told)
        for change in reversed(changes):
            comparison = self._compared_without(change, less[change.strategy], plan, number, last)
            if comparison is None:
                return
            if comparison.decision in (Decision.REJECT, Decision.HARMFUL) or _no_better(
                comparison, self.context.min_gain
            ):
                yield change
                return

    def _without(self, change: Change, before: Plan, changes: Sequence[Change]) -> Plan:
        halves = tuple(other for other in changes if other is not change)
        return candidate_plan(self.context.runner.registry, before, halves)

    def _compared_without(
        self, change: Change, without: Plan, plan: Plan, number: int, last: float
    ) -> Comparison | None:
        """The plan against itself without a change; None where there is no time for it."""
        known = compared(self.state, without, plan, fresh=True)
        if known is not None:
            return known
        if self.context.now() + self.context.allocation.comparison > last:
            return None
        comparison = self.context.compare(
            "comparison",
            without,
            plan,
            self.state,
            seconds=self.context.allocation.trial,
            more_seconds=self.context.allocation.trial,
            deadline=last,
            purpose=f"trial {number}: without {changes_text((change,))}",
        )
        self.state.ablations.append(comparison)
        return comparison


STANDS_OUT = 0.5
"""Of the half-width of its interval (log), which holds at all times and is some three standard errors."""


def stands_out(estimate: Estimate, min_gain: float) -> bool:
    """Whether the gain of a part of a confirmed combination is more than chance."""
    gain = log(estimate.value)
    return gain >= max(log1p(min_gain), STANDS_OUT * (log(estimate.high) - gain))


def announce_start(
    context: RunContext,
    state: SearchState,
    candidate: Candidate,
    number: int,
    began: float,
    remaining: int = 0,
    step: str = "confirming",
) -> None:
    context.announce(
        TrialStarted(
            at=began,
            id=number,
            round=len(state.rounds),
            strategy=candidate.change.strategy,
            setting=candidate.change.setting,
            companions=candidate.companions,
            step=step,
            predicted=_expected(candidate.predicted),
            remaining=remaining,
        )
    )


def _expected(predicted: Estimate | None) -> float | None:
    """The speedup that is expected; None where no more than its bound is known."""
    return None if predicted is None or predicted.kind is EstimateKind.BOUND else predicted.value


def trial_of(
    context: RunContext,
    state: SearchState,
    candidate: Candidate,
    number: int,
    began: float,
    comparison: Comparison,
    ruling: Judgement,
) -> Trial:
    """The document of a trial that has just ended."""
    return Trial(
        id=number,
        round=len(state.rounds),
        strategy=candidate.change.strategy,
        setting=candidate.change.setting,
        companions=candidate.companions,
        base=state.base,
        verdict=ruling.verdict,
        reason=ruling.reason,
        risk=candidate.strategy.risk.value,
        predicted=candidate.predicted,
        throughput=comparison.estimate,
        time_to_target=ruling.time_to_target,
        planned_steps=ruling.planned_steps,
        quality=ruling.quality,
        peak_memory_bytes=comparison.candidate.peak_memory_bytes,
        trained_parameters=_trained(context, candidate.plan),
        seconds=context.now() - began,
        log=context.runner.latest_log,
        ratios=comparison.ratios,
        samples_per_second=comparison.candidate.samples_per_second,
        finished_at=context.now(),
    )


def ruled_without_blocks(
    context: RunContext,
    state: SearchState,
    candidate: Candidate,
    number: int,
    began: float,
    reason: str,
    ruling: Judgement,
) -> Trial:
    """The trial of a candidate that no blocks of steps were compared for; a kept one makes the incumbent."""
    comparison = Comparison(
        decision=Decision.INCONCLUSIVE,
        reason=reason,
        incumbent=Side(plan=state.incumbent),
        candidate=Side(plan=candidate.plan),
    )
    trial = trial_of(context, state, candidate, number, began, comparison, ruling)
    state.trials.append(trial)
    if trial.verdict is Verdict.KEPT:
        state.comparisons[number] = comparison
        state.incumbent, state.base = context.runner.registry.order(candidate.plan), str(number)
    return trial


def _trained(context: RunContext, plan: Plan) -> int | None:
    """Parameters with a gradient in the plan's trainings; None where there was none."""
    return next((run.trained_parameters for run in context.gate.trainings.of(plan)), None)


def _no_better(comparison: Comparison, min_gain: float) -> bool:
    """Undecided, and the estimate does not stand out of its interval: the simpler plan stands."""
    if comparison.decision is not Decision.INCONCLUSIVE or comparison.estimate is None:
        return False
    return not stands_out(comparison.estimate, min_gain)
