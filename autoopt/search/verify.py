"""The final plan from start to end against the baseline: throughput again, trainings from fresh seeds, quality."""

from __future__ import annotations

from functools import partial
from math import log

from autoopt.errors import TrialFailed
from autoopt.records import Estimate, Plan, Quality, Record, Speedup, Verdict
from autoopt.records.messages import TrainingRun
from autoopt.search.accept.evidence import FEWEST_SEEDS, Evidence, TrainedPair, lost_margin
from autoopt.search.accept.gate import MOST_METRIC_SEEDS, judge_runs
from autoopt.search.accept.metric import parts_to
from autoopt.search.accept.time_to_target import (
    Trained,
    by_whole_run,
    detail_of,
    headline_of,
    same_steps_ratio,
    seconds_of,
)
from autoopt.search.accept.trainings import ratio_of_pairs
from autoopt.search.budget_allocation import PAST
from autoopt.search.compare.comparison import Comparison, Decision, Side
from autoopt.search.first_training import train_first, train_with
from autoopt.search.fit_memory import MOST_DRAWN, Attempt, attempt
from autoopt.search.run_context import RunContext
from autoopt.strategy import Risk

FRESH_SEEDS = 1000
"""Above the seeds that the search has seen: what was selected on a seed is not confirmed on it."""

AGAIN = "measured again"
UNTIL_ERROR = 0.05
COMPARED_SHARE = 2 / 3
"""Of the time before the trainings, for the last comparison; the rest is for trying each change alone."""


class Verification(Record):
    """Findings of the end of the run."""

    speedup: Speedup
    quality: Quality | None = None
    baseline_side: Side | None = None
    best_side: Side | None = None
    baseline_runs: tuple[TrainingRun, ...] = ()
    best_runs: tuple[TrainingRun, ...] = ()
    baseline_seconds: Estimate | None = None
    best_seconds: Estimate | None = None


def verify(context: RunContext) -> Verification:
    """Trains the incumbent again from start to end; gives up changes until what is left passes.

    Where it fails in a whole run, the plan that whole runs have confirmed last takes its place: nothing else of a
    script is known to run.
    """
    state, gate = context.state, context.gate
    doubted = broken = False  # whole trainings have shown another training where probes had not, or have failed

    def must_be_trained() -> bool:
        """Whether probes do not suffice: a plan that the incumbent is a part of has failed in training, or trained
        otherwise; the latter says nothing of changes that are exact by their class."""
        return broken or (doubted and gate.risk_over(state.incumbent, state.baseline) is not Risk.EXACT)

    while state.found:
        found, trouble = _check(context, must_be_trained())
        if trouble is None:
            if len(state.found) == 1 and found.speedup.throughput is not None:
                state.measured_again(state.found[0].strategy, found.speedup.throughput)
            return found
        doubted = doubted or bool(found.best_runs)
        failed = gate.trainings.failure(state.incumbent) is not None
        broken = broken or failed
        if failed and context.shown_by_whole_runs(state.incumbent) is not None:
            context.warn(_back_to_whole_runs(context, trouble))
            continue
        given_up = max(  # of the riskiest the least precise, then the last
            reversed(state.found),
            key=lambda c: (context.registry[c.strategy].risk.rank, gate.rounding(state.baseline.with_change(c))),
        )
        state.revise(given_up.strategy, _verdict(found, trouble), trouble)
        context.warn(f"{given_up.strategy} was removed again by the verification: {trouble}")
        state.incumbent = state.without(given_up.strategy)
        trained = must_be_trained()
        # what is left of a combined candidate was not confirmed against the baseline itself
        needed = _test_due(context, state.incumbent)
        needed += context.allocation.trained_pair(state.speedup_so_far) if trained else 0.0
        in_time = not context.stopping() and context.now() + needed <= (1 + OVER) * context.allocation.budget
        if state.found and needed and not in_time:
            left = [change.strategy for change in state.found]
            why = f"confirmed only together with {given_up.strategy}, and no time was left to confirm it without"
            for name in left:
                state.revise(name, Verdict.INCONCLUSIVE, why)
            state.incumbent = state.baseline
            context.warn(f"{', '.join(left)} was removed as well: {why}")
    state.incumbent = state.baseline  # without what made it fit, where that was left out
    if not context.stopping() and context.now() + context.allocation.verification(1) / 2 <= context.allocation.budget:
        train_first(context)  # it waited for a plan to be trained next to it, and none came
    # the best is the baseline: what is known of it against itself is the A/A control
    evidence = gate.evidence(state.baseline, state.baseline)
    logs = [log(p.seconds) for run in evidence.baseline_runs if (p := parts_to(run, state.objective))]
    return Verification(
        speedup=Speedup(
            time_to_target=same_steps_ratio(state.aa.comparison, evidence),
            throughput=state.noise.aa_ratio,
            end_to_end_verified=False,
            detail="nothing was kept: these are the baseline against itself",
        ),
        baseline_runs=evidence.baseline_runs,
        baseline_seconds=ratio_of_pairs(logs) if logs else None,
    )


