"""The baseline's first training: the target that follows from it, and what the rest of a run is planned by.

On a short budget it waits until a plan was confirmed faster, and takes turns with the training of that plan, which ends
the run anyway: one training in place of two. What needs one before that has it alone.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from shlex import quote

from autoopt.benchmark.target import reachable
from autoopt.errors import TrialFailed
from autoopt.records import Objective, Plan, RunParts
from autoopt.records.messages import ENDED, WHOLE_RUN, TrainingRun
from autoopt.script.metric import chosen, direction_of, name_of, why_chosen
from autoopt.search.accept.metric import parts_to
from autoopt.search.accept.trainings import PATIENCE
from autoopt.search.budget_allocation import BASELINE_TO_TARGET, PAST, BudgetAllocation
from autoopt.search.compare.comparison import Comparison
from autoopt.search.run_context import RunContext
from autoopt.search.trial_runner import BaselineFailed

LATER_UP_TO = 900.0
LATER_SHARE = 0.04
"""A training waits on a budget of at most so many seconds, of which it would take more than this share: an error in
somebody's evaluation is reported within minutes either way."""
ROOM = 0.7
"""And where the baseline takes no more of a memory's limit than this: what does not fit is reported at once."""
LEAST_SECONDS = 3.0
"""A shorter training says nothing."""

NAMING_SHARE = 0.5
"""Of the first training, for evaluations that name the metric; where that is not enough the first training shows it."""

PROFILE_SECONDS, LEAST_SCREENINGS = 10.0, 3
"""The least search on a short budget: its profile, about, screenings, and one short confirmation with its probes."""
NOT_LOOKED_FOR = (
    "no metric of the script was looked for, since this budget hardly holds a training of the final plan: --metric "
    "'PATTERN' names one, a larger --budget finds it"
)

NO_METRIC = (
    "no metric of the script is known, so only changes that train the same are kept, and times are those "
    "of the same steps: give --metric 'PATTERN', such as --metric 'val loss ([0-9.]+)'"
)
"""A script's training says nothing of how good it is, but in what it prints."""


def naming_seconds(context: RunContext) -> float:
    """Seconds for an evaluation that names a script's metric, where the first training is to wait."""
    budget, share = context.allocation.budget, context.allocation.baseline(target_given=False)
    return NAMING_SHARE * share if budget <= LATER_UP_TO else 0.0


def begin(context: RunContext) -> None:
    """The baseline's first training, unless it was whole, or can wait for a plan to be trained next to it.

    Raises:
        BaselineFailed: the baseline does not train.
    """
    state = context.state
    if state.trained is not None:
        _adopt(context, state.trained)
        return
    budget, peak = context.allocation.budget, state.aa.side.peak_memory_bytes
    limit = state.memory_limit_bytes
    near_limit = limit is not None and peak is not None and peak > ROOM * limit
    if budget > LATER_UP_TO or near_limit or expected(context) <= LATER_SHARE * budget:
        train_first(context)
        return
    whole = (context.run_seconds() or 0.0) - state.aa.start_seconds
    planned = _allocation(context, max(expected(context), whole), trained=False)
    if state.sites is not None and state.objective.metric is None:
        # the training may find the metric, if an evaluation is in it: where the watched run saw none, the first comes
        # with an epoch's end, as far as is known
        step, epoch = state.aa.side.step_seconds, state.facts.steps_per_epoch
        unseen = step is not None and epoch is not None and epoch * step.p50 > expected(context)
        if not unseen or any(site.kind == "evaluation" for site in state.sites.sites):
            search = PROFILE_SECONDS + LEAST_SCREENINGS * planned.screening + planned.comparison
            probes = 2 * (planned.start_seconds + planned.probe)
            if context.now() + search + probes + planned.trained_pair() <= planned.budget:
                train_first(context)
                return
            context.note(NOT_LOOKED_FOR)
    context.allocation = planned


