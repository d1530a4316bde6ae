"""Whole runs of a script in simulated time: the figure is what its user pays, and the patch is what is timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoopt.errors import TrialFailed
from autoopt.records import Estimate, EstimateKind, Plan, RunParts, Sites, Verdict
from autoopt.records.messages import TrainingRun
from autoopt.script.whole_run import WholeRun
from autoopt.search.accept.evidence import TrainedPair
from autoopt.trial.protocol import ScriptSpec, TrialSpec
from simulated import World, product, strategy, verdicts

STEPS = 600
SITES = Sites(command=("python", "train.py"), cwd=".", run=RunParts(steps=STEPS, end_seconds=10.0))


class ScriptWorld(World):
    """A loop over a script whose patched run takes so many times the seconds of its untouched one.

    Args:
        whole: by the strategies of a plan; what no patch says takes as long as before.
    """

    def __init__(self, directory: Path, *strategies: Any, whole: dict[str, float], **more: Any) -> None:
        super().__init__(directory, *strategies, **more)
        self.whole = whole
        self.pairs: list[tuple[str, ...]] = []
        runner: Any = self.runner
        runner.base = TrialSpec(workload="train.py", script=ScriptSpec(command=("python", "train.py"), sites=SITES))
        runner.runs_whole = lambda plan: any(name in self.whole for name in plan.names())
        runner.whole_runs = self.run_whole
        runner.watched, runner.knows = lambda then=None: SITES, lambda sites: None
        runner.facts = runner.facts.model_copy(update={"target": None, "max_steps": STEPS})

    def run_whole(self, plan: Plan, *, steps: int, seed: int, max_seconds: float) -> TrainedPair:
        self.pairs.append(plan.names())
        before, after = 40.0, 40.0
        for name in plan.names():
            after /= self.whole.get(name, 1.0)
        runs: list[TrainingRun] = []
        for side, seconds in enumerate((before, after)):
            self.clock.advance(min(seconds, max_seconds))
            if seconds > max_seconds:
                failure = TrialFailed("timeout", "not at its end")
                failure.side = side  # type: ignore[attr-defined]
                raise failure
            runs.append(WholeRun(seconds, 0.0, 0.9).as_training(steps, seed))
        return TrainedPair(baseline=runs[0], best=runs[1], whole=True)


def test_the_figure_of_a_script_is_that_of_whole_runs_of_its_patch(tmp_path: Path) -> None:
    """Its steps are twice as fast, and its run, with start and evaluations, is 1.4 times as fast."""
    world = ScriptWorld(tmp_path, strategy("rows"), speed=product({"rows": 2.0}), whole={"rows": 1.4}, budget=600.0)
    outcome = world.go()
    headline = outcome.speedup.headline
    assert headline is not None
    assert (headline.whole, headline.kind, headline.value) == (True, "same_steps", pytest.approx(1.4))
    assert headline.baseline_seconds == pytest.approx(40.0)
    assert headline.n >= 2
    assert "in whole runs" in headline.text
    assert outcome.speedup.end_to_end_verified
    assert set(world.pairs) == {("rows",)}


def test_a_patch_that_makes_the_whole_run_no_faster_is_not_kept(tmp_path: Path) -> None:
    world = ScriptWorld(tmp_path, strategy("rows"), speed=product({"rows": 2.0}), whole={"rows": 0.9}, budget=600.0)
    outcome = world.go()
    assert not outcome.best.plan.changes
    assert world.pairs
    assert Verdict.KEPT not in verdicts(outcome)["rows"]


def test_what_no_patch_says_is_trained_as_a_plan(tmp_path: Path) -> None:
    world = ScriptWorld(tmp_path, strategy("allocator"), speed=product({"allocator": 2.0}), whole={}, budget=600.0)
    outcome = world.go()
    assert not world.pairs
    assert outcome.speedup.headline is not None
    assert not outcome.speedup.headline.whole


def test_runs_that_are_too_long_for_the_budget_are_not_begun(tmp_path: Path) -> None:
    """Steps alone take 30 s: two whole runs would take more than the end of this budget."""
    world = ScriptWorld(tmp_path, strategy("rows"), speed=product({"rows": 2.0}), whole={"rows": 1.4}, budget=120.0)
    world.go()
    assert not world.pairs


def promised(name: str, value: float, stage: str) -> Any:
    """A strategy of one stage with a prediction whose whole interval is a gain."""
    told = Estimate(value=value, low=0.98 * value, high=1.02 * value, n=3, kind=EstimateKind.TRIED)
    return strategy(name, stages=frozenset({stage}), predict=lambda self, case, setting: told)


def test_what_no_block_of_steps_shows_is_proved_by_whole_runs(tmp_path: Path) -> None:
    """An evaluation that could not be timed by itself; of the small gain that came with it the ablation decides."""
    world = ScriptWorld(
        tmp_path,
        promised("evaluation", 1.5, "evaluate"),
        promised("fused", 1.03, "forward"),
        speed=product({"evaluation": 1.0, "fused": 1.03}),
        whole={"evaluation": 1.5, "fused": 1.03},
        budget=900.0,
    )
    outcome = world.go()
    assert world.pairs[0] == ("evaluation", "fused")
    plan, headline = outcome.best.plan.names(), outcome.speedup.headline
    assert "evaluation" in plan
    assert headline is not None
    assert headline.value == pytest.approx(1.5 * (1.03 if "fused" in plan else 1.0))
    assert headline.whole
    assert outcome.speedup.end_to_end_verified


def test_a_prediction_that_whole_runs_deny_is_not_kept(tmp_path: Path) -> None:
    world = ScriptWorld(
        tmp_path,
        promised("evaluation", 1.5, "evaluate"),
        speed=product({"evaluation": 1.0}),
        whole={"evaluation": 0.99},
        budget=900.0,
    )
    outcome = world.go()
    assert not outcome.best.plan.changes
    assert len(world.pairs) == 2, "two pairs that show no gain are enough"
    assert verdicts(outcome)["evaluation"][-1] is not Verdict.KEPT
