"""The search state: incumbent, trials, noise, and what was measured of the baseline, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod, sqrt
from statistics import fmean
from typing import Any

import numpy as np

from autoopt.benchmark.target import whole_run_seconds
from autoopt.errors import ScriptEnded, TrialFailed
from autoopt.records import (
    Advice,
    Change,
    Environment,
    Estimate,
    JsonDict,
    Noise,
    Objective,
    Plan,
    Record,
    Round,
    RunParts,
    Sites,
    Trial,
    Verdict,
)
from autoopt.records.distributed import Scaling
from autoopt.records.facts import WorkloadFacts
from autoopt.records.measured import Sharing
from autoopt.records.messages import TrainingRun
from autoopt.records.model_scaling import ModelScaling
from autoopt.records.tuning import Tuning
from autoopt.records.whole_run import WholeRun
from autoopt.registry import Registry
from autoopt.script.applicable import own_setup
from autoopt.search.accept.evidence import memory_limit, with_between
from autoopt.search.compare.comparison import Comparison, Decision, Side, SideStatistics
from autoopt.search.compare.statistics import MIN_BLOCKS
from autoopt.search.planner import Beliefs, Member
from autoopt.simplify.stage_profile import StageProfile
from autoopt.strategy import Case, Strategy


class AAControl(Record):
    """The A/A control, by what it says of the baseline; before it is made, what the profile says of that."""

    comparison: Comparison

    @staticmethod
    def expected(seen: StageProfile) -> AAControl:
        """Of a baseline that was profiled and not yet compared with itself."""
        statistics = SideStatistics(seen.plan)
        statistics.started(seen.startup)
        statistics.ran(seen.block)
        side, why = statistics.side(), "the baseline was not compared with itself"
        found = Comparison(decision=Decision.INCONCLUSIVE, reason=why, incumbent=side, candidate=side)
        return AAControl(comparison=found)

    @property
    def made(self) -> bool:
        return bool(self.comparison.pairs)

    @property
    def side(self) -> Side:
        return self.comparison.incumbent

    @property
    def start_seconds(self) -> float:
        """Seconds to start a trial and warm it up: half of what a pair of them took."""
        pairs, seen = [pair.startup_seconds for pair in self.comparison.pairs], self.side.startup
        alone = 5.0 if seen is None else seen.steady_seconds
        return max(float(np.median(pairs)) / 2 if pairs else alone, 0.5)

    @property
    def pair_seconds(self) -> float:
        """Seconds of a pair of processes with the fewest blocks that count; 0 where none was measured."""
        known = [(p.startup_seconds, p.seconds, p.rounds) for p in self.comparison.pairs]
        pairs = [start + MIN_BLOCKS * (seconds - start) / rounds for start, seconds, rounds in known if rounds]
        return float(np.median(pairs)) if pairs else 0.0


@dataclass
class SearchState:
    """All that is known in a search.

    ``baseline``: what everything is compared with: the workload as it is, or where that does not fit in memory, the
    least costly plan under which it does. ``base``: the id of the trial whose change made the incumbent, or
    ``"baseline"``. ``screenings`` confirm nothing; ``ablations`` show what a change of a plan is worth.

    ``together``: strategies whose changes were kept as parts of a combined candidate, none of them confirmed by itself
    or shown to be needed, each with the member that its gain is a part of. ``unseen``: strategies that there was no
    time for, with the seconds that a screening would have taken; ``unconfirmed``: trials by id whose confirmation would
    have taken so many seconds more than were left. ``tried``: changes with the incumbent that they were tried on.

    ``control``, ``trained``: the A/A control of the baseline and its first training; ``untrainable``: why no change of
    training can be judged in this budget; ``tuned``: what the strategy of a tuning is notified of it; ``missing``: what
    could not be measured, and why; ``processes``: the most that may train together; ``sharing``: what neighbours cost
    an incumbent, by its key.

    ``between_ratio``: seconds of evaluations and of checkpoints, by stage, under the incumbent over those under the
    baseline; ``unfit``: how the first start of a script failed that does not fit into memory as it is; ``diagnosed``:
    the profile of a script that was taken before anything else was measured.
    """

    facts: WorkloadFacts
    environment: Environment
    objective: Objective
    noise: Noise = field(default_factory=Noise)
    baseline: Plan = field(default_factory=Plan)
    incumbent: Plan = field(default_factory=Plan)
    base: str = "baseline"
    trials: list[Trial] = field(default_factory=list)
    skipped: dict[str, Trial] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    comparisons: dict[int, Comparison] = field(default_factory=dict)
    ablations: list[Comparison] = field(default_factory=list)
    screenings: list[Comparison] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)
    beliefs: Beliefs = field(default_factory=Beliefs)
    numbers: int = 0
    planned_steps: int | None = None
    sites: Sites | None = None
    unfit: TrialFailed | None = None
    control: AAControl | None = None
    trained: TrainingRun | None = None
    untrainable: str = ""
    profiles: dict[str, StageProfile] = field(default_factory=dict)
    diagnosed: StageProfile | None = None
    advice: tuple[Advice, ...] = ()
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    together: dict[str, Member] = field(default_factory=dict)
    unseen: dict[str, float] = field(default_factory=dict)
    unconfirmed: dict[int, float] = field(default_factory=dict)
    processes: int = 1
    scaling: Scaling | None = None
    sharing: dict[str, Sharing] = field(default_factory=dict)
    tuning: Tuning | None = None
    tuned: dict[str, JsonDict] = field(default_factory=dict)
    model_scaling: ModelScaling | None = None
    between_ratio: dict[str, float] = field(default_factory=dict)

    @property
    def run(self) -> RunParts | None:
        """Parts of a whole run, with evaluations and checkpoints as long as the incumbent's are."""
        return with_between(self.facts.run, self.between_ratio)

    @property
    def memory_limit_bytes(self) -> int | None:
        """Bytes of the device that a training may take; None where nobody limits it."""
        return memory_limit(self.environment)

    def next_id(self) -> int:
        self.numbers += 1
        return self.numbers

    def case(self, registry: Registry, plan: Plan | None = None, **known: Any) -> Case:
        """The case of the incumbent, or of another plan, as a strategy is given it; ``known``: its other fields."""
        plan = self.incumbent if plan is None else plan
        # faults of a step are the mean of those seen: processes of one program differ in what they give back
        seen = [self.control.comparison] if self.control is not None else []
        sides = [side for pair in (*seen, *self.comparisons.values()) for side in (pair.incumbent, pair.candidate)]
        faults = [s.page_faults for s in sides if s.plan == plan and s.page_faults is not None]
        profile = self.profiles.get(plan.key)
        if not faults and profile is not None and profile.block.page_faults is not None:
            faults = [profile.block.page_faults / max(profile.block.steps, 1)]
        return Case(
            workload=self.facts,
            environment=self.environment,
            objective=self.objective,
            plan=plan,
            setup=registry.fold(plan, own_setup(self.sites)),
            trials=tuple(self.trials),
            planned_steps=self.planned_steps,
            sites=self.sites,
            processes=self.processes,
            page_faults=fmean(faults) if faults else None,
            **known,
        )

    @property
    def ends_too_early(self) -> bool:
        """Whether runs of the incumbent, or of plans next to it, were over before blocks of their steps could count."""
        failures = (seen.failure for seen in self.screenings if seen.incumbent.plan == self.incumbent)
        return any(failure is not None and failure.where == ScriptEnded.WHERE for failure in failures)

    @property
    def made_by(self) -> Comparison | None:
        """The comparison of the trial whose change made the incumbent; None where it is the baseline."""
        return self.comparisons.get(int(self.base)) if self.base.isdigit() else None

    @property
    def found(self) -> tuple[Change, ...]:
        """The changes of the incumbent that the baseline has not."""
        return tuple(change for change in self.incumbent.changes if change not in self.baseline.changes)

    @property
    def speedup_so_far(self) -> float:
        """Of the incumbent over the baseline, at least; the lower ends of what its changes brought. To plan by."""
        gains = (trial.time_to_target or trial.throughput for trial in self.kept())
        return prod((max(gain.low, 1.0) for gain in gains if gain is not None), start=1.0)

    def without(self, strategy: str) -> Plan:
        """The incumbent as it was before that strategy's change: with the baseline's setting, where that has one."""
        left, before = self.incumbent.without(strategy), self.baseline.setting(strategy)
        if before is None or before == self.incumbent.setting(strategy):
            return left
        return left.with_change(Change(strategy=strategy, setting=before))

    def skip(self, strategy: Strategy, verdict: Verdict, reason: str, **fields: object) -> Trial:
        """Notes why a strategy is not tried; the latest note of each stands. A crash alone has a trial's number."""
        name, round_ = strategy.name, len(self.rounds)
        number = self.skipped[name].id if name in self.skipped else 0
        if not number and verdict is Verdict.FAILED:
            number = self.next_id()
        found = {"id": number, "round": round_, "strategy": name, "base": self.base, "risk": strategy.risk.value}
        trial = self.skipped[name] = Trial.model_validate({**found, "verdict": verdict, "reason": reason, **fields})
        return trial

    @property
    def aa(self) -> AAControl:
        """The A/A control, or what stands for it before blocks of steps are compared."""
        assert self.control is not None, "the A/A control comes first"
        return self.control

    @property
    def planned_seconds(self) -> float | None:
        """Seconds of the planned steps as the baseline takes them in the A/A control; None where either is unknown."""
        step = self.aa.side.step_seconds
        return self.planned_steps * step.p50 if self.planned_steps and step is not None else None

    @property
    def untouched_run(self) -> WholeRun | None:
        """The baseline's planned run with steps as interleaved blocks have them; None where its parts are unknown."""
        run, step = self.facts.run, self.aa.side.step_seconds
        if run is None or step is None or self.planned_steps is None:
            return None
        return whole_run_seconds(run.model_copy(update={"step_seconds": step.p50}), float(self.planned_steps))

    def kept(self, strategy: str | None = None) -> list[Trial]:
        """Trials that were kept, all of them or those of one strategy, in their order."""
        kept = (trial for trial in self.trials if trial.verdict is Verdict.KEPT)
        return [trial for trial in kept if strategy in (None, trial.strategy)]

    def update(self, number: int, **fields: object) -> None:
        """Changes fields of a trial."""
        self.trials = [trial.model_copy(update=fields) if trial.id == number else trial for trial in self.trials]

    def amend(self, number: int, reason: str, **fields: object) -> None:
        """Adds to the reason of a trial, and changes its fields."""
        for trial in [one for one in self.trials if one.id == number]:
            self.update(number, reason=f"{trial.reason}; {reason}", **fields)

    def revise(self, strategy: str, verdict: Verdict, reason: str) -> None:
        """Gives the kept trial of a strategy another verdict, which the verification has found."""
        for trial in self.kept(strategy):
            self.update(trial.id, verdict=verdict, reason=f"{reason} (in the verification)")

    def measured_again(self, strategy: str, estimate: Estimate) -> None:
        """Gives the kept trial of a strategy the speedup that fresh processes showed; none for a combined candidate."""
        for trial in self.kept(strategy)[-1:]:
            if not trial.companions:
                self.update(trial.id, measured_again=estimate)

    def learn(self, members: Sequence[Member], seen: Comparison, known: int = 0) -> None:
        """Updates the beliefs about these changes by a comparison with and without them; so many pairs are known."""
        if pairs := seen.pairs[known:]:
            between = (seen.between_process_sd or 0.0) ** 2
            variance = (between + fmean(pair.standard_error**2 for pair in pairs)) / len(pairs)
            self.beliefs.saw(members, fmean(pair.log_ratio for pair in pairs), sqrt(variance))

    def with_fixed_costs(self, comparison: Comparison) -> Comparison:
        """The same with what either plan paid once wherever it was started: a later start finds it compiled."""
        known: dict[str, list[float]] = {}
        for seen in (*self.screenings, *self.comparisons.values()):
            for side in (seen.incumbent, seen.candidate):
                known.setdefault(side.plan.key, []).extend(side.fixed_seconds)

        def charged(side: Side) -> Side:
            paid = (*side.fixed_seconds, *known.get(side.plan.key, ()))
            return side.model_copy(update={"fixed_seconds": tuple(sorted(set(paid)))})

        sides = {"incumbent": charged(comparison.incumbent), "candidate": charged(comparison.candidate)}
        return comparison.model_copy(update=sides)

    @property
    def sides(self) -> list[Side]:
        """Both sides of every comparison so far."""
        control = [self.control.comparison] if self.control is not None else []
        every = (*control, *self.screenings, *self.comparisons.values(), *self.ablations)
        return [side for seen in every for side in (seen.incumbent, seen.candidate)]

    @property
    def noise_throughout(self) -> Noise:
        """The noise, with what other programs used during all comparisons: their load may begin after the control."""
        seen = [(side.foreign_cores, side.seconds) for side in self.sides if side.foreign_cores is not None]
        seconds = sum(seconds for _, seconds in seen)
        if not seconds:
            return self.noise
        return self.noise.model_copy(update={"foreign_cores": sum(used * each for used, each in seen) / seconds})

    def dearer_start(self, plan: Plan) -> float:
        """Seconds that a process of a plan takes to start beyond one of the baseline, as far as was seen; a plan that
        was never started takes as long as any part of it took at first, such as to compile."""
        paid: dict[str, list[float]] = {}
        plans: dict[str, Plan] = {}
        for side in self.sides:
            plans[side.plan.key] = side.plan
            paid.setdefault(side.plan.key, []).extend(side.fixed_seconds)
        usual = min(paid.get(self.baseline.key, ()), default=None)
        if usual is None:
            return 0.0
        if paid.get(plan.key):
            return max(paid[plan.key][-1] - usual, 0.0)
        parts = (key for key, other in plans.items() if all(change in plan.changes for change in other.changes))
        firsts = (paid[key][0] for key in parts if paid[key])
        return max(max(firsts, default=usual) - usual, 0.0)

    def first_time(self, changes: tuple[Change, ...]) -> bool:
        """Whether these changes were not yet tried on this incumbent; remembers them."""
        key = repr((self.incumbent.changes, changes))
        if key in self.tried:
            return False
        self.tried.add(key)
        return True

    def forget(self, changes: tuple[Change, ...]) -> None:
        """These changes were not tried after all."""
        self.tried.discard(repr((self.incumbent.changes, changes)))

    def all_trials(self) -> tuple[Trial, ...]:
        """Every trial by its number, and after them the notes on strategies that were never tried."""
        ran = {trial.strategy for trial in self.trials}
        rest = [trial for name, trial in self.skipped.items() if name not in ran]
        crashed, notes = [note for note in rest if note.id], [note for note in rest if not note.id]
        numbered = [note.model_copy(update={"id": n}) for n, note in enumerate(notes, self.numbers + 1)]
        trials = list(self.trials)
        for place, trial in enumerate(trials):
            believed = self.beliefs.believed(trial.strategy, trial.predicted)
            if not trial.companions and trial.throughput is not None and believed is not trial.predicted:
                trials[place] = trial.model_copy(update={"believed": believed})
        return (*sorted([*trials, *crashed], key=lambda trial: trial.id), *numbered)


def changes_text(changes: tuple[Change, ...]) -> str:
    """Changes as a user reads them: ``workers (num_workers=2) with threads (threads=1)``."""
    settings = ((c.strategy, ", ".join(f"{key}={value}" for key, value in c.setting.items())) for c in changes)
    return " with ".join(f"{name} ({setting})" if setting else name for name, setting in settings)
