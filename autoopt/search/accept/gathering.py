"""Evidence for the quality gate: probes and trainings, within the time there is. Each is durable, and made once."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from autoopt.errors import TrialFailed
from autoopt.records import JsonDict, Objective, Plan, Quality
from autoopt.records.facts import WorkloadFacts
from autoopt.records.messages import Block, Probe, samples_read
from autoopt.registry import Registry
from autoopt.search.accept.data import ProbeResult
from autoopt.search.accept.evidence import (
    BETWEEN,
    EvaluationRatios,
    Evidence,
    Judgement,
    RequiredRuns,
    TrainedPair,
    with_between,
)
from autoopt.search.accept.fidelity import Arrays
from autoopt.search.accept.gate import before_quality, judge, may_be_rounding, required_runs
from autoopt.search.accept.levels import level_of, same_metric
from autoopt.search.accept.losses import ROUNDING, SEEN_BY_PROBES
from autoopt.search.accept.time_to_target import by_whole_run, price_of
from autoopt.search.accept.trainings import Steps, Trainings
from autoopt.search.budget_allocation import PAST
from autoopt.search.compare.arena import Clock
from autoopt.search.compare.comparison import Comparison, LossPath, SideFailure
from autoopt.search.state import SearchState
from autoopt.search.trial_runner import PROBE, TrialRunner
from autoopt.setup import Setup
from autoopt.strategy import Risk

SECONDS = 4.0
"""That each part of a probe may take."""

SLOW_STEP = 0.3
"""Seconds of a step from which on a script's batches are not read on, for that trains."""

FEWEST_GRADIENTS, GRADIENTS, MOST_GRADIENTS = 4, 32, 256
"""Batches that gradients are compared of at each set of weights: of a step of whatever length; where those at all
sets take no longer than ``SECONDS``; and where only more of them would tell a bias."""

_MORE = 5
"""Parts of a probe, in seconds, that gradients at all sets of weights may take where more of them would tell a bias."""

_POINTS = 3
"""Sets of weights: of the start, the middle and the end of a training."""

PROBE_TIMEOUT = 600.0
UNPROBED = "the probe failed"
CANDIDATE = 5.0
"""A candidate may take this many times the seconds for as many steps: it may have to compile."""