def _back_to_whole_runs(context: RunContext, trouble: str) -> str:
    """Gives up all that was kept since whole runs have confirmed a plan, or everything. Returns the note."""
    state = context.state
    state.incumbent, state.base = state.baseline, "baseline"
    for trial in reversed(state.kept()):
        plan = state.comparisons[trial.id].candidate.plan
        if context.gate.trainings.failure(plan) is None and context.gate.whole_pairs(plan):
            state.incumbent, state.base = context.registry.order(plan), str(trial.id)
            break
        state.amend(trial.id, f"{trouble} (in the verification)", verdict=Verdict.FAILED)
    left = "the baseline" if state.base == "baseline" else f"the plan of trial {state.base}"
    return f"the patch of the final plan did not run, and {left} takes its place: {trouble}"


def _check(context: RunContext, trained: bool) -> tuple[Verification, str | None]:
    """One plan against the baseline. The sentence says why it does not pass, None where it does.

    Args:
        trained: it must be: one of which it is a part has failed in training, or was another one there.
    """
    state, plan, gate = context.state, context.state.incumbent, context.gate
    # a second pair of trainings shows more than probes at the weights of the first
    due = context.probes_due(plan, state.baseline) + _trainings_due(context, plan)
    late = context.now() + due > context.allocation.budget
    level = gate.quality(plan, state.baseline, hurried=late)
    if level is not None and level.passed is False:
        return Verification(speedup=Speedup(), quality=level), level.detail
    comparison = state.with_fixed_costs(_compared(context))
    whole = context.shown_by_whole_runs(plan)
    if comparison.decision is Decision.FAILED and comparison.failure and comparison.failure.side == "candidate":
        if whole is None:
            return Verification(speedup=Speedup()), comparison.failure.reason
        # whole runs decide, which may be over before steps could be compared
        comparison = comparison.model_copy(update={"decision": Decision.INCONCLUSIVE, "failure": None})
    trouble, failed = memory_trouble(context, comparison)
    if trouble:
        return Verification(speedup=Speedup(throughput=None if failed else comparison.estimate)), trouble
    trains_otherwise = gate.risk_over(plan, state.baseline).trains_otherwise
    if not trains_otherwise:
        comparison = by_whole_run(comparison, gate.evidence(plan, state.baseline))
        if comparison.decision in (Decision.REJECT, Decision.HARMFUL):
            return Verification(speedup=Speedup(throughput=comparison.estimate)), f"{AGAIN}: {comparison.reason}"
    pairs, quality = list[TrainedPair](), level
    train_with(context, plan, comparison)  # where it was not, and there is time for it now
    known = [pair for pair in context.gate.trained_pairs(plan) if pair.whole or whole is None]
    # more than two where those do not settle quality, the headline's interval is wide, or blocks disagree with it
    for number in range(MOST_METRIC_SEEDS):
        settled = quality is None or quality.passed is not None
        if number >= FEWEST_SEEDS and settled and not _unsure(context, comparison, quality, pairs):
            break
        pair = known.pop(0) if known else _train(context, number, comparison.estimate, whole)
        failure = gate.trainings.failure(plan)
        if failure is not None:
            return Verification(speedup=Speedup()), failure.reason
        if pair is None:
            break
        pairs.append(pair)
        quality = judge_runs(evidence_of(context, plan, pairs, level))
    if quality is not None and quality.passed is False:
        return _not_passed(quality, level, pairs), quality.detail
    if trains_otherwise and pairs and (quality is None or quality.passed is None):
        # where the time holds one pair, the pairs that it was kept by show that it comes to the target
        kept = next((trial.quality for trial in state.trials if str(trial.id) == state.base), None)
        quality = kept if kept is not None and kept.passed else quality
    if trained and not pairs and quality is not None:
        why = "a plan with more changes failed or trained otherwise, and no time was left to train this one"
        quality = quality.model_copy(update={"level": "undecided", "passed": None, "detail": why})
    if (quality is None or quality.passed is None) and not gate.accept_undecided:
        untold = Quality(method="not_tested", level="undecided", detail="there was no time to train it")
        undecided = quality or untold
        return _not_passed(undecided, level, pairs, comparison.estimate), undecided.detail
    found = _verification(context, comparison, quality, pairs)
    headline = found.speedup.headline
    if headline is not None and headline.value <= 1.0:
        return found, f"it is no faster than the baseline from start to end: {headline.value:.3f}x"
    return found, None


