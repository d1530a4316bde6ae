"""The gathering of what the quality gate decides on: probes and trainings, within the time there is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autoopt.errors import TrialFailed
from autoopt.records import Noise, Objective, Plan, Quality
from autoopt.records.facts import WorkloadFacts
from autoopt.registry import Registry
from autoopt.search.accept.evidence import EvaluationRatios, Evidence, Judgement, RequiredRuns, TrainedPair
from autoopt.search.accept.gate import before_quality, judge, may_be_rounding, required_runs
from autoopt.search.accept.levels import level_of
from autoopt.search.accept.losses import ROUNDING
from autoopt.search.accept.metric import PAST
from autoopt.search.accept.probes import Probes
from autoopt.search.accept.time_to_target import by_whole_run, price_of
from autoopt.search.accept.trainings import Clock, Trainings
from autoopt.search.compare.comparison import Comparison, LossPath, SideFailure
from autoopt.search.compare.sequential_test import ALPHA
from autoopt.setup import Setup
from autoopt.strategy import Risk

_SUMS = 8 * ROUNDING[None]
"""Rounding of float32 sums that are added up in another order."""
_PRODUCTS: dict[str | None, float] = {"medium": ROUNDING["bfloat16"], "high": ROUNDING["float16"]}
"""Rounding of products, by torch's name for their precision."""