class Probes:
    """Probes plans, and remembers.

    Args:
        directory: where arrays are written; made where it is missing.
        seconds: that each part of a probe may take.

    Attributes:
        weights: files of kept weights, start to end of a training of the baseline.
        step_seconds: of the baseline's step; None before it was measured.
    """

    def __init__(self, runner: TrialRunner, steps: Steps, directory: Path, seconds: float = SECONDS) -> None:
        self._runner, self._steps, self._directory, self._seconds = runner, steps, directory, seconds
        self.weights: tuple[str, ...] = ()
        self._own: tuple[str, ...] = ()
        self.step_seconds: float | None = None
        self._seen: dict[tuple[str, int, int], ProbeResult] = {}

    @property
    def drawn(self) -> bool:
        """Whether a model that was probed draws random numbers in training."""
        return any(any(seen.probe.dropouts) for seen in self._seen.values())

    def has(self, plan: Plan) -> bool:
        """Whether a plan was probed, at the weights that are kept now."""
        return any((key, count) == (plan.key, len(self.weights)) for key, count, _ in self._seen)

    def seconds(self, plan: Plan) -> float | None:
        """Seconds that the latest probe of a plan took, else the longest of others; None before there was one."""
        mine = [seen.probe.seconds for (key, _, _), seen in self._seen.items() if key == plan.key]
        return mine[-1] if mine else max((seen.probe.seconds for seen in self._seen.values()), default=None)

    def quality(
        self,
        risk: Risk,
        incumbent: Plan,
        candidate: Plan,
        facts: WorkloadFacts,
        objective: Objective,
        *,
        epsilon: float,
        rounded_off: float = ROUNDING[None],
        at_any_weights: bool = False,
        **asked: Any,
    ) -> Quality:
        """The quality level that the probes of both show (:func:`~autoopt.search.accept.levels.level_of`), of more
        batches where only those would tell a bias and there is time."""

        def level(gradients: int) -> Quality:
            both = self.pair(incumbent, candidate, facts, gradients=gradients, at_any_weights=at_any_weights, **asked)
            return level_of(
                risk, *both, objective,
                deterministic=facts.dataset.deterministic, epsilon=epsilon, rounded_off=rounded_off,
                planned_steps=facts.max_steps,
            )  # fmt: skip

        try:
            found = level(0)
            wanted, step, most = found.batches_wanted, self.step_seconds, 0
            if step is not None and (self.weights or facts.adapter == "script"):
                most = int(min(MOST_GRADIENTS, _MORE * self._seconds / _POINTS / step))
            if wanted is not None and not at_any_weights and wanted <= most:
                found = level(min(max(int(1.5 * wanted), GRADIENTS // 2), most))  # more, since it is an estimate
        except TrialFailed as failure:
            return Quality(method="not_tested", level="undecided", detail=f"{UNPROBED}: {failure.reason}")
        return found

    def pair(
        self,
        incumbent: Plan,
        candidate: Plan,
        facts: WorkloadFacts,
        *,
        until: int = 0,
        gradients: int = 0,
        at_any_weights: bool = False,
        other_side: Probes | None = None,
    ) -> tuple[ProbeResult, ProbeResult]:
        """The probes of both, the candidate's over as many steps as the incumbent's.

        Args:
            until: steps of the shortest training that quality asks for.
            gradients: batches at each set of weights; 0: as many as usual.
            at_any_weights: those that were made before the present weights were kept will do.
            other_side: asks the candidate, where it is not of the same workload.

        Raises:
            TrialFailed: a probe ended badly.
        """
        if at_any_weights and (earlier := self.earlier(incumbent, candidate)):
            return earlier
        step, half = self.step_seconds, GRADIENTS // 2
        most = half if step is None else min(GRADIENTS, SECONDS / _POINTS / step)
        if most < half <= _MORE * most:  # fewer hardly tell a bias: both would be probed again, from their starts
            most = half
        if facts.adapter == "script" and until:  # its own steps are used up, and it ends where there are no more
            most = min(most, until / 2 / _POINTS)
        usual = max(FEWEST_GRADIENTS, int(most))
        asked = {"until": until, "gradients": gradients or usual, "weights": self.weights}
        before, other = self._probe(incumbent, facts, asked, None), other_side or self
        other._own = self._own  # gradients are compared at the same weights
        return before, other._probe(candidate, facts, asked, before)

    def earlier(self, incumbent: Plan, candidate: Plan) -> tuple[ProbeResult, ProbeResult] | None:
        """Probes of both at the same weights, the latest that there are; None where there are none."""
        seen = list(self._seen.items())
        one, other = ({w: p for (key, w, _), p in seen if key == plan.key} for plan in (incumbent, candidate))
        latest = max(one.keys() & other.keys(), default=None)
        return (one[latest], other[latest]) if latest is not None else None

    def rounded(self, plan: Plan, size: float, steps: int) -> LossPath:
        """Losses of a plan whose weights begin a rounding apart: as far as its training may part by chance.

        Args:
            size: of the rounding, over each weight.
            steps: so many optimizer steps, at most those of a probe.

        Raises:
            TrialFailed: the trial ended badly.
        """
        steps = min(steps, SEEN_BY_PROBES)
        key = {"plan": plan.model_dump(), "rounded": size, "steps": steps}
        ask: dict[str, Any] = {"timeout": PROBE_TIMEOUT, "label": "rounded", "disturbed": size, "steps": steps}
        task = "autoopt.benchmark.tasks:probe_losses"
        block = self._steps.step("probe", key, lambda: Block.model_validate(self._runner.ask(plan, task, **ask)), Block)
        return LossPath.of(block.losses, block.first_step)

    def _probe(self, plan: Plan, facts: WorkloadFacts, asked: JsonDict, before: ProbeResult | None) -> ProbeResult:
        steps, samples = (before.probe.steps, samples_read(before.probe.epochs)) if before else (None, 0)
        place = (plan.key, len(self.weights), asked["gradients"])
        mine = self._seen.get(place)
        if mine is not None and mine.probe.steps >= (steps or 0):
            return mine
        self._directory.mkdir(parents=True, exist_ok=True)
        key = {"plan": plan.model_dump(), "steps": steps, "weights": len(self.weights), "gradients": asked["gradients"]}
        if before:
            asked = {**asked, "until": _trained_to(before.probe)}
        probe = self._steps.step("probe", key, lambda: self._measure(plan, facts, steps, samples, asked), Probe)
        if not (self._directory / probe.file).exists():  # a run that was moved without its probes
            probe = self._measure(plan, facts, steps, samples, asked)
        self._own = self._own or probe.kept  # where there are no others, the next plans are asked at these

        def again(**other: Any) -> Probe | None:
            once_more, read = {**asked, "until": _trained_to(probe), **other}, samples_read(probe.epochs)
            known, count = {**key, "steps": probe.steps, **other}, probe.steps
            measure = partial(self._measure, plan, facts, count, read, once_more)
            try:
                return self._steps.step("probe", known, measure, Probe)
            except TrialFailed:  # a training that ends at such weights
                return None

        @cache
        def elsewhere() -> Probe | None:
            return again(elsewhere=True)

        @cache
        def rounded(size: float, other_draws: bool) -> Arrays | None:
            found = again(disturbed=size, **({"draws": 1} if other_draws else {}))
            file = None if found is None else self._directory / found.file
            return Arrays.read(file) if file is not None and file.exists() else None

        arrays = Arrays.read(self._directory / probe.file)
        seen = self._seen[place] = ProbeResult(probe, arrays, elsewhere, rounded)
        return seen

    def _measure(self, plan: Plan, facts: WorkloadFacts, steps: int | None, samples: int, asked: JsonDict) -> Probe:
        """A probe in a process of its own; ``asked`` are the arguments that all probes of a pair have in common, such
        as ``weights`` (files of kept ones), ``elsewhere`` (far away from them), ``disturbed`` (so far away),
        ``draws`` (of another seed)."""
        number = len(list(self._directory.glob("probe-*.npz")))
        script = facts.adapter == "script"
        slow = script and (self.step_seconds or 0.0) > SLOW_STEP
        document = self._runner.ask(
            plan,
            PROBE,
            timeout=PROBE_TIMEOUT,
            label="probe",
            out=str(self._directory / f"probe-{number:03d}.npz"),
            steps=steps or SEEN_BY_PROBES,
            seconds=self._seconds if steps is None else CANDIDATE * self._seconds,
            batches=str(self._directory / "batches.pt") if facts.dataset.deterministic is False else "",
            reading=0.0 if slow else self._seconds,
            samples=0 if slow else samples,
            # where there was no time to train and to keep weights, there is as little for evaluations
            evaluates=bool(asked["weights"] or script),
            **{**asked, "weights": [path for path in asked["weights"] or self._own if Path(path).exists()]},
        )
        return Probe.model_validate(document)


def _trained_to(probe: Probe) -> int:
    """As far as a probe got: what another one trains after that has nothing to be compared with."""
    return probe.until if probe.trained >= probe.until else 0


_SUMS = 8 * ROUNDING[None]
"""Rounding of float32 sums that are added up in another order."""
_PRODUCTS: dict[str | None, float] = {"medium": ROUNDING["bfloat16"], "high": ROUNDING["float16"]}
"""Rounding of products, by torch's name for their precision."""


@dataclass
class Gate:
    """The quality gate of a run: gathers evidence, and asks for the verdict.

    Args:
        state: of the search, since the workload was described.
        seed: the first seed; further ones follow.
        probes: durable ones.
        accept_undecided: keeps what is not confirmed to train as well.
        evaluations: what was measured of the seconds of an evaluation under other settings of its loader.
        selected: plans that whole runs next to the untouched script have selected.
    """

    trainings: Trainings
    registry: Registry
    seed: int
    now: Clock
    probes: Probes
    accept_undecided: bool = False
    evaluations: EvaluationRatios = field(default_factory=EvaluationRatios)
    selected: set[str] = field(default_factory=set)
    state: SearchState = field(init=False)
    _prices: dict[tuple[str, str], float] = field(default_factory=dict, init=False)

    def decide(
        self, plan: Plan, comparison: Comparison, *, deadline: float, number: int, alpha_accept: float
    ) -> Judgement:
        """The verdict on a candidate; trains it and the baseline as long as that is wanted and there is time.

        Args:
            deadline: on the run's clock.
            number: of the trial, which names its trainings.
            alpha_accept: the level at which a change of training is kept.
        """
        incumbent = comparison.incumbent.plan
        evidence = self.evidence(plan, incumbent)
        otherwise = evidence.risk.trains_otherwise
        if not otherwise:
            comparison = by_whole_run(comparison, evidence)
        level = None if before_quality(comparison, evidence) else self.quality(plan, incumbent)
        known, short = {"level": level, "alpha_accept": alpha_accept}, ""
        settled = level is not None and level.passed is not None  # the final plan is trained anyway
        while otherwise or not settled:
            evidence = self.evidence(plan, incumbent).model_copy(update=known)
            wanted = required_runs(comparison, evidence)
            short = self._gather(wanted, plan, incumbent, comparison, deadline, number) if wanted else ""
            if not wanted or short or self.trainings.failure(plan):
                break
        evidence = self.evidence(plan, incumbent).model_copy(update=known)
        steps = may_be_rounding(comparison, evidence)
        if steps:  # the incumbent from weights that differ by what the plan rounds off
            with suppress(TrialFailed):
                rounded = self.probes.rounded(incumbent, self.rounded_off(plan), steps)
                evidence = evidence.model_copy(update={"rounded": rounded})
        judged = judge(comparison, evidence)
        if short and judged.quality.passed is None and not evidence.failure:
            reported = {"detail": f"{judged.quality.detail}; {short}"}
            reason = f"{judged.reason}; {short}"
            judged = judged.model_copy(update={"reason": reason, "quality": judged.quality.model_copy(update=reported)})
        return judged

    def quality(self, plan: Plan, incumbent: Plan, *, hurried: bool = False) -> Quality | None:
        """The quality level of a plan next to another one, by probes alone: seconds, and no training.

        ``passed`` is True with the level ``identical`` or ``equivalent``, False where it is certainly another training,
        and None with the level ``undecided`` where only trainings can tell. The incumbent is probed once. None where
        the plan trains otherwise by its risk class. ``hurried``: older probes will do where there is no time at weights
        that were kept since.
        """
        risk = self.risk_over(plan, incumbent)
        if risk.trains_otherwise:
            return None
        facts, runs = self.state.facts, self.trainings.of(self.state.baseline)
        until = min([run.steps for run in runs] or [facts.max_steps or 0])
        quality = self.probes.quality(
            risk, incumbent, plan, facts, self.state.objective,
            epsilon=self.rounding(incumbent), rounded_off=self.rounded_off(plan), until=until,
            at_any_weights=hurried or risk is Risk.EXACT,
        )  # fmt: skip
        self._prices[plan.key, incumbent.key] = price_of(quality)
        return quality

    def same_metric(self, plan: Plan, incumbent: Plan) -> bool | None:
        """Whether probes have seen the same metric of both, of the same weights and samples; None without both."""
        both = self.probes.earlier(incumbent, plan)
        return same_metric(both[0].probe, both[1].probe) if both is not None else None

    def step_at_best(self, plan: Plan, incumbent: Plan) -> float | None:
        """The log speedup of a step that the steps of both probes leave possible; None where they were not timed.

        What computes was seen. What prepares batches otherwise may have them all at once later on, as a cache does that
        is filled in the first epoch.
        """
        both = self.probes.earlier(incumbent, plan)
        if both is None:
            return None
        one, other = (each.probe for each in both)
        if not one.computing or not other.computing or one.waiting is None:
            return None
        waiting = one.waiting if self.same_data(plan, incumbent) else 0.0
        return math.log((one.waiting + one.computing) / (waiting + other.computing))

    def same_data(self, plan: Plan, incumbent: Plan) -> bool:
        """Whether both make and deliver their batches alike."""
        one, other = self.registry.fold(plan), self.registry.fold(incumbent)
        return (one.loader, one.dataset, one.sampler) == (other.loader, other.dataset, other.sampler)

    def price(self, plan: Plan, incumbent: Plan) -> float:
        """The factor on the steps that the rounding of a plan costs, as far as probes were made; of a combined
        candidate that was not probed the product of its changes' own."""
        known = self._prices.get((plan.key, incumbent.key))
        if known is not None:
            return known
        new = [incumbent.with_change(change) for change in plan.changes if change not in incumbent.changes]
        return math.prod(self._prices.get((one.key, incumbent.key), 1.0) for one in new)

    def unprobed(self, plan: Plan, incumbent: Plan) -> list[Plan]:
        """Those of both whose probes the quality level of the plan next to the incumbent still takes."""
        risk = self.risk_over(plan, incumbent)
        if risk.trains_otherwise:
            return []
        if risk is Risk.EXACT and self.probes.earlier(incumbent, plan) is not None:
            return []
        return [one for one in (incumbent, plan) if not self.probes.has(one)]

    def rounded_off(self, plan: Plan) -> float:
        """What a plan's arithmetic rounds off, relative to each weight."""
        precision = self.registry.fold(plan).precision
        return ROUNDING[precision.dtype] if precision.dtype else _PRODUCTS.get(precision.matmul, _SUMS)

    def risk_over(self, plan: Plan, incumbent: Plan) -> Risk:
        """The class of the riskiest change that the plan has and the incumbent has not."""
        new = [change for change in plan.changes if change not in incumbent.changes]
        return max((self.registry[change.strategy].risk for change in new), key=lambda r: r.rank, default=Risk.EXACT)

    def rounding(self, plan: Plan) -> float:
        """Relative error of one operation in the precision that a plan computes in."""
        return ROUNDING.get(self.registry.fold(plan).precision.dtype, ROUNDING[None])

    def trained_pairs(self, plan: Plan) -> tuple[TrainedPair, ...]:
        """The trainings of a plan alternately with the baseline's: nothing was selected by their seconds. Of a plan
        that trains otherwise these are whole runs by which it was not selected."""
        if not self.risk_over(plan, self.state.baseline).trains_otherwise:
            return self.trainings.pairs(self.state.baseline, plan)
        return () if plan.key in self.selected else tuple(self.whole_pairs(plan))

    def whole_pairs(self, plan: Plan) -> list[TrainedPair]:
        """Whole runs of the untouched script with runs of this plan's patch."""
        return [pair for pair in self.trainings.pairs(self.state.baseline, plan) if pair.whole]

    def evidence(self, plan: Plan, incumbent: Plan) -> Evidence:
        """Trainings and facts of these plans so far."""
        state, facts = self.state, self.state.facts
        failure, differ = self.trainings.failure(plan), self.risk_over(incumbent, Plan()).trains_otherwise
        pairs, ratio = self.trainings.pairs(incumbent, plan), self.evaluations.ratio
        # an incumbent that takes the baseline's steps was shown to train as it does, and stands for it
        reference = incumbent if pairs and not differ else state.baseline
        before, after = self.registry.fold(incumbent), self.registry.fold(plan)
        return Evidence(
            objective=state.objective,
            noise=state.noise,
            risk=self.risk_over(plan, incumbent),
            baseline_runs=self.trainings.of(reference),
            incumbent_runs=self.trainings.of(incumbent) if differ else (),
            candidate_runs=self.trainings.of(plan),
            interleaved_pairs=pairs,
            deterministic=facts.dataset.deterministic,
            drawn=self.probes.drawn or facts.model.draws,
            epsilon=self.rounding(incumbent),
            accept_undecided=self.accept_undecided,
            planned_steps=facts.max_steps,
            run=with_between(facts.run, {name: ratio(name, before, Setup()) or 1.0 for name in BETWEEN}),
            evaluation_ratio=ratio("evaluate", after, before),
            checkpoint_ratio=ratio("checkpoint", after, before),
            memory_limit_bytes=state.memory_limit_bytes,
            failure=SideFailure.of("candidate", failure) if failure else None,
        )

    def _gather(
        self, wanted: RequiredRuns, plan: Plan, incumbent: Plan, comparison: Comparison, deadline: float, number: int
    ) -> str:
        """Trains a plan alternately with what it is compared with, from the seeds that are wanted.

        What takes other steps is compared with the incumbent, by seconds to the target. What takes the same ones is
        compared with the baseline; these trainings are those of the verification, too, if nothing else is kept, and
        like those they go on past the target, where there is time.

        Returns:
            What they would take, in words, where no time is left for all of them: fewer confirm nothing. Else
                empty.
        """
        trainings, baseline, estimate = self.trainings, self.state.baseline, comparison.estimate
        low, speedup = (max(estimate.low, 1.0), estimate.value) if estimate else (1.0, 1.0)
        differ = self.risk_over(incumbent, Plan()).trains_otherwise
        otherwise = self.risk_over(plan, incumbent).trains_otherwise
        reference = incumbent if differ or otherwise else baseline
        known = {pair.baseline.seed for pair in trainings.pairs(reference, plan)}
        have, seeds = len(known), [self.seed + n for n in range(1, wanted.seeds + 1)]
        missing = [seed for seed in seeds if seed not in known][: wanted.seeds - have]
        # the metric of another training is held against the baseline's own
        alone = [seed for seed in missing if differ and otherwise and not trainings.has(baseline, seed)]
        pairs = max(len(missing), wanted.planned - have)
        seconds = trainings.expected_seconds * (len(alone) + pairs * (1 + 1 / low))
        if not missing or trainings.failure(plan) or self.now() + seconds > deadline:
            return f"{have + pairs} seeds would decide it, whose trainings take about {seconds:.0f} s more"
        beyond = PAST if not otherwise and self.now() + (1 + PAST) * seconds <= deadline else 0.0
        try:
            for seed in alone:
                trainings.get(baseline, seed, purpose=f"baseline seed {seed}")
            for seed in missing:
                purpose = f"trial {number} seed {seed}"
                trainings.interleaved(
                    reference, plan, seed, purpose=purpose, speedup=speedup, beyond=beyond, remember=True
                )
        except TrialFailed as failure:
            return f"its trainings failed: {failure.reason}"  # the judge is reported through the evidence
        return ""
