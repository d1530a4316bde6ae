"""Runs on the simulated machine: evaluations, the final check, and instability past the target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autoopt.events import TrialStarted
from autoopt.records import (
    Curve,
    CurvePoint,
    Estimate,
    EstimateKind,
    JsonDict,
    Noise,
    Objective,
    Plan,
    Quality,
    RunParts,
    Verdict,
)
from autoopt.records.evaluating import HeldEvaluations
from autoopt.records.messages import Moved, TrainingRun
from autoopt.registry import Registry, Source
from autoopt.search.accept.evidence import Evidence
from autoopt.search.accept.gate import judge_runs
from autoopt.search.accept.losses import stood_still
from autoopt.search.accept.metric import fell_after_target, seed_noise
from autoopt.search.budget_allocation import PAST
from autoopt.setup import Setup
from autoopt.simplify.stage_profile import describe
from autoopt.strategy import Case, Risk, Strategy
from autoopt.testing.fakes import Behaviour
from benchmarks.truth import quality_changes
from benchmarks.truth.quality_changes import FrozenLater, bf16, hooked
from made_up import trained
from simulated import STEPS, FakeTrial, World, product, strategy, verdicts
from workloads import breakers

# The loop over a fake machine whose evaluations take most of the run: what shortens them alone is found and kept.

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


def world_evaluating_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, metric: float = 0.5
) -> World:
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
    described = "autoopt.search.baseline.FirstProcess.description"
    monkeypatch.setattr(described, lambda first: describe(made.runner))
    return made


def test_shorter_evaluations_are_kept_beside_faster_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = world_evaluating_loop(tmp_path, monkeypatch, seconds=0.5).go()
    assert set(outcome.best.plan.names()) == {"larger", "quick"}
    trial = next(t for t in outcome.state.trials if t.strategy == "larger" and t.verdict is Verdict.KEPT)
    assert trial.throughput is None, "no step is faster"
    assert trial.time_to_target.value > 1.5, "evaluations are half of the run"
    rows = {row.strategy: row for row in outcome.ablation}
    assert rows["larger"].without is not None
    assert rows["larger"].without.value == trial.time_to_target.value, "its interval holds together with the others"


def test_a_gain_that_trainings_do_not_show_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world_evaluating_loop(tmp_path, monkeypatch, seconds=0.5)
    made.runner.machine.behave = lambda plan, plain=made.runner.machine.behave: plain(plan.without("quick"))
    outcome = made.go()
    assert outcome.best.plan == Plan(), "the simulated trainings evaluate alike under both plans"
    (trial,) = [trial for trial in outcome.state.trials if trial.strategy == "larger"]
    assert trial.verdict is not Verdict.KEPT
    assert "no faster than the baseline" in trial.reason


@pytest.mark.parametrize(
    ("seconds", "metric", "expected"),
    [(5.0, 0.5, Verdict.INCONCLUSIVE), (8.0, 0.5, Verdict.INCONCLUSIVE), (0.5, 0.4, Verdict.QUALITY_LOST)],
)
def test_what_brings_nothing_or_counts_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, metric: float, expected: Verdict
) -> None:
    outcome = world_evaluating_loop(tmp_path, monkeypatch, seconds, metric).go()
    assert outcome.best.plan.names() == ("quick",)
    assert verdicts(outcome)["larger"] == [expected]


# A plan that probes passed, and whose whole training is another one: what goes, and what may stay.

GAINS = {"low": 1.5, "layout": 1.3, "exact": 1.2}


def saturated(step: int) -> float:
    """Falls as usual, and then stands where a loss of probabilities ends that are rounded to 0 and 1."""
    return 2.0 / (1.0 + 0.01 * step) if step < 100 else 33.3


def late(plan: Plan, behaviour: Behaviour) -> Behaviour:
    """``low`` breaks the training at a step that no probe comes to."""
    behaviour = replace(behaviour, quality="equivalent" if set(plan.names()) - {"exact"} else "identical")
    return replace(behaviour, loss=saturated) if "low" in plan.names() else behaviour


def low_precision(self: object, setup: Setup, setting: JsonDict) -> Setup:
    return setup.with_precision(dtype="bfloat16")


def world_of(folder: Path, budget: float) -> World:
    return World(
        folder,
        strategy("low", risk=Risk.NUMERIC, apply=low_precision),
        strategy("layout", risk=Risk.NUMERIC),
        strategy("exact"),
        speed=product(GAINS),
        behave=late,
        budget=budget,
    )


def other_loss(plan: Plan, behaviour: Behaviour) -> Behaviour:
    """``half`` and ``layout`` compute another loss from the first batch on, not seen in one process with both."""
    off = 1.04 if "half" in plan.names() else 1.03 if "layout" in plan.names() else 1.0
    quality: Any = "identical" if set(plan.names()) <= {"exact"} else "equivalent"
    return replace(behaviour, startup_seconds=5.0, quality=quality, loss=lambda step: off * 2.0 / (1.0 + 0.01 * step))


def test_what_a_combination_was_refused_for_is_not_tried_in_the_next_one(tmp_path: Path) -> None:
    """Three confirmations with one culprit took the whole budget, and a gain of 1.7x was not confirmed."""

    def told(value: float) -> Any:
        estimate = Estimate(value=value, low=0.9 * value, high=1.1 * value, n=3, kind=EstimateKind.TRIED)
        return lambda self, case, setting: estimate

    world = World(
        tmp_path,
        strategy("half", risk=Risk.NUMERIC, switchable=True, predict=told(3.0)),
        strategy("layout", risk=Risk.NUMERIC, switchable=True, predict=told(1.3)),
        strategy("exact", predict=told(1.6)),
        speed=product({"half": 3.0, "layout": 1.34, "exact": 1.7}),
        behave=other_loss,
        budget=150.0,
    )
    outcome = world.go()
    assert outcome.best.plan.names() == ("exact",)
    confirmed = [event for event in world.events if isinstance(event, TrialStarted) and event.step == "confirming"]
    assert [event.strategy for event in confirmed] == ["exact"]
    assert set(verdicts(outcome)["half"]) == {Verdict.QUALITY_LOST}


def test_the_change_that_rounds_most_goes_first(tmp_path: Path) -> None:
    outcome = world_of(tmp_path, 3000.0).go()
    assert outcome.best.plan.names() == ("layout", "exact")
    assert Verdict.QUALITY_LOST in verdicts(outcome)["low"]
    assert outcome.speedup.end_to_end_verified


@pytest.mark.parametrize("budget", [120.0, 180.0, 240.0, 300.0, 400.0, 600.0])
def test_what_is_left_of_a_plan_that_trained_otherwise_is_trained_or_given_up(tmp_path: Path, budget: float) -> None:
    world = world_of(tmp_path, budget)
    outcome = world.go()
    best = outcome.best.plan
    assert "low" not in best.names() or not any("low" in plan.names() for plan, _ in world.runner.trained)
    if any("low" in plan.names() for plan, _ in world.runner.trained) and "layout" in best.names():
        assert any(plan == best for plan, _ in world.runner.trained)
    assert world.clock() <= 1.05 * budget


# Changes that break a training later than any probe looks, found in the trainings of the verification.

OBJECTIVE = Objective(metric="accuracy", mode="max", target=0.82, target_source="user", tolerance=0.005, min_gain=0.01)
LEVEL = Quality(method="probe", level="equivalent", passed=True, detail="what a probe overlooks")


def kick(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Throws the weights about from the 193rd step on, at which the baseline has long reached its target."""
    for group in optimizer.param_groups if step > 192 else ():
        group["lr"] = 10.0


