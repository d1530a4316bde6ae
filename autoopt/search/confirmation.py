"""Confirmation of a candidate: fresh pairs of processes until it is decided, then its quality; and of what only
trainings tell, whether a budget has the time for those."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from autoopt.events import TrialEnded, TrialStarted
from autoopt.records import Change, Plan, Trial, Verdict
from autoopt.search.accept.evidence import FEWEST_SEEDS, Judgement
from autoopt.search.candidate import Candidate
from autoopt.search.compare.comparison import Comparison, Decision, PairOfProcesses, Side
from autoopt.search.compare.noise import compiled_again, learned
from autoopt.search.compare.sequential_test import alpha_of
from autoopt.search.first_training import expected, train_first, train_with
from autoopt.search.planner import makes_other_samples, predicted_gain
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.strategy import Risk

ONCE_AT_MOST = 0.05
"""Of the planned steps: more seconds at a start than that are weighed against the steps to the target."""


def confirm(
    context: RunContext,
    state: SearchState,
    candidate: Candidate,
    *,
    deadline: float,
    seconds: float,
    number: int | None = None,
    note: str = "",
    remaining: int = 0,
    earlier: Sequence[PairOfProcesses] = (),
) -> Trial:
    """The trial of a candidate on the incumbent, which it is thereafter where it is kept.

    Args:
        seconds: for its comparison; one that looks worth keeping may take half as much again.
        number: of the screening that it follows, whose trial it replaces; a new one where None.
        note: where the candidate comes from, for the reason that the report shows.
        earlier: pairs of processes from which its comparison goes on; beliefs know them.
    """
    opened = OpenTrial(context, state, candidate, "confirming", number, remaining)
    number = opened.number
    comparison = context.compare(
        "trial",
        state.incumbent,
        candidate.plan,
        state,
        seconds=seconds,
        more_seconds=seconds / 2,
        deadline=deadline,
        purpose=f"trial {number}",
        progress_id=number,
        earlier=earlier,
        price=context.gate.price(candidate.plan, state.incumbent),
    )
    comparison = state.with_fixed_costs(comparison)
    before, after = comparison.incumbent.fixed_seconds, comparison.candidate.fixed_seconds
    once = median(after) - median(before) if before and after else 0.0
    dear = once > ONCE_AT_MOST * (state.planned_seconds or expected(context, state))
    reported = _shown_by_probes(context, state, candidate) and not dear
    # whole runs are of the patch, which is known once what was confirmed together was ablated
    whole = context.shown_by_whole_runs(state, candidate.plan)
    if not reported and comparison.decision is Decision.ACCEPT and whole is None:
        train_with(context, state, candidate.plan, comparison)
    state.comparisons[number] = comparison
    state.learn(candidate.members, comparison, known=len(earlier))
    ruling = context.gate.decide(
        candidate.plan,
        comparison,
        state.facts,
        state.objective,
        state.noise,
        deadline=deadline,
        number=number,
        alpha_accept=alpha_of(len(state.comparisons) - 1, state.kept),
    )
    state.noise = learned(state.noise, comparison)
    again = "" if comparison.incumbent.recompilations else compiled_again(comparison.candidate)
    if again:
        context.warn(state, f"trial {number}: {again}")
    trained, parameters = _trained(context, candidate.plan), ""
    if candidate.strategy.risk is Risk.MODEL and trained is not None:
        parameters = f"trains {trained:,} parameters of {state.facts.model.trainable_parameters:,}"
    notes = (ruling.reason, parameters, again, note)
    ruling = ruling.model_copy(update={"reason": "; ".join(text for text in notes if text)})
    return opened.ended(ruling, comparison)


def _shown_by_probes(context: RunContext, state: SearchState, candidate: Candidate) -> bool:
    """Whether no training is needed to tell its quality: it is exact, or was probed and passed."""
    gate = context.gate
    risk = gate.risk_over(candidate.plan, state.incumbent)
    if risk is not Risk.NUMERIC or gate.probes is None or not gate.probes.has(candidate.plan):
        return risk is Risk.EXACT
    level = gate.quality(candidate.plan, state.incumbent, state.facts, state.objective)
    return level is not None and level.passed is True


class OpenTrial:
    """A trial that has begun, and was announced. ``step``: what is done with it, in words; ``number``: of the screening
    that it follows; ``remaining``: trials that are expected after it."""

    def __init__(
        self,
        context: RunContext,
        state: SearchState,
        candidate: Candidate,
        step: str,
        number: int | None = None,
        remaining: int = 0,
    ) -> None:
        self.context, self.state, self.candidate = context, state, candidate
        self.number, self.began = number or state.next_id(), context.now()
        started = TrialStarted(
            at=self.began,
            id=self.number,
            round=len(state.rounds),
            strategy=candidate.change.strategy,
            setting=candidate.change.setting,
            companions=candidate.companions,
            step=step,
            predicted=predicted_gain(candidate.predicted),
            remaining=remaining,
        )
        context.announce(started)

    def ended(self, ruling: Judgement, comparison: Comparison | None = None) -> Trial:
        """Notes and announces its end, with blocks of steps if any; one that is kept makes the incumbent."""
        context, state, candidate = self.context, self.state, self.candidate
        comparison = comparison or Comparison(
            decision=Decision.INCONCLUSIVE,
            reason="no blocks of steps were compared",
            incumbent=Side(plan=state.incumbent),
            candidate=Side(plan=candidate.plan),
        )
        trial = Trial(
            id=self.number,
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
            seconds=context.now() - self.began,
            log=context.runner.latest_log,
            ratios=comparison.ratios,
            samples_per_second=comparison.candidate.samples_per_second,
            finished_at=context.now(),
        )
        state.trials.append(trial)
        if trial.verdict is Verdict.KEPT:
            if candidate.companions:  # the ablation decides which of them it needs
                state.together |= candidate.parts
            state.comparisons[self.number] = comparison
            state.incumbent, state.base = context.runner.registry.order(candidate.plan), str(self.number)
        context.announce(TrialEnded(at=context.now(), trial=trial, has_target=state.objective.has_target))
        return trial


def _trained(context: RunContext, plan: Plan) -> int | None:
    """Parameters with a gradient in the plan's trainings; None where there was none."""
    return next((run.trained_parameters for run in context.gate.trainings.of(plan)), None)