def run_to_target(context: RunContext) -> None:
    """Runs a script whole that may end by itself at the user's target, before anything is measured within its steps.

    Where it does, such runs are the time to the target, short for the budget, and how long they are is known.

    Raises:
        BaselineFailed: the script fails.
    """
    state = context.state
    run, objective = state.facts.run, state.objective
    asked = objective.metric is not None and objective.users_target is not None
    if not asked or state.baseline.changes or run is None or not run.ends_by_result or not context.runner.runs_here:
        return
    trainings, seconds = context.gate.trainings, context.allocation.longest_run
    steps, every = state.planned_steps or 0, run.evaluate_every
    try:
        found = trainings.whole_run(state.baseline, context.seed, steps=steps, every=every, max_seconds=seconds)
    except TrialFailed as failure:
        if failure.kind == "timeout":
            return
        raise _untrained(failure) from failure
    if parts_to(found, objective) is None:
        trainings.forget(state.baseline)
        return
    trainings.evaluate_every = every or found.steps
    state.trained = found
    _comes_to_its_end(context, found.steps)


def _comes_to_its_end(context: RunContext, steps: int) -> None:
    """A script was seen to end by itself after so many steps: whole runs of it show what a change brings."""
    state = context.state
    state.planned_steps = context.gate.trainings.run_steps = steps
    if state.facts.run is not None:
        state.facts = state.facts.model_copy(update={"run": state.facts.run.model_copy(update={"steps": steps})})


def expected(context: RunContext) -> float:
    """Seconds of the first training as thought beforehand: the planned steps, or its share of the budget."""
    share = context.allocation.baseline(context.state.objective.target is not None)
    return min(context.state.planned_seconds or share, share)


def train_first(context: RunContext, other: Plan | None = None, speedup: float = 1.0, reserve: float = 0.0) -> None:
    """Trains the baseline to its target in its share of the budget, unless it was, or there is hardly any time left;
    sets the target where it is missed.

    Args:
        other: a plan that is trained alternately with it, from the same seed; what fails in it is the plan's
            failure.
        speedup: of that plan, about.
        reserve: seconds that its confirmation has yet to take: a training that leaves none is no use.

    Raises:
        BaselineFailed: the baseline does not train.
    """
    state = context.state
    share = context.allocation.baseline(state.objective.target is not None)
    whole = context.shown_by_whole_runs(other) if other is not None else None
    if other is not None and whole is not None and _whole_runs(context, other, whole, speedup):
        return
    if other is not None and context.gate.trainings.failure(other):
        return  # the baseline's waits for a plan that runs
    start = context.allocation.start_seconds
    due = context.probes_due(other, state.baseline)
    room = context.left() - start - due - reserve
    limit = min(share, room if other is None else (room - start) / (1 + 1 / max(speedup, 1.0)))
    if state.trained is not None or (other is not None and limit < LEAST_SECONDS):
        return
    trainings, objective = context.gate.trainings, state.objective
    trainings.target = objective.target
    trainings.limit_seconds = max(limit, LEAST_SECONDS)
    trainings.expected_seconds = min(expected(context), trainings.limit_seconds)
    both = trainings.expected_seconds * (1 + 1 / max(speedup, 1.0)) + start
    seed, folder = context.seed, str(context.run.directory.path / "probes" / "weights")  # to compare gradients at
    if other is not None and both <= room:
        try:
            trainings.interleaved(
                state.baseline,
                other,
                seed,
                purpose=f"first training seed {seed}",
                speedup=speedup,
                beyond=PAST if 2 * (1 + PAST) * both <= room else 0.0,
                keep=folder,
                remember=True,
            )
        except TrialFailed as failure:  # of the plan it has been reported: the baseline is trained alone
            if failure.side == 0:
                raise _untrained(failure) from failure
    try:
        run = trainings.get(state.baseline, seed, purpose=f"baseline seed {seed}", keep=folder)
    except TrialFailed as failure:
        raise _untrained(failure) from failure
    _adopt(context, run)


