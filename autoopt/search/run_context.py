"""The run context: what the search works with, and durable comparisons of two plans on the run's clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from autoopt.events import Announcer, Noted, Phase, PhaseStarted, TrialProgress, Warned
from autoopt.records import Change, Estimate, JsonDict, Plan, Record
from autoopt.records.messages import WHOLE_RUN
from autoopt.registry import Registry
from autoopt.search.accept.gathering import Gate
from autoopt.search.budget_allocation import STEADY_SECONDS, BudgetAllocation
from autoopt.search.compare.arm import Start
from autoopt.search.compare.comparison import Comparison, PairOfProcesses, Rule
from autoopt.search.compare.contest import OnProgress, compare
from autoopt.search.planner import Choice
from autoopt.search.state import SearchState
from autoopt.search.trial_runner import TrialRunner
from autoopt.storage.run import Run

R = TypeVar("R", bound=Record)

MOST_PAIRS = 200
"""Pairs of processes of one comparison: time ends it, not their number."""


def key_of(purpose: str, incumbent: Plan, candidate: Plan) -> JsonDict:
    """The key of a durable measurement of two plans."""
    return {"purpose": purpose, "incumbent": incumbent.model_dump(), "candidate": candidate.model_dump()}


@dataclass
class RunContext:
    """A search: its means (trials, journal, clock, announcements), the same for the whole run, and its ``state`` since
    the workload was described."""

    runner: TrialRunner
    run: Run
    announce: Announcer
    choice: Choice
    min_gain: float
    seed: int
    stopping: Callable[[], bool]
    allocation: BudgetAllocation
    gate: Gate
    state: SearchState = field(init=False)

    @property
    def registry(self) -> Registry:
        return self.runner.registry

    def now(self) -> float:
        return self.run.clock.elapsed()

    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.allocation.budget - self.now()

    def warn(self, *texts: str) -> None:
        """Announces doubts that the report shows, each once."""
        self._once(self.state.warnings, Warned, texts)

    def note(self, *texts: str) -> None:
        """Announces what is good to know and no doubt, each once."""
        self._once(self.state.notes, Noted, texts)

    def _once(self, known: list[str], event: type[Noted] | type[Warned], texts: Sequence[str]) -> None:
        for text in texts:
            if text not in known:
                known.append(text)
                self.announce(event(at=self.now(), text=text))

    def between_steps(self, strategy: str) -> bool:
        """Whether a strategy shortens evaluations or checkpoints alone, which no block of steps shows."""
        return self.registry[strategy].between_steps

    def evaluates_in_other_batches(self, change: Change) -> bool:
        """Whether it changes nothing but an evaluation's batches, which may give another metric."""
        return self.between_steps(change.strategy) and "batch_size" in change.setting

    def begin(self, phase: Phase, round_: int = 0, detail: str = "") -> None:
        """Announces a phase of the loop, or what is done within it."""
        self.announce(PhaseStarted(at=self.now(), phase=phase, round=round_, detail=detail))

    def rule(self, seconds: float, *, price: float = 1.0, **options: Any) -> Rule:
        """When a comparison that may take so long ends.

        Args:
            price: the factor on the steps that the candidate's rounding costs, which its speed has to outweigh.
            options: of the rule; pairs of processes are ended by time, and not by their number.
        """
        least = price * (1 + self.min_gain) - 1
        return Rule(**{"min_gain": least, "max_seconds": max(seconds, 1.0), "max_pairs": MOST_PAIRS, **options})

    def screening_rule(self, seconds: float) -> Rule:
        """The same for screening measurements: each is one pair of processes, which soon count as warm."""
        return self.rule(seconds, max_pairs=1, warm_up_seconds=STEADY_SECONDS)

    def pair_seconds(self, one: Plan, other: Plan) -> float:
        """Seconds of a pair of processes of two plans, about: some take a minute to compile in each."""
        return self.allocation.pair + self.state.dearer_start(one) + self.state.dearer_start(other)

    def run_seconds(self) -> float | None:
        """Seconds of a whole run of the untouched script, about.

        None where whole runs show nothing: of a build(), of a script that must be changed to fit into memory, of one
        that does not end by itself at the user's target, or whose length is not known or is too long for the budget.
        """
        state, seen = self.state, self.state.trained
        if state.sites is None or state.baseline.changes or state.planned_seconds is None or not state.planned_steps:
            return None
        if seen is not None and seen.stopped == WHOLE_RUN:
            return seen.seconds  # they are the measure by now, and what a further one takes is asked where it is made
        if state.objective.users_target is not None:
            return None
        run = state.untouched_run
        seconds = state.aa.start_seconds + state.planned_seconds if run is None else run.seconds
        if seen is not None and seen.steps >= state.planned_steps:
            seconds = max(seconds, seen.seconds)
        return seconds if seconds <= self.allocation.longest_run else None

    def shown_by_whole_runs(self, plan: Plan) -> float | None:
        """Seconds of a whole run of the untouched script, where such runs show what a plan brings; else None.

        They are the final figure then: they hold imports, the first batch, evaluations and the end, and nothing listens
        to them. What trains otherwise takes its own steps, which only runs that end at the user's target show.
        """
        seconds = self.run_seconds()
        otherwise = self.gate.risk_over(plan, self.state.baseline).trains_otherwise
        if seconds is None or (otherwise and self.state.objective.users_target is None):
            return None
        return seconds if self.runner.runs_whole(plan) else None

    @property
    def by_whole_runs(self) -> bool:
        """Whether whole runs of a script have shown what the incumbent brings, and no blocks of steps."""
        made = self.state.made_by
        return made is not None and not made.pairs and bool(self.gate.whole_pairs(self.state.incumbent))

    def confirmation(self, plan: Plan) -> Comparison | None:
        """The incumbent's confirmation, where it compared the steps of this plan with the baseline's; or that these are
        the same by the plan's class."""
        baseline, found = self.state.baseline, self.state.made_by
        steps = [[c for c in one.changes if not self.between_steps(c.strategy)] for one in (baseline, plan)]
        if steps[0] == steps[1]:
            return self.state.aa.comparison.of_same_steps(plan)
        return found if found is not None and found.compares(baseline, plan) else None

    def probes_due(self, plan: Plan | None, incumbent: Plan) -> float:
        """Seconds of the probes that a plan's quality still takes; None is one not known yet that may round."""
        allocation, probes = self.allocation, self.gate.probes
        due = [incumbent] * (2 - probes.has(incumbent)) if plan is None else self.gate.unprobed(plan, incumbent)
        return sum(allocation.start_seconds + (probes.seconds(one) or allocation.probe) for one in due)

    def progress(self, number: int) -> OnProgress:
        """Announces how the measurement of a trial stands."""

        def announce(note: str, estimate: Estimate | None) -> None:
            seen: JsonDict = {"ratio": estimate.value, "low": estimate.low, "high": estimate.high} if estimate else {}
            self.announce(TrialProgress(at=self.now(), id=number, note=note, **seen))

        return announce

    def compare(
        self,
        kind: str,
        incumbent: Plan,
        candidate: Plan,
        *,
        seconds: float,
        deadline: float,
        purpose: str,
        progress_id: int | None = None,
        start: Start | None = None,
        earlier: Sequence[PairOfProcesses] = (),
        **options: Any,
    ) -> Comparison:
        """A durable comparison: measured once, read back from the journal by a resumed run.

        Args:
            start: how the two sides are started, where the plan alone does not say it; ``options``: see
                :meth:`rule`.
            earlier: pairs of processes from which it goes on.
        """
        state = self.state

        def measure() -> Comparison:
            made = len(state.comparisons) + len(state.ablations)
            return compare(
                start or self.runner.start,
                incumbent,
                candidate,
                self.rule(seconds, **options),
                clock=self.now,
                deadline=deadline,
                noise=state.noise,
                rng=np.random.default_rng([self.seed, made, state.numbers]),
                on_progress=self.progress(progress_id) if progress_id is not None else None,
                earlier=earlier,
                alternating=not self.runner.memory.fit_together(incumbent, candidate),
            )

        found = self.on_one_machine(kind, key_of(purpose, incumbent, candidate), measure, Comparison)
        self.runner.memory.note(found)
        return found

    def on_one_machine(self, kind: str, key: JsonDict, measure: Callable[[], R], model: type[R]) -> R:
        """A durable step all of whose processes run on one machine."""

        def held() -> R:
            with self.runner.held():
                return measure()

        return self.run.step(kind, key, held, model)
