"""The final plan from start to end against the baseline: throughput again, trainings from fresh seeds, quality."""

from __future__ import annotations

from pydantic import Field

from autoopt.benchmark.target import mean_seconds
from autoopt.errors import TrialFailed
from autoopt.records import Change, Estimate, Plan, Quality, Record, Speedup, Verdict
from autoopt.records.messages import TrainingRun
from autoopt.search.aa_control import AAControl
from autoopt.search.accept.judge import judge_runs
from autoopt.search.accept.time_to_target import parts_to, same_steps_ratio, trained_ratio
from autoopt.search.compare.comparison import Comparison, Decision, Side
from autoopt.search.largest_batch import memory_trouble
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.strategy import Risk

SEEDS = 2
MOST_SEEDS = 3
"""Seeds that both are trained from; the last one only where two do not settle quality."""

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
    fell_back: bool = False
    notes: tuple[str, ...] = Field(default_factory=tuple)


def verify(context: RunContext, state: SearchState, aa: AAControl, end: float) -> Verification:
    """Trains the incumbent again from start to end; gives up changes until what is left passes.

    Args:
        end: of the budget, on the run's clock.
    """
    notes: list[str] = []
    while state.found:
        found, trouble = _check(context, state, end)
        if trouble is None:
            return found.model_copy(update={"notes": tuple(notes) + found.notes, "fell_back": bool(notes)})
        given_up = _riskiest(context, state)
        state.revise(given_up.strategy, _verdict(found), trouble)
        notes.append(f"{given_up.strategy} was taken out again by the verification: {trouble}")
        state.incumbent = state.without(given_up.strategy)
        if not state.found:
            state.incumbent = state.baseline  # without what made it fit, where that was left out
    return _nothing_kept(context, state, aa, notes)


def _check(context: RunContext, state: SearchState, end: float) -> tuple[Verification, str | None]:
    """One plan against the baseline. The sentence says why it does not pass, None where it does."""
    plan, gate = state.incumbent, context.gate
    by = _compared_by(context, state, end)
    comparison = context.compare(
        "comparison",
        state.baseline,
        plan,
        state,
        seconds=max(context.allocation.trial, COMPARED_SHARE * (by - context.now())),
        deadline=by,
        purpose="verification",
        until_error=UNTIL_ERROR,
    )
    comparison = state.with_fixed_costs(comparison)
    if comparison.decision is Decision.FAILED and comparison.failure and comparison.failure.side == "candidate":
        return Verification(speedup=Speedup()), comparison.failure.reason
    trouble, failed = memory_trouble(context, state, comparison)
    if trouble:
        return Verification(speedup=Speedup(throughput=None if failed else comparison.estimate)), trouble
    gate.trainings.forget(plan)
    quality = None
    for seeds in range(SEEDS, MOST_SEEDS + 1):
        done = _train(context, plan, seeds, end, comparison.estimate)
        failure = gate.trainings.failure(plan)
        if failure is not None:
            return Verification(speedup=Speedup()), failure.reason
        evidence = gate.evidence(plan, state.baseline, state.facts)
        quality = judge_runs(evidence, state.objective, state.noise) if done else None
        if quality is None or quality.passed is not None:
            break
    if quality is not None and quality.passed is False:
        return Verification(speedup=Speedup(), quality=quality), quality.detail
    found = _verification(context, state, comparison, quality)
    ratio = found.speedup.time_to_target or found.speedup.throughput
    if ratio is not None and ratio.high < 1.0:
        return found, f"it is slower than the baseline from start to end: {ratio.value:.3f}x"
    return found, None


def _compared_by(context: RunContext, state: SearchState, end: float) -> float:
    """Until when the plan may be compared, so that it can be trained thereafter: from two seeds, else from one.

    What is left for the comparison is two short ones at least, before a second seed is thought of.
    """
    now, short = context.now(), context.allocation.comparison
    for seeds in range(SEEDS, 0, -1):
        by = end - context.allocation.verification(seeds, state.speedup_so_far)
        if by - now >= 2 * short:
            return by
    return max(by, now + short)