def _whole_runs(context: RunContext, plan: Plan, seconds: float, speedup: float) -> bool:
    """Whole runs of the untouched and the patched script as the first training. False without the time for both. They
    are the final figure, which needs no blocks of steps and no probes after it."""
    if context.state.trained is not None:
        return True
    left, seed = context.left(), context.seed
    if seconds * (1 + 1 / max(speedup, 1.0)) > left:
        return False
    trainings, purpose = context.gate.trainings, f"first whole runs, pair {seed}"
    try:
        pair = trainings.whole_runs(
            context.state.baseline, plan, seed, purpose=purpose, speedup=speedup, max_seconds=left, remember=True
        )
    except TrialFailed as failure:
        if failure.side == 0 and failure.kind != "timeout":
            raise _untrained(failure) from failure
        return False
    _adopt(context, pair.baseline)
    return True


def evaluated_as(parts: RunParts, run: TrainingRun) -> RunParts:
    """Evaluations as often, and as long, as a training has seen them: the few steps before it hold one or none."""
    points = run.curve.points
    if run.stopped == WHOLE_RUN or not run.evaluation_seconds or len(points) < 2 or points[-1].step <= points[0].step:
        return parts
    every = (points[-1].step - points[0].step) / (len(points) - 1)
    seconds = run.evaluation_seconds / max(run.evaluations, 1)
    return parts.model_copy(update={"evaluate_every": every, "evaluation_seconds": seconds})


def _adopt(context: RunContext, run: TrainingRun) -> None:
    """Takes over what the first training has shown: weights to probe at, metric, target, what a training takes."""
    state = context.state
    state.trained = run
    if state.facts.run is not None:
        state.facts = state.facts.model_copy(update={"run": evaluated_as(state.facts.run, run)})
    if run.stopped == ENDED and state.planned_steps is None:
        _comes_to_its_end(context, run.steps)
    trainings = context.gate.trainings
    context.gate.probes.weights = run.kept
    unseen = run.seconds if run.evaluations == 0 and run.stopped != WHOLE_RUN else None
    adopt_metric(context, run.metric_patterns, unseen)
    _new_target(context, run)
    trainings.target = state.objective.target
    trainings.max_steps = run.steps if trainings.target is None else None  # then equal steps are what is timed
    side, quiet = state.aa.side, run.seconds
    if side.step_seconds is not None and side.startup and run.stopped != WHOLE_RUN:
        # a burst of foreign load in the one training must not shrink the search: its steps count as in blocks
        steps = run.steps * side.step_seconds.p50
        quiet = min(quiet, side.startup.fixed_seconds + steps + run.evaluation_seconds)
    usual = max(quiet, (context.run_seconds() or 0.0) - state.aa.start_seconds)
    trainings.limit_seconds = PATIENCE * max(usual, run.seconds) + state.aa.start_seconds
    trainings.expected_seconds = usual + state.aa.start_seconds
    context.allocation = _allocation(context, usual, trained=True)


def train_with(context: RunContext, plan: Plan, comparison: Comparison) -> None:
    """The baseline's first training, where it waited for a plan that a comparison shows to be faster: alternately with
    it. Where that is not of plan and baseline, the time to compare these is kept back."""
    baseline = context.state.baseline
    if context.state.trained is not None or comparison.estimate is None:
        return
    reserve = 0.0 if comparison.compares(baseline, plan) else 2 * context.pair_seconds(baseline, plan)
    train_first(context, plan, comparison.estimate.low, reserve)


def _untrained(failure: TrialFailed) -> BaselineFailed:
    return BaselineFailed(failure, f"in training ({failure.where or 'to the target'})")