CHANGES = (
    quality_changes.Change(
        "layers_frozen_later", breakers.build, lambda s: s.with_model(lambda m: FrozenLater(m, 64)), Risk.NUMERIC
    ),
    quality_changes.Change("kicked_later", breakers.build, hooked(kick), Risk.NUMERIC),
    quality_changes.Change("lower_precision", breakers.build, bf16, Risk.NUMERIC),
    quality_changes.Change("fewer_threads", breakers.build, lambda s: s.with_flags(threads=1), Risk.EXACT),
)
REGISTRY = Registry([Source(breaker, "test") for breaker in CHANGES])


def beyond(seed: int, *changes: str) -> TrainingRun:
    """A training that goes on past its target for a while."""
    return trained(REGISTRY, *changes, seed=seed, confirm=1, beyond=PAST)


@pytest.fixture(scope="module")
def baseline() -> tuple[TrainingRun, ...]:
    return tuple(beyond(seed) for seed in (0, 1))


def verified(baseline: tuple[TrainingRun, ...], *changes: str) -> Quality:
    """The quality of a final plan, trained from two seeds, whose probe saw nothing."""
    runs = tuple(beyond(seed, *changes) for seed in (0, 1))
    noise = Noise(seed_noise=seed_noise(baseline, "max"))
    known = {"objective": OBJECTIVE, "noise": noise, "deterministic": True, "level": LEVEL}
    return judge_runs(Evidence(baseline_runs=baseline, candidate_runs=runs, **known))


