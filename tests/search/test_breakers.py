"""Changes that are faster and spoil the training: each is named ``quality_lost``; honest ones pass."""

from __future__ import annotations

import pytest
import torch

from autoopt.records import Estimate, Noise, Objective, Quality, Verdict
from autoopt.records.messages import TrainingRun
from autoopt.search.accept.evidence import Evidence
from autoopt.search.accept.metric import seed_noise
from autoopt.search.compare.comparison import Comparison, Decision, LossPath, Side
from autoopt.setup import Setup
from autoopt.strategy import Risk
from made_up import judge_as, required_as
from workloads import breakers, breaking_trainer

OBJECTIVE = Objective(metric="accuracy", mode="max", target=0.82, target_source="user", tolerance=0.005, min_gain=0.01)
SEEDS = (0, 1)
PROBE = 96
LEVEL = Quality(method="probe", level="equivalent", passed=True, detail="what a probe overlooks")


def run(setup: Setup, seed: int, jitter: float = 0.0) -> TrainingRun:
    torch.manual_seed(seed)
    return breaking_trainer.train(breakers.build(), setup, seed, jitter=jitter)


@pytest.fixture(scope="module")
def baseline() -> tuple[TrainingRun, ...]:
    runs = tuple(run(Setup(), seed) for seed in (*SEEDS, 2))
    assert all(r.reached for r in runs)
    return runs


def faster(baseline: TrainingRun, candidate: TrainingRun, samples_per_step: float) -> Comparison:
    """A comparison in which the candidate was proved 1.4 times faster."""

    def side(run: TrainingRun, rate: float, samples: float) -> Side:
        losses = run.losses[:PROBE]
        path = LossPath(steps=tuple(range(len(losses))), losses=losses)
        return Side(
            samples_per_second=rate,
            samples_per_step=samples,
            fixed_seconds=(1.0,),
            losses=path,
            evaluated_samples=run.evaluated_samples,
        )

    return Comparison(
        decision=Decision.ACCEPT,
        reason="faster",
        estimate=Estimate(value=1.4, low=1.35, high=1.45, n=3),
        incumbent=side(baseline, 3200.0, breakers.BATCH),
        candidate=side(candidate, 4480.0, samples_per_step),
    )


def verdict(risk: Risk, setup: Setup, baseline: tuple[TrainingRun, ...], jitter: float = 0.0):
    """Judges as the loop does: gathers what the judge still needs, seed by seed."""
    first = run(setup, 0, jitter)
    comparison = faster(baseline[0], first, setup.batch.size or breakers.BATCH)
    noise = Noise(seed_noise=seed_noise(baseline, "max"))
    evidence = Evidence(baseline_runs=baseline, deterministic=True, planned_steps=256, level=LEVEL)
    for _ in range(5):
        wanted = required_as(risk, comparison, evidence, OBJECTIVE, noise)
        have = len(evidence.candidate_runs)
        if not wanted or wanted.seeds <= have or wanted.seeds > len(baseline):
            break
        fresh = tuple(run(setup, seed, jitter) for seed in range(have, wanted.seeds))
        evidence = evidence.model_copy(update={"candidate_runs": (*evidence.candidate_runs, *fresh)})
    return judge_as(risk, comparison, evidence, OBJECTIVE, noise)


@pytest.mark.parametrize("breaker", breakers.BREAKERS, ids=lambda breaker: breaker.name)
def test_breaker_is_named_quality_lost(breaker, baseline) -> None:
    found = verdict(breaker.risk, breaker.apply(Setup(), {}), baseline)
    assert found.verdict is Verdict.QUALITY_LOST, found.reason
    assert found.quality.passed is False
    assert found.reason


@pytest.mark.parametrize("breaker", breakers.BREAKERS, ids=lambda breaker: breaker.name)
def test_breaker_that_claims_to_be_exact_is_found_too(breaker, baseline) -> None:
    found = verdict(Risk.EXACT, breaker.apply(Setup(), {}), baseline)
    assert found.verdict is Verdict.QUALITY_LOST, found.reason


@pytest.mark.parametrize("jitter", [0.0, 1e-7, 1e-3])
def test_honest_numeric_change_is_kept(jitter: float, baseline) -> None:
    found = verdict(Risk.NUMERIC, Setup(), baseline, jitter)
    assert found.verdict is Verdict.KEPT, found.reason
    assert found.quality.passed is True
    assert found.time_to_target is not None
    assert found.time_to_target.value > 1.05


@pytest.mark.parametrize("jitter", [0.0, 1e-7])
def test_honest_exact_change_is_kept(jitter: float, baseline) -> None:
    found = verdict(Risk.EXACT, Setup(), baseline, jitter)
    assert found.verdict is Verdict.KEPT, found.reason
    assert found.quality.level == "equivalent"


def test_honest_training_change_loses_no_quality(baseline) -> None:
    found = verdict(Risk.TRAINING, Setup().with_batch(learning_rate_factor=2.0), baseline)
    assert found.verdict in (Verdict.KEPT, Verdict.INCONCLUSIVE), found.reason
    assert found.quality.passed is True
    assert found.time_to_target.value > 1.05
