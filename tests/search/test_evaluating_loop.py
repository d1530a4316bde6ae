"""The loop over a fake machine whose evaluations take most of the run: what shortens them alone is found and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoopt.records import JsonDict, Plan, RunParts, Verdict
from autoopt.records.evaluating import HeldEvaluations
from autoopt.setup import Setup
from autoopt.simplify.stage_profile import describe
from autoopt.strategy import Case, Risk, Strategy
from simulated import STEPS, FakeTrial, World, product, strategy, verdicts

RUN = RunParts(build_seconds=1.0, step_seconds=0.05, steps=STEPS, evaluation_seconds=5.0, evaluate_every=100.0)


class Larger(Strategy):
    """Evaluates in larger batches."""

    name = "larger"
    stages = frozenset({"evaluate"})
    risk = Risk.EXACT

    def settings(self, case: Case) -> Any:
        return [{"batch_size": 256}]

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_evaluation(**setting)


def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, metric: float = 0.5) -> World:
    """A world in which an evaluation of 5 s takes so long in larger batches."""
    made = World(tmp_path, Larger(), strategy("quick"), speed=product({"larger": 1.0, "quick": 1.5}), budget=1200.0)
    made.runner.facts = made.runner.facts.model_copy(update={"run": RUN})
    plain = FakeTrial.call

    def call(trial: FakeTrial, task: str, **arguments: Any) -> JsonDict:
        if not task.endswith(":evaluations"):
            return plain(trial, task, **arguments)
        larger = "larger" in trial._plan.names()
        each = seconds if larger else 5.0
        made.clock.advance(3 * each)
        value = metric if larger else 0.5
        found = HeldEvaluations(seconds=(each,) * 3, samples=90, metric="accuracy", value=value)
        return found.model_dump()

    monkeypatch.setattr(FakeTrial, "call", call)
    described = "autoopt.search.first_process.FirstProcess.description"
    monkeypatch.setattr(described, lambda first: describe(made.runner))
    return made


def test_shorter_evaluations_are_kept_beside_faster_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = world(tmp_path, monkeypatch, seconds=0.5).go()
    assert set(outcome.best.plan.names()) == {"larger", "quick"}
    trial = next(t for t in outcome.state.trials if t.strategy == "larger" and t.verdict is Verdict.KEPT)
    assert trial.throughput is None, "no step is faster"
    assert trial.time_to_target is not None
    assert trial.time_to_target.value > 1.5, "evaluations are half of the run"
    rows = {row.strategy: row for row in outcome.ablation}
    assert rows["larger"].without is not None
    assert rows["larger"].without.value == trial.time_to_target.value, "its interval holds together with the others"


def test_a_gain_that_trainings_do_not_show_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(tmp_path, monkeypatch, seconds=0.5)
    made.runner.machine.behave = lambda plan, plain=made.runner.machine.behave: plain(plan.without("quick"))
    outcome = made.go()
    assert outcome.best.plan == Plan(), "the simulated trainings evaluate alike under both plans"
    (trial,) = [trial for trial in outcome.state.trials if trial.strategy == "larger"]
    assert trial.verdict is not Verdict.KEPT
    assert "no faster than the baseline" in trial.reason


@pytest.mark.parametrize(
    ("seconds", "metric", "expected"),
    [(5.0, 0.5, Verdict.INCONCLUSIVE), (8.0, 0.5, Verdict.HARMFUL), (0.5, 0.4, Verdict.QUALITY_LOST)],
)
def test_what_brings_nothing_or_counts_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, metric: float, expected: Verdict
) -> None:
    outcome = world(tmp_path, monkeypatch, seconds, metric).go()
    assert outcome.best.plan.names() == ("quick",)
    assert verdicts(outcome)["larger"] == [expected]