def _not_passed(
    quality: Quality, level: Quality | None, pairs: list[TrainedPair], throughput: Estimate | None = None
) -> Verification:
    """A plan whose quality does not pass; with its trainings, where probes had passed it and they did not."""
    doubted = level is not None and level.passed is True
    runs = tuple(pair.best for pair in pairs) if doubted else ()
    return Verification(speedup=Speedup(throughput=throughput), quality=quality, best_runs=runs)


def evidence_of(context: RunContext, plan: Plan, pairs: list[TrainedPair], level: Quality | None = None) -> Evidence:
    """Evidence of a plan next to the baseline from these trainings alone."""
    runs = {
        "baseline_runs": tuple(pair.baseline for pair in pairs),
        "candidate_runs": tuple(pair.best for pair in pairs),
    }
    known = context.gate.evidence(plan, context.state.baseline)
    return known.model_copy(update={**runs, "incumbent_runs": (), "level": level})


def _compared(context: RunContext) -> Comparison:
    """The final plan against the baseline: fresh pairs of processes where there is time for two, else its confirmation,
    whose bounds hold at whatever time it ended. A plan that whole runs have confirmed, or whose steps are the
    baseline's, needs none.

    It ends so that the plan can be trained thereafter: from two seeds, else from one. What is left for it is a short
    one at least, before a second seed is thought of and before the plan is trained alone instead of alternately.
    """
    state, allocation, confirmation = context.state, context.allocation, context.confirmation(context.state.incumbent)
    now, short = context.now(), _short(context, state.incumbent)
    if confirmation and (not confirmation.pairs or context.left() - _trainings_due(context, state.incumbent) < short):
        return confirmation
    speedup, dearer = state.speedup_so_far, state.dearer_start(state.incumbent)
    end = allocation.budget - short / 4  # half a pair of processes: the last may take longer than those before it
    each, first = allocation.trained_pair(speedup) + dearer, len(context.gate.trained_pairs(state.incumbent))
    by = end - max(FEWEST_SEEDS - first, 0) * each  # two seeds, each trained alternately, make the headline
    if by - now < short:
        by = max(end, now + short) if first else end - each
    if by - now < short and not first:
        by = max(end - allocation.verification(1, speedup) - dearer, now + short)
    return context.compare(
        "comparison",
        state.baseline,
        state.incumbent,
        seconds=max(allocation.trial, COMPARED_SHARE * (by - context.now())),
        deadline=by,
        purpose="verification",
        until_error=UNTIL_ERROR,
    )