def _train(context: RunContext, plan: Plan, seeds: int, end: float, ratio: Estimate | None) -> int:
    """Trains plan and baseline from the same seeds, as many as the time allows, the order turned each time.

    Args:
        ratio: of the plan's speed to the baseline's; at its lower end the plan's training is expected to end.
    """
    trainings, baseline, done = context.gate.trainings, context.gate.baseline, 0
    usual = trainings.expected_seconds
    expected = {baseline.key: usual, plan.key: usual / max(ratio.low if ratio else 1.0, 1.0)}
    for offset in range(seeds):
        seed = context.seed + offset
        both = (plan, baseline) if offset % 2 == 0 else (baseline, plan)
        pair = [p for p in both if not trainings.has(p, seed)]
        if context.now() + sum(expected[p.key] for p in pair) > end and done:
            break
        try:
            for which in pair:
                name = "baseline" if which == baseline else "verification"
                trainings.get(which, seed, purpose=f"{name} seed {seed}")
        except TrialFailed:
            break
        done += 1
    return done


def _verification(
    context: RunContext, state: SearchState, comparison: Comparison, quality: Quality | None
) -> Verification:
    gate, objective = context.gate, state.objective
    evidence = gate.evidence(state.incumbent, state.baseline, state.facts)
    trains_otherwise = gate.risk_over(state.incumbent, state.baseline) in (Risk.TRAINING, Risk.MODEL)
    trained = trained_ratio(comparison, evidence, objective)
    ratio = trained if trains_otherwise else same_steps_ratio(comparison, evidence, objective)
    ratio = ratio or same_steps_ratio(comparison, evidence, objective)
    pairs = evidence.paired()
    before = [p.seconds for run, _ in pairs if (p := parts_to(run, objective))]
    after = [p.seconds for run in evidence.candidate_runs if (p := parts_to(run, objective))]
    reached = bool(evidence.candidate_runs) and len(after) == len(evidence.candidate_runs)
    whole = reached if objective.target is not None else bool(evidence.candidate_runs)
    faster = ratio is not None and ratio.low > 1.0
    notes = []
    if quality is not None and quality.passed is None:
        notes.append(f"quality could not be told apart from its noise: {quality.detail}")
    return Verification(
        speedup=Speedup(
            time_to_target=ratio,
            trained=trained,
            throughput=comparison.estimate,
            end_to_end_verified=whole and faster,
            detail=_detail(objective.metric, before, after, None if trains_otherwise else trained),
        ),
        quality=quality,
        baseline_side=comparison.incumbent,
        best_side=comparison.candidate,
        baseline_runs=tuple(run for run, _ in pairs),
        best_runs=evidence.candidate_runs,
        baseline_seconds=mean_seconds(before),
        best_seconds=mean_seconds(after),
        notes=tuple(notes),
    )


def _detail(metric: str | None, before: list[float], after: list[float], trained: Estimate | None) -> str:
    if not before or not after:
        return "no training of both reached the target; the time is modelled from its measured parts"
    pairs = ", ".join(f"{b:.1f} s to {a:.1f} s" for b, a in zip(before, after, strict=False))
    told = f"trained to {metric} from start to end, baseline to final plan by seed: {pairs}"
    if trained is None:
        return told
    return (
        f"{told}: {trained.value:.2f}x [{trained.low:.2f}, {trained.high:.2f}], the spread of {trained.n} seeds in it; "
        "the speedup is at equal steps, which changes of these classes leave as they are"
    )


def _nothing_kept(context: RunContext, state: SearchState, aa: AAControl, notes: list[str]) -> Verification:
    """The best is the baseline: what is known of it against itself is the A/A control."""
    evidence = context.gate.evidence(state.baseline, state.baseline, state.facts)
    objective = state.objective
    seconds = mean_seconds([p.seconds for run in evidence.baseline_runs if (p := parts_to(run, objective))])
    return Verification(
        speedup=Speedup(
            time_to_target=same_steps_ratio(aa.comparison, evidence, objective),
            throughput=aa.noise.aa_ratio,
            end_to_end_verified=bool(evidence.baseline_runs),
            detail="nothing was kept: these are the baseline against itself",
        ),
        baseline_side=aa.side,
        best_side=aa.side,
        baseline_runs=evidence.baseline_runs,
        best_runs=evidence.baseline_runs,
        baseline_seconds=seconds,
        best_seconds=seconds,
        fell_back=bool(notes),
        notes=tuple(notes),
    )


def _verdict(found: Verification) -> Verdict:
    """Verdict that the trial of a change that does not pass the verification comes to be called."""
    if found.quality is not None and found.quality.passed is False:
        return Verdict.QUALITY_LOST
    return Verdict.FAILED if found.speedup.throughput is None else Verdict.HARMFUL


def _riskiest(context: RunContext, state: SearchState) -> Change:
    """The change that goes first where the plan as a whole does not pass: the riskiest, and of those the last."""
    return max(reversed(state.found), key=lambda change: context.runner.registry[change.strategy].risk.rank)