def test_the_target_is_trained_past_and_the_curve_ends_at_it(baseline) -> None:
    for run in baseline:
        confirmed = run.curve.points[-1].step
        assert run.reached
        assert run.stopped == "target"
        assert run.past[-1].step == run.steps >= (1 + PAST) * confirmed
        assert len(run.losses) == run.steps
        assert all(move.still == () for move in run.moves)


def test_layers_that_freeze_after_the_probe_are_found(baseline) -> None:
    found = verified(baseline, "layers_frozen_later")
    assert found.passed is False
    assert "0.weight is not updated from step 64 to 96" in found.detail


def test_instability_past_the_target_is_found(baseline) -> None:
    assert max(run.curve.points[-1].step for run in baseline) <= 192
    found = verified(baseline, "kicked_later")
    assert found.passed is False, found.detail


@pytest.mark.parametrize("name", ["lower_precision", "fewer_threads"])
def test_an_honest_change_passes(name: str, baseline) -> None:
    found = verified(baseline, name)
    assert found.passed is True, found.detail


def run(past: tuple[float, ...] = (), moves: tuple[Moved, ...] = (), seed: int = 0) -> TrainingRun:
    points = tuple(CurvePoint(step=96 + 32 * n, seconds=1.0, metric=value) for n, value in enumerate(past))
    return TrainingRun(
        seed=seed,
        curve=Curve(seed=seed),
        seconds=1.0,
        training_seconds=1.0,
        evaluation_seconds=0.0,
        evaluations=1,
        steps=96,
        samples=96,
        fixed_seconds=0.0,
        reached=True,
        past=points,
        moves=moves,
    )


def test_a_metric_that_falls_from_one_seed_only_is_chance() -> None:
    good, bad = (0.83, 0.84), (0.70, 0.71)
    noise = Noise(seed_noise=0.004)
    assert fell_after_target([(run(good), run(bad)), (run(good), run(bad))], OBJECTIVE, noise)
    assert not fell_after_target([(run(good), run(bad)), (run(good), run(good))], OBJECTIVE, noise)
    assert not fell_after_target([(run(good), run(bad))], OBJECTIVE, noise)
    assert not fell_after_target([(run(bad), run(bad)), (run(bad), run(bad))], OBJECTIVE, noise)
    assert not fell_after_target([(run(good), run(bad)), (run(good), run(bad))], OBJECTIVE, Noise(seed_noise=0.05))


def moved(still: tuple[int, ...] = (), slow: tuple[int, ...] = (), steps: int = 32) -> tuple[Moved, ...]:
    names = tuple(f"layer{place}" for place in still)
    return (Moved(first_step=0, step=steps, parameters=3, still=still, names=names, slow=(*slow, *still)),)


def test_what_stands_still_in_the_baseline_too_is_no_finding() -> None:
    assert "layer1" in stood_still([(run(moves=moved()), run(moves=moved((1,))))])
    assert not stood_still([(run(moves=moved((1,))), run(moves=moved((1,))))])
    assert not stood_still([(run(moves=moved(slow=(1,))), run(moves=moved((1,))))])


def test_steps_that_a_scaler_leaves_out_are_no_finding() -> None:
    everything = (0, 1, 2)
    assert not stood_still([(run(moves=moved(steps=4)), run(moves=moved(everything, steps=4)))])
    assert stood_still([(run(moves=moved(steps=64)), run(moves=moved(everything, steps=64)))])
