"""Changes that break a training later than any probe looks, found in the trainings of the verification."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autoopt.benchmark.kept_weights import Movement
from autoopt.benchmark.run import RunUnderWay
from autoopt.benchmark.trial_context import TrialContext
from autoopt.records import Change, Curve, CurvePoint, Noise, Objective, Plan, Quality
from autoopt.records.messages import Moved, TrainingRun
from autoopt.registry import Registry, Source
from autoopt.search.accept.evidence import Evidence
from autoopt.search.accept.gate import judge_runs
from autoopt.search.accept.losses import stood_still
from autoopt.search.accept.metric import PAST, fell_after_target, seed_noise
from autoopt.strategy import Risk
from autoopt.trial.protocol import TrialSpec
from benchmarks.truth import quality_changes
from benchmarks.truth.quality_changes import FrozenLater, bf16, hooked
from workloads import breakers

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


def trained(seed: int, *changes: str) -> TrainingRun:
    plan = Plan(changes=tuple(Change(strategy=name) for name in changes))
    spec = TrialSpec(workload=f"{Path(breakers.__file__)}:build", plan=plan, device="cpu", seed=seed)
    context = TrialContext(spec, REGISTRY)
    run = RunUnderWay(context, max_seconds=60.0, target=OBJECTIVE.target, confirm=1, beyond=PAST)
    run.go_on()
    context.close()
    return run.document()


@pytest.fixture(scope="module")
def baseline() -> tuple[TrainingRun, ...]:
    return tuple(trained(seed) for seed in (0, 1))


def verified(baseline: tuple[TrainingRun, ...], *changes: str) -> Quality:
    """The quality of a final plan, trained from two seeds, whose probe saw nothing."""
    runs = tuple(trained(seed, *changes) for seed in (0, 1))
    evidence = Evidence(baseline_runs=baseline, candidate_runs=runs, deterministic=True, level=LEVEL)
    return judge_runs(evidence, OBJECTIVE, Noise(seed_noise=seed_noise(baseline, "max")))


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


def test_a_model_without_parameters_to_train_has_no_moves() -> None:
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    movement = Movement(frozen)
    movement.look(4)
    assert [(move.step, move.parameters, move.still) for move in movement.moves] == [(4, 0, ())]
    spread = torch.nn.Linear(2, 2)
    spread.weight.device_mesh = "over processes"
    movement = Movement(spread)
    movement.look(4)
    assert movement.moves == []


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