def _train(context: RunContext, number: int, ratio: Estimate | None, whole: float | None) -> TrainedPair | None:
    """Plan and baseline trained alternately from a fresh seed; None where there is no time, or where one fails.

    Of a script it is a whole run of each, the patch in place of the plan, where the budget holds that (``whole``:
    seconds of the untouched one). Where there is not even the time for one such pair, the plan is trained alone next to
    the training that the baseline had at first: enough to see that nothing broke, and no verified ratio. At the lower
    end of the ``ratio`` of speeds that blocks of steps have shown the plan's training is expected to end.
    """
    state = context.state
    plan, seed = state.incumbent, context.seed + FRESH_SEEDS + number
    trainings, baseline = context.gate.trainings, state.baseline
    speedup = max(ratio.low if ratio else state.speedup_so_far, 1.0)
    end = context.allocation.budget
    room = end - context.now() + OVER * end
    if whole is not None and whole * (1 + 1 / speedup) <= room:
        purpose = f"verification, pair {number + 1}"
        try:
            return trainings.whole_runs(baseline, plan, seed, purpose=purpose, speedup=speedup, max_seconds=room)
        except TrialFailed:
            return None
    if state.trained is None or (whole is not None and number):
        return None
    both = trainings.expected_seconds * (1 + 1 / speedup)
    beyond = next((share for share in (PAST, 0.0) if context.now() + (1 + share) * both <= end), None)
    try:
        if beyond is not None:
            purpose = f"verification seed {seed}"
            most = room * speedup / (1 + speedup)
            return trainings.interleaved(
                baseline, plan, seed, purpose=purpose, speedup=speedup, beyond=beyond, max_seconds=most
            )
        if number or context.now() + trainings.expected_seconds / speedup > end + context.allocation.start_seconds:
            return None
        trainings.forget(plan)
        seed = context.seed
        before = trainings.get(baseline, seed, purpose=f"baseline seed {seed}")
        after = trainings.get(plan, seed, purpose=f"verification seed {seed}", max_seconds=room)
    except TrialFailed:
        return None
    return TrainedPair(baseline=before, best=after, interleaved=False)


def _unsure(context: RunContext, comparison: Comparison, quality: Quality | None, pairs: list[TrainedPair]) -> bool:
    """Whether one more seed is worth its time: its interval is wide, or the blocks say another thing. Whole runs to a
    target are as long as their seeds make them, which a few that are alike do not show."""
    state = context.state
    if state.objective.users_target is not None and all(pair.whole for pair in pairs):
        return True
    evidence = evidence_of(context, state.incumbent, pairs)
    found = headline_of(pairs, comparison, evidence, quality)
    if found is None or found.low is None or found.high is None:
        return False
    return found.agrees is False or found.high / found.low > (1 + UNTIL_ERROR) / (1 - UNTIL_ERROR)


def _verification(
    context: RunContext, comparison: Comparison, quality: Quality | None, pairs: list[TrainedPair]
) -> Verification:
    """The figures of the end: those of the trainings where there are any, else modelled."""
    state = context.state
    objective, evidence = state.objective, evidence_of(context, state.incumbent, pairs)
    trained = Trained.of(pairs, evidence, quality)
    headline = headline_of(pairs, comparison, evidence, quality)
    ratio = trained.ratio if trained is not None else None
    seconds = seconds_of(headline, trained)
    failed = state.noise.failed(objective.min_gain)
    if quality is not None and quality.passed is None:
        context.warn(f"kept although its quality is not confirmed: {quality.detail}")
    modelled = headline is not None and headline.source == "modelled"
    run_ratio = headline.estimate if headline is not None and modelled else ratio
    speedup = Speedup(
        headline=headline,
        time_to_target=run_ratio if seconds[0] is not None else None,
        planned_steps=round(headline.baseline_steps or 0) if headline is not None and headline.planned else None,
        trained=ratio,
        throughput=comparison.estimate,
        end_to_end_verified=headline is not None and not headline.doubts(control_failed=failed),
        detail=detail_of(pairs, objective, trained),
    )
    return Verification(
        speedup=speedup,
        quality=quality,
        baseline_side=comparison.incumbent,
        best_side=comparison.candidate,
        baseline_runs=tuple(pair.baseline for pair in pairs),
        best_runs=tuple(pair.best for pair in pairs),
        baseline_seconds=seconds[0],
        best_seconds=seconds[1],
    )


