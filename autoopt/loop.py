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
    NoiseMeasured,
    Phase,
    PhaseStarted,
    RoundMeasured,
    Stopped,
    Verified,
    Warned,
)
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
)
from autoopt.records.messages import TrainingRun
from autoopt.search.ablate import ablate, alone
from autoopt.search.accept.memory_margin import memory_limit
from autoopt.search.baseline import AAControl, measure_baseline, measure_noise, objective_of, shares_after
from autoopt.search.build_round import apart, look
from autoopt.search.configuration import configuration
from autoopt.search.fit_memory import Fitting
from autoopt.search.profile_validity import calmest, disturbance, doubt_of
from autoopt.search.rounds import Rounds
from autoopt.search.run_context import RunContext
from autoopt.search.stage_profile import Examined, Inspection, examine, inspect
from autoopt.search.state import SearchState
from autoopt.search.trial_runner import BaselineFailed
from autoopt.search.verify import Verification, verify
from autoopt.simplify.pipeline import Pipeline
from autoopt.strategy import Risk

EXAMINE_SHARE = 0.03


@dataclass
class Outcome:
    """What the loop found; ``autoopt.document`` makes result.json of it."""

    search: SearchState
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

    def __init__(self, tools: RunContext, options: Options) -> None:
        self.tools, self.options = tools, options
        self.warnings: list[str] = []
        self.missing: list[str] = []
        self.advice: tuple[Advice, ...] = ()
        self.examined: dict[str, Examined] = {}
        self.search: SearchState | None = None
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

    def _outcome(self, search: SearchState, verification: Verification, stop: Stop, rows: list[Ablation]) -> Outcome:
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

    def _benchmark(self) -> SearchState:
        self._phase("benchmark", 0)
        inspection = self._inspect()
        self.tools.announce(EnvironmentRead(at=self.tools.now(), environment=inspection.environment))
        self.search = search = SearchState(
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

    def _reference(self, search: SearchState) -> tuple[AAControl, TrainingRun]:
        """The baseline as it is; where that runs out of memory, the least costly plan under which it does not."""
        fitting: Fitting | None = None
        while True:
            try:
                return self._measure_baseline(search)
            except BaselineFailed as failed:
                fitting = fitting or Fitting(self.tools, search)
                told = fitting.next(failed)
            self._warn(told)

    def _measure_baseline(self, search: SearchState) -> tuple[AAControl, TrainingRun]:
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

    def _simplify(self, search: SearchState) -> tuple[Round, Pipeline | None]:
        index = len(search.rounds)
        self._phase("simplify", index)
        seconds = min(max(EXAMINE_SHARE * self.options.budget_seconds, 5.0), 60.0)
        trace = str(self.tools.run.directory.traces) if index == 0 else None
        inspection, usual = Inspection(facts=search.facts, environment=search.environment), self._usual_step(search)
        try:
            examined = self.tools.run.step(
                "examine",
                {"round": index, "plan": search.incumbent.model_dump(mode="json")},
                lambda: calmest(
                    lambda: examine(
                        self.tools.bench, search.incumbent, seconds=seconds, advise=index == 0, trace=trace
                    ),
                    lambda seen: doubt_of(seen, usual, apart(inspection, seen)),
                ),
                Examined,
            )
        except TrialFailed as failure:
            if search.incumbent == search.baseline:
                raise BaselineFailed(failure, "while its stages were measured") from failure
            raise
        return self._analyse(search, examined, index)

    def _analyse(self, search: SearchState, examined: Examined, index: int) -> tuple[Round, Pipeline | None]:
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

    def _usual_step(self, search: SearchState) -> float | None:
        """Seconds of the incumbent's step as the last comparison had them: of its typical block."""
        comparison = search.comparisons.get(int(search.base)) if search.base.isdigit() else None
        side = comparison.candidate if comparison else self.control.side if self.control else None
        return statistics.median(side.block_step_seconds) if side and side.block_step_seconds else None

    # optimize

    def _rounds(self, search: SearchState) -> Stop:
        rounds = Rounds(self.tools, search)
        while True:
            over = rounds.over()
            if over:
                return over
            try:
                round_, pipeline = self._simplify(search)
            except TrialFailed as failure:
                return Stop(
                    reason=StopReason.EXHAUSTED, detail=f"the incumbent could not be profiled: {failure.reason}"
                )
            self._phase("optimize", len(search.rounds) - 1)
            plan = rounds.agenda(pipeline)
            if not rounds.try_all(plan, round_, pipeline):
                return rounds.stop(round_, plan)

    # ablate and verify

    def _conclude(self, search: SearchState) -> tuple[Verification, list[Ablation]]:
        self._phase("ablate", len(search.rounds))
        end = self.options.budget_seconds
        shares = self.tools.shares
        exact = self.tools.gate.risk_over(search.incumbent, search.baseline) is Risk.EXACT
        # where the losses are the same, a second seed tells less than what each change is worth
        reserve = shares.verification(1 if exact else 2, search.speedup_so_far) + shares.comparison
        rows, dropped = ablate(self.tools, search, end - reserve)
        self._warn(*dropped)
        self._phase("verify", len(search.rounds))
        verification = verify(self.tools, search, self._aa, end)
        self._warn(*verification.notes)
        kept = {change.strategy for change in search.found}
        rows = [row for row in rows if row.strategy in kept and not verification.fell_back]
        return verification, alone(self.tools, search, rows, end)

    def _best(self, search: SearchState, verification: Verification) -> Configuration:
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

    def _baseline(self, search: SearchState, verification: Verification) -> Configuration:
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

    def _phase(self, phase: Phase, index: int) -> None:
        self.tools.announce(PhaseStarted(at=self.tools.now(), phase=phase, round=index))

    def _warn(self, *texts: str) -> None:
        for text in texts:
            if text not in self.warnings:
                self.warnings.append(text)
                self.tools.announce(Warned(at=self.tools.now(), text=text))
