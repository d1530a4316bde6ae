"""The baseline as it is now: facts, A/A control, its training, and the target that follows from it."""

from __future__ import annotations

from math import ceil

import numpy as np

from autoopt.benchmark.target import reachable
from autoopt.errors import EnvironmentLacks, TrialFailed
from autoopt.events import BaselineMeasured, EnvironmentRead, FirstLook, NoiseMeasured
from autoopt.options import Options
from autoopt.records import Change, Environment, JsonDict, Objective, Plan, Sites
from autoopt.records.facts import WorkloadFacts
from autoopt.records.messages import TrainingRun
from autoopt.script.metric import direction_of, name_of
from autoopt.search.aa_control import AAControl
from autoopt.search.accept.memory_margin import memory_limit
from autoopt.search.accept.time_to_target import parts_to
from autoopt.search.accept.trainings import PATIENCE
from autoopt.search.budget_allocation import BASELINE_TO_TARGET, NOISE_AT_MOST, BudgetAllocation
from autoopt.search.compare.comparison import Comparison, Decision, Rule
from autoopt.search.compare.noise import control, doubts, noise_of
from autoopt.search.configuration import configuration
from autoopt.search.fit_memory import Fitting
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.time_limits import TimeLimits
from autoopt.search.trial_runner import BaselineFailed, TrialRunner
from autoopt.simplify.stage_profile import Description, describe

AA_PAIRS = 4

NO_METRIC = (
    "no metric of the script is known, so only changes that are proven to train the same are kept, and times are those "
    "of the same steps: give --metric 'PATTERN', such as --metric 'val loss ([0-9.]+)'"
)
"""A script's training says nothing of how good it is, but in what it prints."""


def objective_of(facts: WorkloadFacts, options: Options) -> Objective:
    """The objective of the search, before the baseline was trained."""
    target = options.target if options.target is not None else facts.target
    return Objective(
        metric=facts.metric,
        mode=facts.mode,
        target=target,
        target_source="user" if target is not None else "baseline",
        tolerance=options.tolerance,
        min_gain=options.min_gain,
        price_per_hour=options.price,
    )


def measure_noise(context: RunContext, state: SearchState) -> AAControl:
    """Compares the baseline with itself in separate processes.

    Raises:
        BaselineFailed: it does not train.
    """
    seconds = context.allocation.noise
    began = context.now()
    key = {"plan": state.baseline.model_dump(mode="json")} if state.baseline.changes else {}

    def measure() -> Comparison:
        rule = Rule(min_gain=context.min_gain, max_seconds=seconds)
        rng = np.random.default_rng([context.seed, 1])
        return control(
            context.runner.start,
            state.baseline,
            rule,
            clock=context.now,
            pairs=AA_PAIRS,
            deadline=began + NOISE_AT_MOST * context.allocation.budget,
            rng=rng,
        )[1]

    comparison = context.run.step("control", key, measure, Comparison)
    if comparison.decision is Decision.FAILED and comparison.failure is not None:
        failure = comparison.failure
        raised = TrialFailed(failure.kind, failure.message, detail=failure.detail, where=failure.where)
        raise BaselineFailed(raised, f"in the step ({failure.where or 'training'})")
    noise = noise_of(comparison, Rule(min_gain=context.min_gain))
    return AAControl(noise=noise, comparison=comparison, doubts=tuple(doubts(noise, comparison, state.environment)))


