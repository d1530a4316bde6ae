"""The outcome of a run, from which ``autoopt.running.document`` makes result.json, and what each candidate came to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from autoopt.events import Kept, Stopped, Verified
from autoopt.records import (
    Ablation,
    Configuration,
    Decided,
    Environment,
    Estimate,
    Plan,
    Quality,
    Speedup,
    Spent,
    Stop,
    StopReason,
    Trial,
    Verdict,
)
from autoopt.records.messages import TrainingRun
from autoopt.search.compare.comparison import Comparison, Decision, Side, most, percentiles
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.verify import Verification
from autoopt.simplify.stage_profile import StageProfile
from autoopt.storage.run import Took


@dataclass
class Outcome:
    """The end of a run: baseline and best with all that was measured of them, and why the search stopped."""

    state: SearchState
    baseline: Configuration
    best: Configuration
    speedup: Speedup
    stop: Stop
    quality: Quality | None = None
    ablation: list[Ablation] = field(default_factory=list)


def finished(context: RunContext, verification: Verification, stop: Stop, rows: list[Ablation]) -> Outcome:
    """The outcome of a run that came to its end, announced."""
    outcome, goal = outcome_of(context.state, verification, stop, rows), context.state.objective.has_target
    context.announce(Verified(at=context.now(), best=outcome.best, speedup=outcome.speedup, has_target=goal))
    context.announce(Stopped(at=context.now(), stop=stop))
    return outcome


def broken_off(context: RunContext) -> Outcome:
    """The outcome of a run that was stopped at once: what was not verified is not the best, the baseline is."""
    state = context.state
    if state.found:
        names = ", ".join(change.strategy for change in state.found)
        context.warn(f"broken off before it was verified: {names}; autoopt resume goes on from here")
    state.incumbent = state.baseline
    stop = Stop(reason=StopReason.INTERRUPTED, detail="stopped at once; nothing was verified")
    return outcome_of(state, Verification(speedup=Speedup(detail="broken off")), stop, [])


def outcome_of(state: SearchState, found: Verification, stop: Stop, rows: list[Ablation]) -> Outcome:
    """Puts the end of a run together."""

    def of(plan: Plan, side: Side | None, runs: tuple[TrainingRun, ...], seconds: Estimate | None) -> Configuration:
        known: dict[str, Any] = {"profile": state.profiles.get(plan.key), "side": side, "runs": runs}
        known |= {"price_per_hour": state.objective.price_per_hour, "processes": state.facts.processes}
        return configuration(plan, state.environment, time_to_target=seconds, **known)

    side, runs = state.control.side if state.control else None, (state.trained,) if state.trained else ()
    best = baseline = of(
        state.baseline, found.baseline_side or side, found.baseline_runs or runs, found.baseline_seconds
    )
    if state.incumbent != state.baseline:
        best = of(state.incumbent, found.best_side, found.best_runs, found.best_seconds)
    return Outcome(state, baseline, best, found.speedup, stop, found.quality, rows)


def announce_kept(context: RunContext, side: Side, speedup: Speedup) -> None:
    """Announces a plan that was kept, with what blocks of its steps show and its speedup over the one before it."""
    state = context.state
    best = configuration(state.incumbent, state.environment, side=side)
    speedup = speedup.model_copy(update={"detail": "over the incumbent before it"})
    context.announce(Kept(at=context.now(), plan=state.incumbent, best=best, speedup=speedup))


def configuration(
    plan: Plan,
    environment: Environment,
    *,
    profile: StageProfile | None = None,
    side: Side | None = None,
    runs: tuple[TrainingRun, ...] = (),
    time_to_target: Estimate | None = None,
    price_per_hour: float | None = None,
    processes: int = 1,
) -> Configuration:
    """Puts together what trials of one plan showed; what none showed is None.

    Args:
        profile: the plan from the inside; gives FLOP/s and CPU utilization.
        side: the plan in an interleaved comparison, the better source of step times.
        runs: its trainings to the target; ``time_to_target``: their seconds, with interval.
        processes: that a script's launcher starts.
    """
    last = runs[-1].curve.points[-1].metric if runs and runs[-1].curve.points else None
    step = side.step_seconds if side else None
    rate = side.samples_per_second if side else None
    flops = cpu = cost = None
    if profile is not None:
        block = profile.block
        step = step or percentiles(list(block.step_seconds))
        if rate is None and block.samples is not None:
            rate = block.samples / block.seconds
        if profile.flops_per_step:
            flops = profile.flops_per_step * block.steps / block.seconds
        if block.cpu_seconds is not None and environment.cores:
            cpu = min(1.0, block.cpu_seconds / (block.seconds * environment.cores))
    # utilization is a share of the highest matrix-multiplication rate that was measured
    rates = (getattr(environment.peaks, f"matmul_{kind}_flops_per_second") for kind in ("fp32", "tf32", "bf16", "fp16"))
    peak = max((each for each in rates if each), default=None)
    if price_per_hour and time_to_target is not None:  # each process has a device of its own, but for those on a CPU
        devices = 1 if environment.device == "cpu" else max(plan.processes, processes)
        cost = price_per_hour * devices * time_to_target.value / 3600
    seen = (*((side,) if side else ()), *runs, *((profile.block,) if profile else ()))
    return Configuration(
        plan=plan,
        samples_per_second=rate,
        step_seconds=step,
        time_to_target_seconds=time_to_target,
        fixed_seconds=_median([run.fixed_seconds for run in runs])
        or (profile.startup.fixed_seconds if profile else None),
        evaluation_seconds=_median([run.evaluation_seconds for run in runs]),
        steps_to_target=_steps([run for run in runs if run.reached]),
        trained_steps=_steps(runs),
        metric=last,
        peak_memory_bytes=most(each.peak_memory_bytes for each in seen),
        peak_host_memory_bytes=most(each.peak_host_memory_bytes for each in seen),
        trained_parameters=runs[-1].trained_parameters if runs else None,
        device_utilization=profile.monitor.get("device_utilization") if profile else None,
        cpu_utilization=cpu,
        flops_per_second=flops,
        mfu=flops / peak if flops and peak else None,
        energy_joules_per_step=profile.joules_per_step if profile else None,
        cost_to_target=cost,
        curves=tuple(run.curve for run in runs),
    )


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None


def _steps(runs: Sequence[TrainingRun]) -> int | None:
    steps = [run.curve.steps_to_target or run.steps for run in runs]
    return int(np.median(steps)) if steps else None


_BY_KIND = {
    "inspect": "start-up",
    "sites": "start-up",
    "fit": "start-up",
    "control": "A/A control",
    "sharing": "A/A control",
    "diagnose": "profile",
    "examine": "profile",
    "look": "comparing candidates",
    "trial": "confirmation",
    "comparison": "confirmation",
    "evaluations": "comparing candidates",
    "comparisons": "ablation",
    "probe": "quality",
    "training": "quality",
    "rung": "tuning",
    "trainings": "quality",
    "largest": "verification",
}
_BY_PURPOSE = {"ablation": "ablation", "verification": "verification", "baseline": "baseline's training"}
"""Purposes that begin so say more than the kind of a step."""

IDLE = "between steps"
MOST_NAMED = 5


def spending(took: Iterable[Took], seconds: float) -> tuple[Spent, ...]:
    """Seconds by what they were spent on, the largest first; what no step accounts for is the time between steps."""
    found: dict[str, float] = defaultdict(float)
    for step in took:
        found[spent_on(step.kind, step.purpose)] += step.seconds
    rest = seconds - sum(found.values())
    if rest > 0.0:
        found[IDLE] = rest
    return tuple(Spent(on=on, seconds=each) for on, each in sorted(found.items(), key=lambda item: -item[1]))


def spent_on(kind: str, purpose: str) -> str:
    """The purpose of a step of a journal."""
    named = _BY_PURPOSE.get(purpose.partition(" ")[0].rstrip(":"))
    return named or _BY_KIND.get(kind, kind)


def more_budget(state: SearchState) -> str:
    """A sentence on what more time would do, with how much; empty where more time would not help."""
    unseen = unscreened(state)
    undecided = {t.id: t.strategy for t in state.trials if t.verdict is Verdict.INCONCLUSIVE}
    unconfirmed = {number: seconds for number, seconds in state.unconfirmed.items() if number in undecided}
    if not unseen and not unconfirmed:
        return ""
    seconds = sum(unseen.values()) + sum(unconfirmed.values())
    screen = f"screen {len(unseen)} more strateg{'y' if len(unseen) == 1 else 'ies'} ({named(unseen)})"
    confirm = f"confirm promising candidates ({named(undecided[n] for n in unconfirmed)})"
    parts = [text for text, wanted in ((screen, unseen), (confirm, unconfirmed)) if wanted]
    return f"about {max(seconds / 60, 0.1):.1f} min more would {' and '.join(parts)}"


def unscreened(state: SearchState) -> dict[str, float]:
    """Strategies that there was no time for, with the seconds that screening each would have taken."""
    tried = {trial.strategy for trial in state.trials}
    return {name: seconds for name, seconds in state.unseen.items() if name not in tried}


def named(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    every = list(dict.fromkeys(names))
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    return ", ".join(every[:MOST_NAMED]) + more


REFUSALS = frozenset({Verdict.NO_GAIN, Verdict.HARMFUL, Verdict.QUALITY_LOST, Verdict.FAILED})
UNMEASURED = frozenset({Verdict.NOT_APPLICABLE, Verdict.NOT_TRIED})
LEFT_OUT = {Decision.REJECT: Verdict.NO_GAIN, Decision.HARMFUL: Verdict.HARMFUL}


def decided(state: SearchState) -> tuple[Decided, ...]:
    """Each strategy of which a candidate was measured, in the order in which they were first tried."""
    measured = [trial for trial in state.trials if trial.verdict not in UNMEASURED]
    names = dict.fromkeys(trial.strategy for trial in measured)
    names |= dict.fromkeys(change.strategy for change in state.found)
    companions = (change.strategy for trial in measured for change in trial.companions)
    names |= dict.fromkeys(name for name in companions if _left_out(state, name) is not None)
    return tuple(_kept(state, name) or _refused(state, name, measured) for name in names)


def _kept(state: SearchState, name: str) -> Decided | None:
    """A strategy of the final plan; None for others."""
    if name not in {change.strategy for change in state.found}:
        return None
    without = state.without(name)
    kept, with_it = partial(Decided, strategy=name, verdict=Verdict.KEPT), "the plan with and without it"
    accepted = [seen for seen in with_and_without(state, name) if seen.decision is Decision.ACCEPT]
    for seen in accepted:
        if seen.compares(without, state.incumbent):
            return kept(by=f"{with_it}, {seen.reason}")
    alone = [trial for trial in state.trials if trial.strategy == name and not trial.companions]
    if any(trial.verdict is Verdict.KEPT for trial in alone):
        return kept(by="its own confirmation")
    larger = in_larger_plan(state, name)
    if larger is not None and larger[0].decision is Decision.ACCEPT:
        return kept(by=f"{with_it}, as {', '.join(larger[1])} was in it, {larger[0].reason}")
    final = state.incumbent.changes
    for seen in accepted:
        smaller = seen.candidate.plan.changes
        later = [change.strategy for change in final if change not in smaller]
        if later and all(change in final for change in smaller):
            return kept(by=f"{with_it}, before {', '.join(later)} came into it, {seen.reason}")
    return Decided(strategy=name, by="kept as a part of a confirmed combination; its own effect is undecided")


def in_larger_plan(state: SearchState, name: str) -> tuple[Comparison, tuple[str, ...]] | None:
    """The comparison that left out a change of the final plan while more was in the plan, and the names of that."""
    for seen in with_and_without(state, name):
        plan, final = seen.candidate.plan, state.incumbent
        others = tuple(change.strategy for change in plan.changes if change not in final.changes)
        if others and seen.estimate and all(change in plan.changes for change in final.changes):
            return seen, others
    return None


def _refused(state: SearchState, name: str, measured: list[Trial]) -> Decided:
    """A strategy that is not in the final plan: refused where no candidate with the fewest companions is left open."""
    trials = [trial for trial in measured if trial.strategy == name]
    fewest = min((len(trial.companions) for trial in trials), default=0)
    own = [trial for trial in trials if len(trial.companions) == fewest]
    if own and all(trial.verdict in REFUSALS for trial in own):
        return Decided(strategy=name, verdict=own[-1].verdict, by=own[-1].reason)
    out = _left_out(state, name)
    if out is not None:
        return Decided(strategy=name, verdict=LEFT_OUT[out.decision], by=f"the plan with and without it, {out.reason}")
    return Decided(strategy=name, by=own[-1].reason if own else "")


def _left_out(state: SearchState, name: str) -> Comparison | None:
    """The latest comparison that refused it as a part of a larger plan."""
    return next((seen for seen in with_and_without(state, name) if seen.decision in LEFT_OUT), None)


def with_and_without(state: SearchState, name: str) -> Iterator[Comparison]:
    """Comparisons of a plan with a strategy's change to the same plan without it, the latest first."""
    for seen in reversed([*state.comparisons.values(), *state.ablations]):
        plan, base = seen.candidate.plan, seen.incumbent.plan
        same = plan.without(name) == base.without(name) and base.setting(name) == state.baseline.setting(name)
        if plan.setting(name) is not None and same:
            yield seen