@dataclass
class Gate:
    """The quality gate of a run: gathers evidence, and asks for the verdict.

    Args:
        trainings: durable trainings.
        registry: knows the risk and the setup of a plan.
        seed: the first seed; further ones follow.
        now: the run's clock.
        baseline: the plan that everything is compared with.
        memory_limit_bytes: of the device; None where it is not known.
        probes: durable probes; None where there are none, which leaves quality to trainings.
        accept_undecided: keeps what is not confirmed to train as well.
        evaluations: what was measured of the seconds of an evaluation under other settings of its loader.
    """

    trainings: Trainings
    registry: Registry
    seed: int
    now: Clock
    baseline: Plan = field(default_factory=Plan)
    memory_limit_bytes: int | None = None
    probes: Probes | None = None
    accept_undecided: bool = False
    evaluations: EvaluationRatios = field(default_factory=EvaluationRatios)
    _prices: dict[tuple[str, str], float] = field(default_factory=dict, init=False)

    def decide(
        self,
        plan: Plan,
        comparison: Comparison,
        facts: WorkloadFacts,
        objective: Objective,
        noise: Noise,
        *,
        deadline: float,
        number: int,
        alpha_accept: float = ALPHA,
    ) -> Judgement:
        """The verdict on a candidate; trains it and the baseline as long as that is wanted and there is time.

        Args:
            plan: the candidate.
            deadline: on the run's clock.
            number: of the trial, which names its trainings.
            alpha_accept: the level at which a change of training is kept.
        """
        incumbent = comparison.incumbent.plan
        evidence = self.evidence(plan, incumbent, facts)
        otherwise = evidence.risk.trains_otherwise
        if not otherwise:
            comparison = by_whole_run(comparison, evidence, objective)
        level = None if before_quality(comparison, evidence) else self.quality(plan, incumbent, facts, objective)
        known, short = {"level": level, "alpha_accept": alpha_accept}, ""
        settled = level is not None and level.passed is not None  # the final plan is trained anyway
        while otherwise or not settled:
            evidence = self.evidence(plan, incumbent, facts).model_copy(update=known)
            wanted = required_runs(comparison, evidence, objective, noise)
            short = self._gather(wanted, plan, incumbent, comparison, deadline, number) if wanted else ""
            if not wanted or short or self.trainings.failure(plan):
                break
        evidence = self.evidence(plan, incumbent, facts).model_copy(update=known)
        steps = may_be_rounding(comparison, evidence)
        if steps:
            evidence = evidence.model_copy(update={"rounded": self._rounded(incumbent, plan, steps)})
        judged = judge(comparison, evidence, objective, noise)
        if short and judged.quality.passed is None and not evidence.failure:
            told = {"detail": f"{judged.quality.detail}; {short}"}
            reason = f"{judged.reason}; {short}"
            judged = judged.model_copy(update={"reason": reason, "quality": judged.quality.model_copy(update=told)})
        return judged

    def screened(
        self, plan: Plan, comparison: Comparison, facts: WorkloadFacts, objective: Objective, noise: Noise
    ) -> Judgement:
        """The verdict by what is known already: nothing is probed or trained for a screening, which claims nothing."""
        return judge(comparison, self.evidence(plan, comparison.incumbent.plan, facts), objective, noise)

    def quality(
        self, plan: Plan, incumbent: Plan, facts: WorkloadFacts, objective: Objective, *, hurried: bool = False
    ) -> Quality | None:
        """The quality level of a plan next to another one, by probes alone: seconds, and no training.

        ``passed`` is True with the level ``identical`` or ``equivalent``, False where it is certainly another
        training, and None with the level ``undecided`` where only trainings can tell. The incumbent is probed once.

        Args:
            hurried: there is no time for probes at weights that were kept since the last ones, which will do.

        Returns:
            None where the plan trains otherwise by its risk class, which a probe says nothing of.
        """
        risk, probes = self.risk_over(plan, incumbent), self.probes
        if probes is None or risk.trains_otherwise:
            return None
        any_weights = hurried or risk is Risk.EXACT
        until = min([run.steps for run in self.trainings.of(self.baseline)] or [facts.max_steps or 0])

        def asked(gradients: int) -> Quality:
            both = probes.pair(incumbent, plan, facts, until=until, gradients=gradients, at_any_weights=any_weights)
            return level_of(
                risk,
                *both,
                objective,
                deterministic=facts.dataset.deterministic,
                epsilon=self.rounding(incumbent),
                planned_steps=facts.max_steps,
            )

        try:
            quality, most = asked(0), probes.affordable(facts)
            wanted = quality.batches_wanted
            if wanted is not None and not any_weights and wanted <= most:
                quality = asked(min(int(1.5 * wanted), most))  # half again: it is an estimate
        except TrialFailed as failure:
            return Quality(method="not_tested", level="undecided", detail=f"the probe failed: {failure.reason}")
        self._prices[plan.key, incumbent.key] = price_of(quality)
        return quality

    def price(self, plan: Plan, incumbent: Plan) -> float:
        """The factor on the steps that the rounding of a plan costs, as far as probes were made.

        Of a combined candidate that was not probed it is the product of its changes' own.
        """
        known = self._prices.get((plan.key, incumbent.key))
        if known is not None:
            return known
        new = [incumbent.with_change(change) for change in plan.changes if change not in incumbent.changes]
        return math.prod(self._prices.get((one.key, incumbent.key), 1.0) for one in new)

    def probes_due(self, plan: Plan, incumbent: Plan) -> int:
        """How many probes the quality level of a plan next to another one still costs."""
        if self.probes is None:
            return 0
        exact = self.risk_over(plan, incumbent) is Risk.EXACT
        if exact and self.probes.earlier(incumbent, plan) is not None:
            return 0
        return sum(not self.probes.has(one) for one in (incumbent, plan))

    def _rounded(self, incumbent: Plan, plan: Plan, steps: int) -> LossPath:
        """Losses of the incumbent from weights that differ by what the plan's arithmetic rounds off."""
        precision = self.registry.fold(plan).precision
        size = ROUNDING[precision.dtype] if precision.dtype else _PRODUCTS.get(precision.matmul, _SUMS)
        try:
            return self.probes.rounded(incumbent, size, steps) if self.probes is not None else LossPath()
        except TrialFailed:
            return LossPath()

    def risk_over(self, plan: Plan, incumbent: Plan) -> Risk:
        """The class of the riskiest change that the plan has and the incumbent has not."""
        new = [change for change in plan.changes if change not in incumbent.changes]
        return max((self.registry[change.strategy].risk for change in new), key=lambda r: r.rank, default=Risk.EXACT)

    def rounding(self, plan: Plan) -> float:
        """Relative error of one operation in the precision that a plan computes in."""
        return ROUNDING.get(self.registry.fold(plan).precision.dtype, ROUNDING[None])

    def in_turns(self, plan: Plan) -> tuple[TrainedPair, ...]:
        """The trainings of a plan alternately with the baseline's: nothing was selected by their seconds.

        Empty for a plan that trains otherwise, which was selected by its trainings.
        """
        if self.risk_over(plan, self.baseline).trains_otherwise:
            return ()
        return self.trainings.pairs(self.baseline, plan)

    def evidence(self, plan: Plan, incumbent: Plan, facts: WorkloadFacts) -> Evidence:
        """Trainings and facts of these plans so far."""
        failure, differ = self.trainings.failure(plan), self._steps_differ(incumbent)
        beside, registry = self.trainings.pairs(incumbent, plan), self.registry
        # an incumbent that takes the baseline's steps was shown to train as it does, and stands for it
        reference = incumbent if beside and not differ else self.baseline
        before = registry.fold(incumbent)
        return Evidence(
            risk=self.risk_over(plan, incumbent),
            baseline_runs=self.trainings.of(reference),
            incumbent_runs=self.trainings.of(incumbent) if differ else (),
            candidate_runs=self.trainings.of(plan),
            in_turns=beside,
            deterministic=facts.dataset.deterministic,
            epsilon=self.rounding(incumbent),
            accept_undecided=self.accept_undecided,
            planned_steps=facts.max_steps,
            run=facts.run,
            evaluation_of_incumbent=self.evaluations.ratio("evaluate", before, Setup()) or 1.0,
            evaluation_ratio=self.evaluations.ratio("evaluate", registry.fold(plan), before),
            checkpoint_of_incumbent=self.evaluations.ratio("checkpoint", before, Setup()) or 1.0,
            checkpoint_ratio=self.evaluations.ratio("checkpoint", registry.fold(plan), before),
            memory_limit_bytes=self.memory_limit_bytes,
            failure=SideFailure(
                side="candidate",
                kind=failure.kind,
                message=failure.message,
                where=failure.where,
                detail=failure.detail,
            )
            if failure
            else None,
        )

    def _steps_differ(self, plan: Plan) -> bool:
        """Whether a plan takes other steps than the baseline, by the class of its changes."""
        return any(self.registry[c.strategy].risk.trains_otherwise for c in plan.changes)

    def _gather(
        self, wanted: RequiredRuns, plan: Plan, incumbent: Plan, comparison: Comparison, deadline: float, number: int
    ) -> str:
        """Trains a plan alternately with what it is compared with, from the seeds that are wanted.

        What takes other steps is compared with the incumbent, by seconds to the target. What takes the same ones is
        compared with the baseline; these trainings are those of the verification, too, if nothing else is kept, and
        like those they go on past the target, where there is time.

        Returns:
            What they would take, in words, where no time is left for all of them: fewer confirm nothing. Else empty.
        """
        trainings, estimate = self.trainings, comparison.estimate
        low, speedup = (max(estimate.low, 1.0), estimate.value) if estimate else (1.0, 1.0)
        differ, otherwise = self._steps_differ(incumbent), self.risk_over(plan, incumbent).trains_otherwise
        beside = incumbent if differ or otherwise else self.baseline
        have = len(trainings.pairs(beside, plan))
        seeds = [self.seed + n for n in range(1, wanted.seeds + 1)]
        missing = [seed for seed in seeds if trainings.pair(beside, plan, seed) is None][: wanted.seeds - have]
        # the metric of another training is held against the baseline's own
        alone = [seed for seed in missing if differ and otherwise and not trainings.has(self.baseline, seed)]
        pairs = max(len(missing), wanted.planned - have)
        seconds = trainings.expected_seconds * (len(alone) + pairs * (1 + 1 / low))
        if not missing or trainings.failure(plan) or self.now() + seconds > deadline:
            return f"{have + pairs} seeds would decide it, whose trainings take about {seconds:.0f} s more"
        beyond = PAST if not otherwise and self.now() + (1 + PAST) * seconds <= deadline else 0.0
        try:
            for seed in alone:
                trainings.get(self.baseline, seed, purpose=f"baseline seed {seed}")
            for seed in missing:
                purpose = f"trial {number} seed {seed}"
                trainings.in_turns(beside, plan, seed, purpose=purpose, speedup=speedup, beyond=beyond, remember=True)
        except TrialFailed as failure:
            return f"its trainings failed: {failure.reason}"  # the judge is reported through the evidence
        return ""