def measure_baseline(context: RunContext, state: SearchState, aa: AAControl) -> tuple[TrainingRun, list[str]]:
    """Trains the baseline to its target in its share of the budget; sets the target where that is not reached.

    Returns:
        The training, and notes for the report.

    Raises:
        BaselineFailed: it does not train.
    """
    trainings, objective = context.gate.trainings, state.objective
    trainings.target = objective.target
    trainings.limit_seconds = context.allocation.baseline(objective.target is not None)
    try:
        run = trainings.get(
            state.baseline,
            context.seed,
            purpose=f"baseline seed {context.seed}",
            keep=str(context.run.directory.path / "probes" / "weights"),
        )
    except TrialFailed as failure:
        raise BaselineFailed(failure, f"in training ({failure.where or 'to the target'})") from failure
    if context.gate.probes is not None:
        context.gate.probes.weights = run.kept
    notes = adopt_metric(context, state, run.told)
    objective = state.objective
    if objective.metric is not None and parts_to(run, objective) is None:
        state.untrainable = _out_of_reach(objective, run, context.allocation, state.planned_steps)
        state.objective, note = _replaced(objective, run)
        notes.append(note)
    trainings.target = state.objective.target
    usual = usual_seconds(aa, run)
    trainings.limit_seconds = PATIENCE * max(usual, run.seconds) + aa.start_seconds
    trainings.expected_seconds = usual + aa.start_seconds
    return run, notes


def adopt_metric(context: RunContext, state: SearchState, told: tuple[str, ...]) -> list[str]:
    """Takes the one number that a script prints at each evaluation for its metric, where none was named; notes on it.

    Args:
        told: patterns of what may be it.
    """
    if state.sites is None or state.objective.metric is not None:
        return []
    if len(told) != 1:
        which = "; what it prints at each evaluation may be one: " + " or ".join(f"--metric {p!r}" for p in told)
        return [NO_METRIC + (which if told else "")]
    metric, mode = name_of(told[0]), direction_of(told[0])
    context.runner.reads(told[0])
    known = {"metric": metric, "mode": mode}
    state.objective = state.objective.model_copy(update=known)
    state.facts = state.facts.model_copy(update={**known, "has_evaluate": True})
    better = "less" if mode == "min" else "more"
    return [
        f"the metric is {metric!r}, of which {better} is better: the one measure of quality that the script prints at "
        f"each evaluation; --metric {told[0]!r} names it, or another"
    ]


def usual_seconds(aa: AAControl, run: TrainingRun) -> float:
    """Seconds that a training like this takes when nothing disturbs it; to plan the rest of the run by.

    A burst of foreign load in the one training must not shrink the search: its steps count as they
    took in the interleaved blocks of the A/A control.
    """
    if aa.side.step_seconds is None or not aa.side.startup:
        return run.seconds
    quiet = aa.side.startup.fixed_seconds + run.steps * aa.side.step_seconds.p50 + run.evaluation_seconds
    return min(run.seconds, quiet)


def allocation_after(context: RunContext, aa: AAControl, run: TrainingRun) -> BudgetAllocation:
    """The allocation, now that a start and a training were measured."""
    return BudgetAllocation(
        budget=context.allocation.budget,
        start_seconds=aa.start_seconds,
        baseline_seconds=usual_seconds(aa, run),
        pair_seconds=aa.pair_seconds,
    )


def _replaced(objective: Objective, run: TrainingRun) -> tuple[Objective, str]:
    """The metric that the baseline did reach in its share, less the tolerance, as the target."""
    value = reachable([run.curve], objective.mode, objective.tolerance)
    replaced = objective.model_copy(update={"target": value, "target_source": "baseline"})
    if value is None:
        return replaced, (
            f"the baseline was not evaluated within {run.seconds:.0f} s, its share of the budget: time to target "
            "cannot be measured; give the run more budget, or evaluate more often"
        )
    reached = f"the target is {objective.metric} {value:.4g}, which the baseline reached in {run.seconds:.0f} s"
    if objective.target is None:
        return replaced, f"{reached}, less the tolerance (no value was given)"
    return replaced, (
        f"{reached}, less the tolerance: {objective.target:.4g} was not reached within its share of the budget; "
        "a larger --budget lets the whole way be measured"
    )


