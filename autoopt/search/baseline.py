"""The baseline as it is now: facts, A/A control, its training, and the target that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

import numpy as np

from autoopt.errors import EnvironmentLacks, TrialFailed
from autoopt.events import BaselineMeasured, EnvironmentRead, FirstSteps, NoiseMeasured, Opportunities
from autoopt.options import Options
from autoopt.records import Change, Environment, JsonDict, Objective, Plan, Sites
from autoopt.records.facts import WorkloadFacts
from autoopt.registry import Registry
from autoopt.search.budget_allocation import MOST_CONTROL_PAIRS, NOISE_AT_MOST, TimeLimits
from autoopt.search.compare.comparison import Comparison, Decision, PairOfProcesses, Rule
from autoopt.search.compare.noise import control, doubts, noise_of
from autoopt.search.first_training import adopt_metric, begin, naming_seconds
from autoopt.search.fit_memory import Fitting
from autoopt.search.outcome import configuration
from autoopt.search.planner import Choice, build_queue
from autoopt.search.run_context import RunContext
from autoopt.search.state import AAControl, SearchState
from autoopt.search.trial_runner import BaselineFailed, TrialRunner
from autoopt.simplify.stage_profile import Description, Process, describe, described_by
from autoopt.strategy import Case, Risk, Strategy


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


def compare_with_itself(context: RunContext) -> None:
    """Makes the A/A control, if it was not made yet: blocks of steps are compared in its light.

    The baseline is compared with itself in as many pairs of separate processes as its seconds hold, one at least; where
    one pair alone does not read as equal, in a second one.

    Raises:
        BaselineFailed: it does not train.
    """
    state = context.state
    if state.control is not None and state.control.made:
        return
    seconds = context.allocation.noise
    key = {"plan": state.baseline.model_dump()} if state.baseline.changes else {}

    def measured(pairs: int, began: float, earlier: Sequence[PairOfProcesses] = ()) -> Comparison:
        return control(
            context.runner.start,
            state.baseline,
            Rule(min_gain=context.min_gain, max_seconds=seconds),
            clock=context.now,
            pairs=pairs,
            most=MOST_CONTROL_PAIRS,
            deadline=began + NOISE_AT_MOST * context.allocation.budget,
            rng=np.random.default_rng([context.seed, 1, len(earlier)]),
            earlier=earlier,
        )[1]

    def measure() -> Comparison:
        began = context.now()  # a machine that goes away has it measured anew, with as much time
        first = measured(1, began)
        ratio = noise_of(first, Rule()).aa_ratio
        if len(first.pairs) != 1 or ratio is None or ratio.low <= 1.0 <= ratio.high:
            return first
        return measured(2, began, first.pairs)

    comparison = context.run.step("control", key, measure, Comparison)
    context.runner.memory.note(comparison)
    if comparison.decision is Decision.FAILED and comparison.failure is not None:
        failure = comparison.failure
        raised = TrialFailed(failure.kind, failure.message, detail=failure.detail, where=failure.where)
        raise BaselineFailed(raised, f"in the step ({failure.where or 'training'})")
    state.noise = noise_of(comparison, Rule(min_gain=context.min_gain))
    state.control = AAControl(comparison=comparison)
    context.warn(*doubts(state.noise, comparison))
    context.announce(NoiseMeasured(at=context.now(), noise=state.noise))


def described(context: RunContext, options: Options) -> SearchState:
    """The state of a search that knows the workload's facts, and the machine's peaks.

    Raises:
        BaselineFailed: the baseline cannot be built.
    """
    first, unfit = FirstProcess(context.runner, wait=naming_seconds(context)), None
    try:
        if context.runner.base.script is not None:
            try:
                sites = context.run.step("sites", {}, first.sites, Sites)
            except TrialFailed as failure:
                if failure.kind != "out_of_memory":
                    raise
                unfit, first = failure, FirstProcess(context.runner, lean=True)
                sites = context.run.step("sites", {"lean": True}, first.sites, Sites)
            context.runner.knows(sites)
            watched = first_steps(sites, context.now())
            if watched is not None:
                context.announce(watched)
        found = context.run.step("inspect", {}, first.description, Description)
    except TrialFailed as failure:
        raise BaselineFailed(failure, "while it was built", lean=unfit is not None) from failure
    context.announce(EnvironmentRead(at=context.now(), environment=found.environment))
    context.gate.trainings.run_steps = found.facts.max_steps or 0
    state = context.state = context.gate.state = state_of(context.runner, options, found)
    state.unfit = unfit
    if context.runner.base.memory_limit_bytes is None:  # else it is each process's own
        context.runner.memory.limit_bytes = state.memory_limit_bytes
    if state.sites is not None and state.sites.metric_patterns:
        adopt_metric(context, state.sites.metric_patterns)
    if state.sites is not None and state.sites.shares:
        case = state.case(context.registry)
        context.announce(opportunities(context.registry, case, context.choice, 1 + context.min_gain, context.now()))
    least, _ = options.processes
    if least > 1:
        plan = context.run.step("together", {"processes": least}, lambda: together(context.runner, least), Plan)
        state.baseline = state.incumbent = plan
    context.warn(*context.registry.warnings, *state.facts.warnings)
    return state


def state_of(runner: TrialRunner, options: Options, found: Description) -> SearchState:
    """The state of a search, or of a profile, that knows what its first process found.

    Raises:
        EnvironmentLacks: there are fewer devices than processes that may train together.
    """
    _, most = options.processes
    check_devices(most, found.environment)
    return SearchState(
        facts=found.facts,
        environment=found.environment,
        objective=objective_of(found.facts, options),
        planned_steps=found.facts.max_steps,
        sites=runner.watched(),
        processes=most,
    )


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


def benchmark(context: RunContext) -> None:
    """Measures the baseline: A/A control and first training; where it runs out of memory, the least costly that fits.
    On a short budget the training waits until there is a plan to train next to it, and where whole runs show what a
    change brings, blocks of steps wait until something is compared by them.

    Raises:
        WorkloadError: the baseline fails, and no plan is found under which it does not.
    """
    state = context.state
    fitting: Fitting | None = None
    failed = BaselineFailed(state.unfit, "in its first steps") if state.unfit is not None else None
    while state.control is None:
        if failed is not None:
            fitting = fitting or Fitting(context)
            context.warn(fitting.next(failed))
        seen, failed = state.diagnosed, None
        try:
            if seen is not None and seen.plan == state.baseline:
                state.control = AAControl.expected(seen)
            if state.control is None or context.run_seconds() is None:
                compare_with_itself(context)
            begin(context)
        except BaselineFailed as failure:
            state.control, failed = None, failure
    if state.aa.side.startup is not None:
        context.runner.limits = TimeLimits.following(state.aa.side.startup)
    if state.aa.side.step_seconds is not None:
        context.gate.probes.step_seconds = state.aa.side.step_seconds.p50
    runs = (state.trained,) if state.trained is not None else ()
    found = configuration(
        state.baseline,
        state.environment,
        side=state.aa.side,
        runs=runs,
        price_per_hour=state.objective.price_per_hour,
        processes=state.facts.processes,
    )
    context.announce(BaselineMeasured(at=context.now(), baseline=found))


_STAGES = {
    "data": {"storage", "preparation", "collate", "pin"},
    "epoch": {"storage", "preparation", "collate"},
    "copy": {"pin", "copy"},
    "other": {"host"},
    "forward": {"forward"},
    "backward": {"backward"},
    "optimizer": {"optimizer"},
}
"""Stages as strategies name them, by what a script's first steps distinguish."""