def _verdict(found: Verification, trouble: str) -> Verdict:
    """Verdict that the trial of a change that does not pass the verification comes to be called."""
    if found.quality is not None and found.quality.passed is False:
        return Verdict.QUALITY_LOST
    if found.quality is not None and found.quality.level == "undecided":
        return Verdict.INCONCLUSIVE
    again = found.speedup.throughput
    if again is None:
        return Verdict.FAILED
    return Verdict.NO_GAIN if trouble.startswith(AGAIN) and again.high >= 1.0 else Verdict.HARMFUL


OVER = 0.05
"""Of the budget: a training that is nearly there may end; what takes longer than was to be expected is cut off."""


def seconds_due(context: RunContext, plan: Plan) -> float:
    """Seconds that the verification of a plan still needs: pairs of processes, probes, trainings alternately."""
    return _trainings_due(context, plan) + _test_due(context, plan)


def _test_due(context: RunContext, plan: Plan) -> float:
    """The same without the trainings: nothing of a plan that was compared with the baseline."""
    if context.confirmation(plan):
        return 0.0
    return _short(context, plan) + context.probes_due(plan, context.state.baseline)


def _short(context: RunContext, plan: Plan) -> float:
    """Seconds of a short comparison of a plan with the baseline: two pairs of their processes."""
    return 2 * context.pair_seconds(context.state.baseline, plan)


def _trainings_due(context: RunContext, plan: Plan) -> float:
    """Seconds of the trainings alternately that the headline still takes: two pairs where they fit, one in any case.
    Two pairs are an interval, and one is a point. So the second comes before a finer ablation or another comparison."""
    state = context.state
    allocation, have = context.allocation, len(context.gate.trained_pairs(plan))
    each = allocation.trained_pair(state.speedup_so_far) + state.dearer_start(plan)
    missing = max(FEWEST_SEEDS - have, 0)
    while missing > (0 if have else 1) and context.now() + missing * each > allocation.budget:
        missing -= 1
    return missing * each


def memory_trouble(context: RunContext, comparison: Comparison) -> tuple[str, bool]:
    """Why the incumbent leaves too little memory free, and whether it failed; empty where it leaves enough. Where
    shapes vary it is trained on the largest of many batches, and so is the baseline where that is too much."""
    state, limit = context.state, context.state.memory_limit_bytes
    reason = lost_margin(comparison.incumbent, comparison.candidate, limit)
    if reason or limit is None or state.facts.static_shapes:
        return reason and f"memory: {reason}", False
    after = _worst(context, state.incumbent, limit)
    if isinstance(after, Attempt) and not after.near_limit:
        return "", False
    before = _worst(context, state.baseline, limit)
    if isinstance(before, TrialFailed):  # the baseline does not fit there at all
        return "", False
    if isinstance(after, TrialFailed):
        return f"on the largest batch: {after.reason}", True
    as_full = (before.peak_memory_bytes or 0) >= (after.peak_memory_bytes or 0)
    as_pressed = before.allocation_retries >= after.allocation_retries
    return ("", False) if as_full and as_pressed else (f"memory: on the largest batch {after.near_limit}", False)


def _worst(context: RunContext, plan: Plan, limit: int) -> Attempt | TrialFailed:
    """Memory of steps on the largest batch, or how they failed."""
    measure = partial(attempt, context.runner, plan, draws=MOST_DRAWN)
    try:
        seen = context.run.step("largest", {"plan": plan.model_dump()}, measure, Attempt)
    except TrialFailed as failure:
        return failure
    return seen.model_copy(update={"limit_bytes": limit})