def _out_of_reach(objective: Objective, run: TrainingRun, allocation: BudgetAllocation, steps: int | None) -> str:
    """Why no change of training can be judged, with the budget that it would need; empty where one can.

    A lower target in place of the user's shows that nothing broke. Which training is there first, it does not show.
    Where the planned run ended without reaching the user's target, no budget would help, and its end is what counts.

    Args:
        steps: of the planned run; None where it is not known.
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


def inspected(context: RunContext, options: Options) -> SearchState:
    """The state of a search that has only seen the workload's facts and the machine's peaks.

    Raises:
        BaselineFailed: the baseline cannot be built.
    """
    try:
        if context.runner.base.script is not None:
            sites = context.run.step("sites", {}, lambda: _watched(context), Sites)
            context.runner.knows(sites)
            if sites.step_seconds is not None:
                known = {"steps": sites.steps, "step_seconds": sites.step_seconds, "shares": sites.shares}
                context.announce(FirstLook(at=context.now(), **known))
        found = context.run.step("inspect", {}, lambda: describe(context.runner), Description)
    except TrialFailed as failure:
        raise BaselineFailed(failure, "while it was built") from failure
    context.announce(EnvironmentRead(at=context.now(), environment=found.environment))
    context.gate.memory_limit_bytes = memory_limit(found.environment)
    least, most = options.processes
    check_devices(most, found.environment)
    state = SearchState(
        facts=found.facts,
        environment=found.environment,
        objective=objective_of(found.facts, options),
        planned_steps=found.facts.max_steps,
        sites=context.runner.watched(),
        processes=most,
    )
    if least > 1:
        state.adopt(context.run.step("together", {"processes": least}, lambda: together(context.runner, least), Plan))
    return state


def check_devices(processes: int, environment: Environment) -> None:
    """Each process of a distributed run has a device of its own; the CPU is everybody's.

    Raises:
        EnvironmentLacks: there are fewer.
    """
    devices = environment.devices
    if processes > 1 and devices is not None and devices < processes:
        raise EnvironmentLacks(
            f"--nproc {processes}: there are {devices} devices, from {environment.device} on",
            hint=f"--nproc {devices}" if devices > 1 else "leave --nproc out",
        )


def together(runner: TrialRunner, processes: int) -> Plan:
    """The workload as it is, in so many processes.

    Raises:
        BaselineFailed: it does not train.
    """
    try:
        task = "autoopt.benchmark.tasks:inspect"
        found = runner.ask(Plan(), task, timeout=300.0, label="unused", strategies=["ddp"])["ddp"]
    except TrialFailed as failure:
        if failure.kind != "out_of_memory":
            raise BaselineFailed(failure, "in its first step") from failure
        found = {}
    setting: JsonDict = {"processes": processes, **({"find_unused": True} if found.get("unused") else {})}
    return Plan(changes=(Change(strategy="ddp", setting=setting),))


def _watched(context: RunContext) -> Sites:
    sites = context.runner.watched()
    assert sites is not None, "it is a script"
    return sites


def benchmark(context: RunContext, state: SearchState, options: Options) -> None:
    """Measures the baseline: A/A control and first training; where it runs out of memory, the least costly that fits.

    Raises:
        WorkloadError: the baseline fails, and no plan is found under which it does not.
    """
    fitting: Fitting | None = None
    while state.trained is None:
        try:
            _measure(context, state)
        except BaselineFailed as failed:
            fitting = fitting or Fitting(context, state)
            context.warn(state, fitting.next(failed))
    if state.aa.side.startup is not None:
        context.runner.limits = TimeLimits.following(state.aa.side.startup)
    context.allocation = allocation_after(context, state.aa, state.trained)
    found = configuration(
        state.baseline, state.environment, side=state.aa.side, runs=(state.trained,), price_per_hour=options.price
    )
    context.announce(BaselineMeasured(at=context.now(), baseline=found))


def _measure(context: RunContext, state: SearchState) -> None:
    state.control = measure_noise(context, state)
    state.noise = state.control.noise
    context.warn(state, *state.control.doubts)
    context.announce(NoiseMeasured(at=context.now(), noise=state.noise))
    state.trained, notes = measure_baseline(context, state, state.control)
    context.warn(state, *notes)