class FirstProcess:
    """Findings of the first process of a workload.

    Args:
        lean: the workload does not fit into memory: it is a script, which trains in little memory while it is
            watched.
        wait: seconds in which a script's first evaluation is waited for.
    """

    def __init__(self, runner: TrialRunner, *, lean: bool = False, wait: float = 0.0) -> None:
        self._runner, self._lean, self._wait = runner, lean, wait
        self._found: Description | None = None

    def sites(self) -> Sites:
        """The sites of a script.

        Raises:
            TrialFailed: it does not train.
        """
        with self._runner.leanly() if self._lean else nullcontext():
            sites = self._runner.watched(self._ask, self._wait)
        assert sites is not None, "it is a script"
        # lean steps take as long as the copies of what they keep
        return sites.model_copy(update={"step_seconds": None, "shares": {}}) if self._lean else sites

    def description(self) -> Description:
        """Facts and peaks: of the process that was watched, else of one that is started for them.

        Raises:
            TrialFailed: the baseline cannot be built or set up.
        """
        with self._runner.leanly() if self._lean else nullcontext():
            found = self._found or describe(self._runner)
        sites = self._runner.watched()
        facts = found.facts.model_copy(update={"run": sites.run if sites is not None else None})
        return found.model_copy(update={"facts": facts})

    def _ask(self, process: Process, sites: Sites) -> None:
        # the first step was the same as in a process that knows the sites: that of a single optimizer
        evaluated = any(site.options.get("mode") == "eval" for site in sites.of("model"))
        if len(set(sites.period)) == 1 and not evaluated:
            with suppress(TrialFailed):  # what is wrong shows in a process that nobody watches
                self._found = described_by(process)


def first_steps(sites: Sites, at: float) -> FirstSteps | None:
    """Where the time of a script's first steps went, at so many seconds of the run; None where they were not timed."""
    if sites.step_seconds is None:
        return None
    return FirstSteps(at=at, steps=sites.steps, step_seconds=sites.step_seconds, shares=sites.shares)


def opportunities(registry: Registry, case: Case, choice: Choice, least: float, at: float = 0.0) -> Opportunities:
    """Strategies that may shorten a script's step by more than ``least``, by what its first steps leave to gain."""
    shares = case.sites.shares if case.sites is not None else {}

    def bound(strategy: Strategy) -> float:
        # what lies between the stages is most of all the script's own lines: few of them are an operator's issuing
        own = set(strategy.stages) - ({"host"} if len(strategy.stages) > 1 else set())
        share = sum(share for stage, share in shares.items() if _STAGES.get(stage, set()) & own)
        return 1 / max(1 - share, 1e-3)

    def worth(case: Case) -> list[Strategy]:
        proposed = [proposal.strategy for proposal in build_queue(registry, case, choice, least).proposals]
        return [each for each in proposed if each.risk in (Risk.EXACT, Risk.NUMERIC) and bound(each) >= least]

    ranked: dict[float, list[str]] = {}
    known = worth(case)
    for strategy in known:
        ranked.setdefault(bound(strategy), []).append(strategy.name)
    # the case in which every strategy that looks into the model or its data has found there what it looks for
    found = {name: each.example.inspected for name, each in registry.items() if each.example is not None}
    seen = replace(case, workload=case.workload.model_copy(update={"inspected": found}))
    unknown = [strategy for strategy in worth(seen) if strategy not in known]
    return Opportunities(
        at=at,
        at_most=tuple((value, tuple(ranked[value])) for value in sorted(ranked, reverse=True)),
        unknown=tuple(strategy.name for strategy in sorted(unknown, key=bound, reverse=True)),
    )