def takes_trainings(context: RunContext, state: SearchState, changes: Sequence[Change]) -> bool:
    """Whether only trainings report the quality of changes: one trains otherwise, or makes other samples of data that
    draw at random. Gradients need the same batches, which such data never give twice; a script's do in its probes."""
    registry = context.runner.registry
    if any(registry[change.strategy].risk.trains_otherwise for change in changes):
        return True
    return state.sites is None and bool(drawn_otherwise(context, state, changes))


def drawn_otherwise(context: RunContext, state: SearchState, changes: Sequence[Change]) -> list[Change]:
    """Those of changes that make other samples of data that draw at random; none where one trains otherwise."""
    registry = context.runner.registry
    if state.facts.dataset.deterministic is not False:
        return []
    if any(registry[change.strategy].risk.trains_otherwise for change in changes):
        return []
    return [change for change in changes if makes_other_samples(registry, state.incumbent, change)]


def seconds_of_trainings(context: RunContext, state: SearchState, left: float, speedup: float) -> float:
    """Seconds to compare one setting and to train it and the baseline to the target from two seeds.

    Before the baseline was trained this is a guess by its share of the budget, and a target may be reached in a tenth
    of that: where the guess alone forbids a trial and somebody named a target, the baseline is trained first.
    ``speedup``: that it is predicted to be; a training that takes longer is given up.
    """
    allocation = context.allocation
    if state.trained is None and state.objective.target is not None and not context.stopping():
        starts = 2 * FEWEST_SEEDS * allocation.start_seconds  # of baseline and plan
        least = allocation.baseline(target_given=True) + allocation.comparison + starts
        if allocation.comparison + allocation.verification(2, speedup) > left >= least:
            train_first(context, state)
    return context.allocation.comparison + context.allocation.verification(2, speedup)