def adopt_metric(context: RunContext, patterns: tuple[str, ...], unseen: float | None = None) -> None:
    """Takes a number that a script prints at each evaluation for its metric, where none was named, and says so.
    ``unseen``: seconds that it trained, where it was not seen to evaluate."""
    state = context.state
    if state.sites is None or state.objective.metric is not None:
        return
    taken = chosen(patterns)
    if taken is None:
        late = "" if unseen is None else f"the script did not evaluate in the {unseen:.0f} s that it trained: "
        context.warn(f"{late}{NO_METRIC}{', or a larger --budget' if late else ''}")
        return
    metric, mode = name_of(taken), direction_of(taken)
    context.runner.reads(taken)
    known = {"metric": metric, "mode": mode}
    state.objective = state.objective.model_copy(update=known)
    state.facts = state.facts.model_copy(update={**known, "has_evaluate": True})
    better = "less" if mode == "min" else "more"
    others = " or ".join(f"--metric {quote(pattern)}" for pattern in patterns if pattern != taken)
    context.note(
        f"the metric is {metric!r}, of which {better} is better: {why_chosen(patterns)}; "
        f"--metric {quote(taken)} names it, " + (f"{others} would take another" if others else "or another"),
    )


def _allocation(context: RunContext, training_seconds: float, *, trained: bool) -> BudgetAllocation:
    """The allocation, now that a start was measured."""
    aa = context.state.aa
    return replace(
        context.allocation,
        start_seconds=aa.start_seconds,
        baseline_seconds=training_seconds,
        pair_seconds=aa.pair_seconds,
        trained=trained,
        step_seconds=aa.side.step_seconds.p50 if aa.side.step_seconds else 0.0,
    )


def _new_target(context: RunContext, run: TrainingRun) -> None:
    """Replaces a target that the baseline did not reach by what it reached, less the tolerance, and says so."""
    state, objective = context.state, context.state.objective
    if objective.metric is None or parts_to(run, objective) is not None:
        return
    state.untrainable = _out_of_reach(objective, run, context.allocation, state.planned_steps)
    value = reachable(run.curve, objective.mode, objective.tolerance)
    state.objective = objective.model_copy(update={"target": value, "target_source": "baseline"})
    if value is None:
        context.warn(
            f"the baseline was not evaluated within {run.seconds:.0f} s, its share of the budget: time to target "
            "cannot be measured; give the run more budget, or evaluate more often",
        )
        return
    reached = f"the target is {objective.metric} {value:.4g}, which the baseline reached in {run.seconds:.0f} s"
    if objective.target is None:
        context.note(f"{reached}, less the tolerance (no value was given)")
        return
    where, advice = "within its share of the budget", "a larger --budget lets the whole way be measured"
    if run.stopped in ("steps", ENDED):
        where, advice = f"in its planned {run.steps} steps", "give the run more steps, or a target that it reaches"
    context.warn(f"{reached}, less the tolerance: {objective.target:.4g} was not reached {where}; {advice}")


def _out_of_reach(objective: Objective, run: TrainingRun, allocation: BudgetAllocation, steps: int | None) -> str:
    """Why no change of training can be judged, with the budget that it would need; empty where one can.

    A lower target in place of the user's shows that nothing broke. Which training is there first, it does not show.
    Where the planned run ended without reaching the user's target, no budget would help, and its end is what counts.
    """
    if objective.target is None or (steps is not None and run.steps >= steps):
        return ""
    unmet = (
        f"the baseline does not reach {objective.metric} {objective.target:g} in {run.seconds:.0f} s, its share of the "
        f"{allocation.budget:.0f} s budget, and a lower target cannot judge a change of training"
    )
    if steps is None or run.steps < 1:
        return f"{unmet}; how much more it would need is not known, since nothing says how many steps a run has"
    whole = run.fixed_seconds + (run.seconds - run.fixed_seconds) * steps / run.steps
    return (
        f"{unmet}; the planned run of {steps} steps takes about {whole:.0f} s, for which --budget "
        f"{ceil(whole / BASELINE_TO_TARGET / 60)}m would do"
    )
