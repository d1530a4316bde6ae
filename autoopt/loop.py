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
from autoopt.search.baseline import AAControl, allocation_after, measure_baseline, measure_noise, objective_of
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

    state: SearchState
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
        context: trials, journal, clock, announcements.
        options: what the user asked for.
    """

    def __init__(self, context: RunContext, options: Options) -> None:
        self.context, self.options = context, options
        self.warnings: list[str] = []
        self.missing: list[str] = []
        self.advice: tuple[Advice, ...] = ()
        self.examined: dict[str, Examined] = {}
        self.state: SearchState | None = None
        self.control: AAControl | None = None
        self.trained: TrainingRun | None = None

    def run(self) -> Outcome:
        """Benchmark, then rounds of simplify and optimize, then verify and ablate.

        Raises:
            WorkloadError: the baseline fails.
        """
        self._warn(*self.context.runner.registry.warnings)
        state = self._benchmark()
        stop = self._rounds(state)
        verification, rows = self._conclude(state)
        outcome = self._outcome(state, verification, stop, rows)
        self.context.announce(Verified(at=self.context.now(), best=outcome.best, speedup=verification.speedup))
        self.context.announce(Stopped(at=self.context.now(), stop=stop))
        return outcome

    def partial(self) -> Outcome | None:
        """What is known when the run is broken off; None before the workload was built.

        Nothing that was not verified is passed on as the best: the best is the baseline.
        """
        if self.state is None:
            return None
        stop = Stop(reason=StopReason.INTERRUPTED, detail="stopped at once; nothing was verified")
        if self.state.found:
            names = ", ".join(change.strategy for change in self.state.found)
            self._warn(f"broken off before it was verified: {names}; autoopt resume goes on from here")
        self.state.incumbent = self.state.baseline
        return self._outcome(self.state, Verification(speedup=Speedup(detail="broken off")), stop, [])

    def _outcome(self, state: SearchState, verification: Verification, stop: Stop, rows: list[Ablation]) -> Outcome:
        baseline = self._baseline(state, verification)
        return Outcome(
            state=state,
            baseline=baseline,
            best=self._best(state, verification) if state.incumbent != state.baseline else baseline,
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
        self.context.announce(EnvironmentRead(at=self.context.now(), environment=inspection.environment))
        self.state = state = SearchState(
            facts=inspection.facts,
            environment=inspection.environment,
            objective=objective_of(inspection.facts, self.options),
            planned_steps=inspection.facts.max_steps,
        )
        self.context.gate.memory_limit_bytes = memory_limit(state.environment)
        control, trained = self._reference(state)
        self.context.allocation = allocation_after(self.context, control, trained)
        baseline = configuration(
            state.baseline, state.environment, side=control.side, runs=(trained,), price_per_hour=self.options.price
        )
        self.context.announce(BaselineMeasured(at=self.context.now(), baseline=baseline))
        return state

    def _reference(self, state: SearchState) -> tuple[AAControl, TrainingRun]:
        """The baseline as it is; where that runs out of memory, the least costly plan under which it does not."""
        fitting: Fitting | None = None
        while True:
            try:
                return self._measure_baseline(state)
            except BaselineFailed as failed:
                fitting = fitting or Fitting(self.context, state)
                told = fitting.next(failed)
            self._warn(told)

    def _measure_baseline(self, state: SearchState) -> tuple[AAControl, TrainingRun]:
        self.control = control = measure_noise(self.context, state)
        state.noise = control.noise
        self._warn(*control.doubts)
        self.context.announce(NoiseMeasured(at=self.context.now(), noise=control.noise))
        self.trained, notes = measure_baseline(self.context, state, control)
        self._warn(*notes)
        return control, self.trained

    def _inspect(self) -> Inspection:
        try:
            return self.context.run.step("inspect", {}, lambda: inspect(self.context.runner), Inspection)
        except TrialFailed as failure:
            raise BaselineFailed(failure, "while it was built") from failure

    # simplify

    def _simplify(self, state: SearchState) -> tuple[Round, Pipeline | None]:
        index = len(state.rounds)
        self._phase("simplify", index)
        seconds = min(max(EXAMINE_SHARE * self.options.budget_seconds, 5.0), 60.0)
        trace = str(self.context.run.directory.traces) if index == 0 else None
        inspection, usual = Inspection(facts=state.facts, environment=state.environment), self._usual_step(state)
        try:
            examined = self.context.run.step(
                "examine",
                {"round": index, "plan": state.incumbent.model_dump(mode="json")},
                lambda: calmest(
                    lambda: examine(
                        self.context.runner, state.incumbent, seconds=seconds, advise=index == 0, trace=trace
                    ),
                    lambda seen: doubt_of(seen, usual, apart(inspection, seen)),
                ),
                Examined,
            )
        except TrialFailed as failure:
            if state.incumbent == state.baseline:
                raise BaselineFailed(failure, "while its stages were measured") from failure
            raise
        return self._analyse(state, examined, index)

    def _analyse(self, state: SearchState, examined: Examined, index: int) -> tuple[Round, Pipeline | None]:
        self.examined[examined.plan.key] = examined
        self.missing += [text for text in examined.missing if text not in self.missing]
        self._warn(*examined.doubts)
        state.facts = state.facts.model_copy(update={"inspected": examined.inspected})
        if index == 0:
            self.advice = examined.advice
        inspection = Inspection(facts=state.facts, environment=state.environment)
        round_, pipeline = look(inspection, examined, index)
        state.rounds.append(round_)
        self.context.announce(RoundMeasured(at=self.context.now(), round=round_))
        disturbed = disturbance(examined, self._usual_step(state))
        if disturbed:
            self._warn(f"round {index}: {disturbed}; its predictions exclude nothing: measure again on a quiet machine")
        return round_, None if disturbed else pipeline

    def _usual_step(self, state: SearchState) -> float | None:
        """Seconds of the incumbent's step as the last comparison had them: of its typical block."""
        comparison = state.comparisons.get(int(state.base)) if state.base.isdigit() else None
        side = comparison.candidate if comparison else self.control.side if self.control else None
        return statistics.median(side.block_step_seconds) if side and side.block_step_seconds else None

    # optimize

    def _rounds(self, state: SearchState) -> Stop:
        rounds = Rounds(self.context, state)
        while True:
            over = rounds.over()
            if over:
                return over
            try:
                round_, pipeline = self._simplify(state)
            except TrialFailed as failure:
                return Stop(
                    reason=StopReason.EXHAUSTED, detail=f"the incumbent could not be profiled: {failure.reason}"
                )
            self._phase("optimize", len(state.rounds) - 1)
            plan = rounds.queue(pipeline)
            if not rounds.try_all(plan, round_, pipeline):
                return rounds.stop(round_, plan)

    # ablate and verify

    def _conclude(self, state: SearchState) -> tuple[Verification, list[Ablation]]:
        self._phase("ablate", len(state.rounds))
        end = self.options.budget_seconds
        allocation = self.context.allocation
        exact = self.context.gate.risk_over(state.incumbent, state.baseline) is Risk.EXACT
        # where the losses are the same, a second seed tells less than what each change is worth
        reserve = allocation.verification(1 if exact else 2, state.speedup_so_far) + allocation.comparison
        rows, dropped = ablate(self.context, state, end - reserve)
        self._warn(*dropped)
        self._phase("verify", len(state.rounds))
        verification = verify(self.context, state, self._aa, end)
        self._warn(*verification.notes)
        kept = {change.strategy for change in state.found}
        rows = [row for row in rows if row.strategy in kept and not verification.fell_back]
        return verification, alone(self.context, state, rows, end)

    def _best(self, state: SearchState, verification: Verification) -> Configuration:
        return configuration(
            state.incumbent,
            state.environment,
            examined=self.examined.get(state.incumbent.key),
            side=verification.best_side,
            runs=verification.best_runs,
            time_to_target=verification.best_seconds,
            modelled=verification.modelled,
            price_per_hour=self.options.price,
        )

    def _baseline(self, state: SearchState, verification: Verification) -> Configuration:
        trained = (self.trained,) if self.trained else ()
        return configuration(
            state.baseline,
            state.environment,
            examined=self.examined.get(state.baseline.key),
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
        self.context.announce(PhaseStarted(at=self.context.now(), phase=phase, round=index))

    def _warn(self, *texts: str) -> None:
        for text in texts:
            if text not in self.warnings:
                self.warnings.append(text)
                self.context.announce(Warned(at=self.context.now(), text=text))
