"""benchmark → simplify → optimize → repeat.

Everything that is measured goes through ``run.step``, so that a resumed run executes this same code
and is answered from its journal until it comes to what was not measured yet.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from autoopt.errors import TrialFailed
from autoopt.events import (
    BaselineMeasured,
    EnvironmentRead,
    Kept,
    NoiseMeasured,
    Phase,
    PhaseStarted,
    RoundMeasured,
    Stopped,
    TrialEnded,
    Verified,
    Warned,
)
from autoopt.measurements import TrainingRun
from autoopt.optimize.ablate import ablate, alone
from autoopt.optimize.baseline import AAControl, measure_baseline, measure_noise, objective_of, shares_after
from autoopt.optimize.bench import BaselineFailed
from autoopt.optimize.calm import calmest, disturbance
from autoopt.optimize.configuration import configuration
from autoopt.optimize.examine import Examined, Inspection, examine, inspect
from autoopt.optimize.fit import Fitting
from autoopt.optimize.headroom import memory_limit
from autoopt.optimize.planner import Agenda, Proposal, agenda, fitting
from autoopt.optimize.profile import look
from autoopt.optimize.search import StrategySearch, Tools
from autoopt.optimize.state import Search
from autoopt.optimize.verify import Verification, verify
from autoopt.options import Options
from autoopt.records import (
    Ablation,
    Advice,
    Configuration,
    Quality,
    Round,
    Speedup,
    Stop,
    StopReason,
    Verdict,
)
from autoopt.simplify.pipeline import Pipeline

EXAMINE_SHARE = 0.03
TRIAL_COMPARISONS = 1.5
"""Trying a strategy takes about so many short comparisons: settings, companions and trainings included."""


@dataclass
class Outcome:
    """What the loop found; ``autoopt.document`` makes result.json of it."""

    search: Search
    baseline: Configuration
    best: Configuration
    speedup: Speedup
    stop: Stop
    quality: Quality | None = None
    ablation: list[Ablation] = field(default_factory=list)
    advice: tuple[Advice, ...] = ()
    warnings: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


class Loop:
    """One run of the loop.

    Args:
        tools: trials, journal, clock, announcements.
        options: what the user asked for.
    """

    def __init__(self, tools: Tools, options: Options) -> None:
        self.tools, self.options = tools, options
        self.warnings: list[str] = []
        self.missing: list[str] = []
        self.advice: tuple[Advice, ...] = ()
        self.examined: dict[str, Examined] = {}
        self.seen_bottleneck: dict[str, str | None] = {}
        self.search: Search | None = None
        self.control: AAControl | None = None
        self.trained: TrainingRun | None = None

    def run(self) -> Outcome:
        """Benchmark, then rounds of simplify and optimize, then verify and ablate.

        Raises:
            WorkloadError: the baseline fails.
        """
        search = self._benchmark()
        stop = self._rounds(search)
        verification, rows = self._conclude(search)
        outcome = self._outcome(search, verification, stop, rows)
        self.tools.announce(Verified(at=self.tools.now(), best=outcome.best, speedup=verification.speedup))
        self.tools.announce(Stopped(at=self.tools.now(), stop=stop))
        return outcome

    def partial(self) -> Outcome | None:
        """What is known when the run is broken off; None before the workload was built.

        Nothing that was not verified is passed on as the best: the best is the baseline.
        """
        if self.search is None:
            return None
        stop = Stop(reason=StopReason.INTERRUPTED, detail="stopped at once; nothing was verified")
        if self.search.found:
            names = ", ".join(change.strategy for change in self.search.found)
            self._warn(f"broken off before it was verified: {names}; autoopt resume goes on from here")
        self.search.incumbent = self.search.baseline
        return self._outcome(self.search, Verification(speedup=Speedup(detail="broken off")), stop, [])

    def _outcome(self, search: Search, verification: Verification, stop: Stop, rows: list[Ablation]) -> Outcome:
        baseline = self._baseline(search, verification)
        return Outcome(
            search=search,
            baseline=baseline,
            best=self._best(search, verification) if search.incumbent != search.baseline else baseline,
            speedup=verification.speedup,
            quality=verification.quality,
            stop=stop,
            ablation=rows,
            advice=self.advice,
            warnings=self.warnings,
            missing=self.missing,
        )

    # benchmark

    def _benchmark(self) -> Search:
        self._phase("benchmark", 0)
        inspection = self._inspect()
        self.tools.announce(EnvironmentRead(at=self.tools.now(), environment=inspection.environment))
        self.search = search = Search(
            facts=inspection.facts,
            environment=inspection.environment,
            objective=objective_of(inspection.facts, self.options),
            planned_steps=inspection.facts.max_steps,
        )
        self.tools.gate.memory_limit_bytes = memory_limit(search.environment)
        control, trained = self._reference(search)
        self.tools.shares = shares_after(self.tools, control, trained)
        baseline = configuration(
            search.baseline, search.environment, side=control.side, runs=(trained,), price_per_hour=self.options.price
        )
        self.tools.announce(BaselineMeasured(at=self.tools.now(), baseline=baseline))
        return search

    def _reference(self, search: Search) -> tuple[AAControl, TrainingRun]:
        """The baseline as it is; where that runs out of memory, the least costly plan under which it does not."""
        fitting: Fitting | None = None
        while True:
            try:
                return self._measure_baseline(search)
            except BaselineFailed as failed:
                fitting = fitting or Fitting(self.tools, search)
                told = fitting.next(failed)
            self._warn(told)

    def _measure_baseline(self, search: Search) -> tuple[AAControl, TrainingRun]:
        self.control = control = measure_noise(self.tools, search)
        search.noise = control.noise
        self._warn(*control.doubts)
        self.tools.announce(NoiseMeasured(at=self.tools.now(), noise=control.noise))
        self.trained, notes = measure_baseline(self.tools, search, control)
        self._warn(*notes)
        return control, self.trained

    def _inspect(self) -> Inspection:
        try:
            return self.tools.run.step("inspect", {}, lambda: inspect(self.tools.bench), Inspection)
        except TrialFailed as failure:
            raise BaselineFailed(failure, "while it was built") from failure

    # simplify

    def _simplify(self, search: Search) -> tuple[Round, Pipeline | None]:
        index = len(search.rounds)
        self._phase("simplify", index)
        seconds = min(max(EXAMINE_SHARE * self.options.budget_seconds, 5.0), 60.0)
        trace = str(self.tools.run.directory.traces) if index == 0 else None
        try:
            examined = self.tools.run.step(
                "examine",
                {"round": index, "plan": search.incumbent.model_dump(mode="json")},
                lambda: calmest(
                    lambda: examine(
                        self.tools.bench, search.incumbent, seconds=seconds, advise=index == 0, trace=trace
                    ),
                    self._usual_step(search),
                ),
                Examined,
            )
        except TrialFailed as failure:
            if search.incumbent == search.baseline:
                raise BaselineFailed(failure, "while its stages were measured") from failure
            raise
        return self._analyse(search, examined, index)

    def _analyse(self, search: Search, examined: Examined, index: int) -> tuple[Round, Pipeline | None]:
        self.examined[examined.plan.key] = examined
        self.missing += [text for text in examined.missing if text not in self.missing]
        self._warn(*examined.doubts)
        search.facts = search.facts.model_copy(update={"inspected": examined.inspected})
        if index == 0:
            self.advice = examined.advice
        inspection = Inspection(facts=search.facts, environment=search.environment)
        round_, pipeline = look(inspection, examined, index)
        search.rounds.append(round_)
        self.tools.announce(RoundMeasured(at=self.tools.now(), round=round_))
        disturbed = disturbance(examined, self._usual_step(search))
        if disturbed:
            self._warn(f"round {index}: {disturbed}; its predictions exclude nothing: measure again on a quiet machine")
        return round_, None if disturbed else pipeline

    def _usual_step(self, search: Search) -> float | None:
        """Seconds of the incumbent's step as the last comparison had them: of its typical block."""
        comparison = search.comparisons.get(int(search.base)) if search.base.isdigit() else None
        side = comparison.candidate if comparison else self.control.side if self.control else None
        return statistics.median(side.block_step_seconds) if side and side.block_step_seconds else None

    # optimize

    def _rounds(self, search: Search) -> Stop:
        while True:
            stopped = self._interrupted_or_spent(search)
            if stopped:
                return stopped
            try:
                round_, pipeline = self._simplify(search)
            except TrialFailed as failure:
                return Stop(
                    reason=StopReason.EXHAUSTED, detail=f"the incumbent could not be profiled: {failure.reason}"
                )
            plan = self._agenda(search, pipeline)
            if not self._try_all(search, plan, round_, pipeline):
                return self._interrupted_or_spent(search) or _stop(round_, plan, self._threshold(search))

    def _threshold(self, search: Search) -> float:
        """The speedup that a prediction must allow: what is worth having, and what could be told from noise."""
        return 1 + max(self.tools.min_gain, search.noise.floor or 0.0)

    def _agenda(self, search: Search, pipeline: Pipeline | None) -> Agenda:
        self._phase("optimize", len(search.rounds) - 1)
        left = self._deadline(search) - self.tools.now()
        registry = self.tools.bench.registry
        plan = agenda(registry, search.case(registry, pipeline, left), self.tools.choice, self._threshold(search))
        for refusal in plan.refusals:
            known = search.refusals.get(refusal.strategy.name)
            trial = search.refuse(
                refusal.strategy,
                refusal.verdict,
                refusal.reason,
                setting=refusal.setting,
                predicted=refusal.predicted,
            )
            if known is None:
                self.tools.announce(TrialEnded(at=self.tools.now(), trial=trial))
        return plan

    def _try_all(self, search: Search, plan: Agenda, round_: Round, pipeline: Pipeline | None) -> bool:
        """Tries proposals until one is kept (True: the bottleneck has moved, profile again) or none is left."""
        coming = tuple(proposal for proposal in plan.proposals if self._comes_back(proposal, round_))
        left = self._deadline(search) - self.tools.now()
        chosen = fitting(coming, left, TRIAL_COMPARISONS * self.tools.shares.comparison)
        for proposal in (p for p in coming if p not in chosen):
            self._no_time(search, proposal)
        for index, proposal in enumerate(chosen):
            if self._interrupted_or_spent(search):
                return False
            self.seen_bottleneck[proposal.strategy.name] = round_.bottleneck
            deadline = self._deadline(search)
            registry = self.tools.bench.registry
            case = search.case(registry, pipeline, deadline - self.tools.now())
            if StrategySearch(self.tools, search, proposal, case, deadline, len(chosen) - index - 1).run():
                self._announce_kept(search)
                return True
        return False

    def _no_time(self, search: Search, proposal: Proposal) -> None:
        """Notes that others promised more; a later round may still have time for it."""
        name = proposal.strategy.name
        if name not in {trial.strategy for trial in search.trials}:
            reason = "no time for it in this budget: others promise more"
            search.refuse(proposal.strategy, Verdict.NOT_TRIED, reason, predicted=proposal.predicted)

    def _comes_back(self, proposal: Proposal, round_: Round) -> bool:
        """A strategy that was tried comes back only under another bottleneck."""
        name = proposal.strategy.name
        return name not in self.seen_bottleneck or self.seen_bottleneck[name] != round_.bottleneck

    def _announce_kept(self, search: Search) -> None:
        trial = next(t for t in reversed(search.trials) if str(t.id) == search.base)
        side = search.comparisons[trial.id].candidate
        best = configuration(search.incumbent, search.environment, side=side)
        speedup = Speedup(throughput=trial.throughput, detail="over the incumbent before it")
        self.tools.announce(Kept(at=self.tools.now(), plan=search.incumbent, best=best, speedup=speedup))

    # ablate and verify

    def _conclude(self, search: Search) -> tuple[Verification, list[Ablation]]:
        self._phase("ablate", len(search.rounds))
        end = self.options.budget_seconds
        reserve = self.tools.shares.verification() + self.tools.shares.comparison
        rows, dropped = ablate(self.tools, search, end - reserve)
        self._warn(*dropped)
        self._phase("verify", len(search.rounds))
        verification = verify(self.tools, search, self._aa, end)
        self._warn(*verification.notes)
        kept = {change.strategy for change in search.found}
        rows = [row for row in rows if row.strategy in kept and not verification.fell_back]
        return verification, alone(self.tools, search, rows, end)

    def _best(self, search: Search, verification: Verification) -> Configuration:
        return configuration(
            search.incumbent,
            search.environment,
            examined=self.examined.get(search.incumbent.key),
            side=verification.best_side,
            runs=verification.best_runs,
            time_to_target=verification.best_seconds,
            modelled=verification.modelled,
            price_per_hour=self.options.price,
        )

    def _baseline(self, search: Search, verification: Verification) -> Configuration:
        trained = (self.trained,) if self.trained else ()
        return configuration(
            search.baseline,
            search.environment,
            examined=self.examined.get(search.baseline.key),
            side=verification.baseline_side or (self.control.side if self.control else None),
            runs=verification.baseline_runs or trained,
            time_to_target=verification.baseline_seconds,
            modelled=verification.modelled,
            price_per_hour=self.options.price,
        )

    # the rest

    @property
    def _aa(self) -> AAControl:
        assert self.control is not None, "the A/A control comes first"
        return self.control

    def _deadline(self, search: Search) -> float:
        return self.tools.shares.search_deadline(len(search.incumbent.changes) + 1)

    def _interrupted_or_spent(self, search: Search) -> Stop | None:
        if self.tools.stopping():
            return Stop(reason=StopReason.INTERRUPTED, detail="stopped by the user; what was kept so far was checked")
        deadline = self._deadline(search)
        if self.tools.now() + self.tools.shares.comparison > deadline:
            kept = self.options.budget_seconds - deadline
            return Stop(
                reason=StopReason.BUDGET,
                detail=f"the search had {deadline:.0f} s of the {self.options.budget_seconds:.0f} s budget; "
                f"{kept:.0f} s were kept back for ablation and verification",
            )
        return None

    def _phase(self, phase: Phase, index: int) -> None:
        self.tools.announce(PhaseStarted(at=self.tools.now(), phase=phase, round=index))

    def _warn(self, *texts: str) -> None:
        for text in texts:
            if text not in self.warnings:
                self.warnings.append(text)
                self.tools.announce(Warned(at=self.tools.now(), text=text))


def _stop(round_: Round, plan: Agenda, threshold: float) -> Stop:
    """Why a round in which nothing was kept ends the search."""
    ceiling = round_.ceiling_step_seconds
    if ceiling and round_.stages and round_.bottleneck is None:
        return Stop(
            reason=StopReason.AT_THE_CEILING,
            detail=f"a step takes {1e3 * round_.step_seconds:.2f} ms, its ceiling here is {1e3 * ceiling:.2f} ms "
            f"({round_.step_seconds / ceiling:.2f} times that): no stage is far enough from its own to hold it back",
        )
    best = max((p.predicted.high for p in plan.refusals if p.predicted), default=None)
    if not plan.proposals and best is not None:
        return Stop(
            reason=StopReason.DIMINISHING_RETURNS,
            detail=f"the best remaining prediction is {best:.3f}x, below the {threshold:.3f}x that would count",
        )
    return Stop(reason=StopReason.EXHAUSTED, detail="every applicable strategy was tried on the incumbent")
