"""Readings of plans in trial processes of the engine's own executor: alone, and in pairs against the baseline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from autoopt.benchmark.target import Parts, parts
from autoopt.errors import TrialFailed
from autoopt.records import Objective, Plan
from autoopt.registry import Registry
from autoopt.search.accept.losses import common, same_on_average, same_within_tolerance
from autoopt.search.compare.comparison import Comparison, Decision, Rule
from autoopt.search.compare.contest import compare
from autoopt.search.state import SearchState
from autoopt.search.trial_runner import TrialRunner
from autoopt.simplify.analyse import build_round
from autoopt.simplify.stage_profile import describe, profile_stages
from autoopt.strategy import Case
from benchmarks.runners import runner_of

WARM_UP_SECONDS = 4.0
FEWEST_STEPS = 8
PAIR_SECONDS = 20.0
TRAINING_SECONDS = 240.0


class Trials:
    """The readings of one workload.

    Args:
        runner: starts trials.
        registry: the strategies.
    """

    def __init__(self, runner: TrialRunner, registry: Registry) -> None:
        self.runner, self.registry = runner, registry

    def case(self, seconds: float) -> Case:
        """The untouched workload as a strategy sees it, its stages profiled."""
        description = describe(self.runner)
        profile = profile_stages(self.runner, Plan(), seconds=seconds, advise=False)
        facts = description.facts.model_copy(update={"inspected": profile.inspected})
        description = description.model_copy(update={"facts": facts})
        _, pipeline = build_round(description, profile)
        objective = Objective(
            metric=facts.metric, mode=facts.mode, target=facts.target, target_source="user", tolerance=0.0, min_gain=0.0
        )
        search = SearchState(facts, description.environment, objective, planned_steps=facts.max_steps)
        return search.case(self.registry, pipeline=pipeline)

    def baseline(self, case: Case) -> Parts:
        """The untouched workload's training to its target.

        Raises:
            TrialFailed: it does not train.
            ValueError: it does not get there.
        """
        run = self.runner.train(
            Plan(), seed=0, max_seconds=TRAINING_SECONDS, label="baseline", target=case.objective.target
        )
        found = parts(run, case.objective.target, case.objective.mode)
        if found is None:
            raise ValueError(f"the baseline did not reach its target within {TRAINING_SECONDS:.0f} s")
        return found

    def reading(self, plan: Plan, seconds: float) -> dict[str, Any]:
        """One process: fixed seconds, and seconds of a steady step over so many seconds; or ``failed``."""
        began = time.monotonic()
        found: dict[str, Any] = {}
        try:
            arm = self.runner.start(plan, "reading")
            try:
                arm.ready()
                startup = arm.warm_up(WARM_UP_SECONDS)
                block = arm.block(seconds, FEWEST_STEPS, 0.0)
            finally:
                arm.close()
            found = {"fixed_seconds": startup.fixed_seconds, "step_seconds": block.seconds / block.steps}
        except TrialFailed as failure:
            found = {"failed": failure.reason}
        return {**found, "seconds": time.monotonic() - began}

    def pair(self, plan: Plan, number: int, *, deterministic: bool | None) -> dict[str, Any]:
        """One pair of processes, baseline and plan, in interleaved blocks of the engine's own comparison."""
        rule = Rule(
            max_seconds=PAIR_SECONDS, min_pairs=1, max_pairs=1, warm_up_seconds=WARM_UP_SECONDS, until_error=0.0
        )
        began = time.monotonic()
        found = compare(
            self.runner.start, Plan(), plan, rule, clock=time.monotonic, rng=np.random.default_rng([7, number])
        )
        return {**_row(found, deterministic), "seconds": time.monotonic() - began}


def _row(found: Comparison, deterministic: bool | None) -> dict[str, Any]:
    if found.decision is Decision.FAILED:
        return {"failed": found.reason}
    if not found.pairs:
        return {"unmeasured": found.reason}
    before, after = found.incumbent, found.candidate
    paths = common(before.losses, after.losses)
    quality = None
    if paths is not None:
        quality = (same_within_tolerance if deterministic else same_on_average)(paths)
    assert before.samples_per_step is not None
    assert before.samples_per_second is not None
    return {
        "log_ratio": found.pairs[0].log_ratio,
        "standard_error": found.pairs[0].standard_error,
        "baseline_step_seconds": before.samples_per_step / before.samples_per_second,
        "baseline_fixed_seconds": before.fixed_seconds[0],
        "fixed_seconds": after.fixed_seconds[0],
        "same_losses": quality.passed if quality else None,
        "losses": quality.detail if quality else "too few losses in common",
    }


@contextmanager
def trials(workload: str, logs: Path) -> Iterator[Trials]:
    """Trials of a workload; the first process, which finds nothing in the caches, is started and thrown away."""
    with runner_of(workload, logs) as runner:
        runner.start(Plan(), "first").close()
        yield Trials(runner, runner.registry)
