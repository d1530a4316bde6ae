"""Identical changes that are called ``quality_lost``, and true losses that pass: the rates of the quality gate.

Two parts. The metric's rule on simulated seeds, at all looks that it has. And whole trainings of a small model as the
verification judges them, two seeds a side, the candidate's only other in its rounding, or in its draws of augmentation.
Rule, fixed beforehand: at most one per cent of identical changes are lost, at most five per cent of true losses of
twice the tolerance pass.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

import autoopt
from autoopt.benchmark.run import RunUnderWay
from autoopt.benchmark.trial_context import TrialContext
from autoopt.records import Curve, CurvePoint, Noise, Objective, Plan, Quality
from autoopt.records.messages import TrainingRun
from autoopt.records.protocol import TrialSpec
from autoopt.registry import Registry
from autoopt.search.accept.evidence import Evidence
from autoopt.search.accept.gate import judge_runs
from autoopt.search.accept.metric import metric_difference, seed_noise
from autoopt.search.budget_allocation import PAST
from benchmarks.truth import accuracy

MOST_LOST, MOST_PASSED = 0.01, 0.05
RULE = f"identical changes lost {MOST_LOST:.0%} at most, losses of twice the tolerance pass {MOST_PASSED:.0%}"
TARGET, TOLERANCE = 0.82, 0.005
OBJECTIVE = Objective(
    metric="accuracy", mode="max", target=TARGET, target_source="user", tolerance=TOLERANCE, min_gain=0.01
)
SEED_NOISES = (0.0005, 0.002, 0.004, 0.01, 0.03)
LOOKS = (2, 3, 4)
LEVEL = Quality(method="probe", level="equivalent", passed=True, detail="as a probe of an identical change has it")
JITTER = 1e-6
"""Relative size of a change of the first weights: another rounding, which grows in training."""


def _told(seed: int, metric: float) -> TrainingRun:
    return TrainingRun(
        seed=seed,
        curve=Curve(seed=seed, points=(CurvePoint(step=1, seconds=1.0, metric=metric),)),
        seconds=1.0,
        training_seconds=1.0,
        evaluation_seconds=0.0,
        evaluations=1,
        steps=1,
        samples=1,
        fixed_seconds=0.0,
        reached=None,
    )


def metric_rates(sd: float, loss: float, repeats: int, rng: np.random.Generator) -> dict[str, float]:
    """Shares that are lost and that pass, over all looks; the seed noise is what the baseline's own seeds show."""
    lost = passed = 0
    for _ in range(repeats):
        before = [_told(seed, 0.9 + sd * rng.standard_normal()) for seed in range(max(LOOKS))]
        after = [_told(seed, 0.9 - loss + sd * rng.standard_normal()) for seed in range(max(LOOKS))]
        for count in LOOKS:
            noise = Noise(seed_noise=seed_noise(before[:count], "max"))
            found = metric_difference(list(zip(before[:count], after[:count], strict=True)), OBJECTIVE, noise)
            assert found is not None
            if found.lost or found.confirmed:
                lost, passed = lost + found.lost, passed + (found.confirmed and not found.lost)
                break
    return {"seed_noise": sd, "true_loss": loss, "lost": lost / repeats, "passed": passed / repeats}


class Noisy(Dataset[Any]):
    """Points around four centres, each with noise that is drawn whenever it is read."""

    def __init__(self, samples: int, seed: int, draws: int | None) -> None:
        centres = torch.randn(4, 16, generator=torch.Generator().manual_seed(99))
        generator = torch.Generator().manual_seed(seed)
        self.y = torch.randint(4, (samples,), generator=generator)
        self.x = 0.45 * centres[self.y] + torch.randn(samples, 16, generator=generator)
        self.draws = None if draws is None else torch.Generator().manual_seed(draws)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.x[index]
        if self.draws is not None:
            x = x + 0.3 * torch.randn(16, generator=self.draws)
        return x, self.y[index]


DRAWS: list[int | None] = [None]
"""The seed of the augmentation in the next workload that is built; None: there is none."""


def build() -> autoopt.Workload:
    return autoopt.Workload(
        model=nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)),
        train_data=Noisy(2048, 1, DRAWS[0]),
        batch_size=32,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.AdamW(params, lr=2e-3),
        valid_data=Noisy(512, 2, None),
        evaluate=accuracy,
        target=autoopt.Target("accuracy", at_least=TARGET),
        max_steps=512,
        evaluate_every=32,
    )


def training(seed: int, draws: int | None, jitter: float) -> TrainingRun:
    """One whole training as the verification makes it."""
    DRAWS[0] = draws
    spec = TrialSpec(workload="benchmarks.truth.false_losses:build", plan=Plan(), device="cpu", seed=seed)
    context = TrialContext(spec, Registry([]))
    generator = torch.Generator().manual_seed(seed + 7)
    with torch.no_grad():
        for parameter in context.training.model.parameters():
            parameter *= 1 + jitter * torch.randn(parameter.shape, generator=generator)
    run = RunUnderWay(context, max_seconds=60.0, target=TARGET, confirm=1, beyond=PAST)
    run.go_on()
    context.close()
    return run.document()


def verified(number: int, kind: str) -> Quality:
    """An identical change, judged by trainings from two fresh seeds."""
    seeds = [1000 + 2 * number, 1001 + 2 * number]
    other = {"rounding": (None, None, JITTER), "augmentation": (1, 2, 0.0)}[kind]
    before = tuple(training(seed, other[0], 0.0) for seed in seeds)
    after = tuple(training(seed, None if other[1] is None else other[1] + seed, other[2]) for seed in seeds)
    known: dict[str, Any] = {"objective": OBJECTIVE, "deterministic": kind == "rounding", "level": LEVEL}
    return judge_runs(Evidence(baseline_runs=before, candidate_runs=after, **known))


def metric(repeats: int) -> dict[str, Any]:
    """The rates of the metric's rule by seed noise."""
    began, rng, loss = time.monotonic(), np.random.default_rng(0), 2 * TOLERANCE * TARGET
    rows = [metric_rates(sd, true, repeats, rng) for sd in SEED_NOISES for true in (0.0, loss)]
    return {
        "rule": RULE,
        "settings": {"tolerance": TOLERANCE, "target": TARGET, "looks": LOOKS, "repeats": repeats},
        "rows": rows,
        "holds": all(row["passed"] <= MOST_PASSED if row["true_loss"] else row["lost"] <= MOST_LOST for row in rows),
        "seconds": time.monotonic() - began,
    }


def whole(known: dict[str, Any], kind: str, more: int) -> dict[str, Any]:
    """So many further identical changes judged by whole trainings; goes on where ``known`` ended."""
    torch.set_num_threads(1)
    done = int(known.get("changes", 0))
    found = [verified(number, kind) for number in range(done, done + more)]
    bad = [quality.detail for quality in found if quality.passed is False]
    lost = known.get("lost", 0) + len(bad)
    return {
        "rule": RULE,
        "settings": {"tolerance": TOLERANCE, "target": TARGET, "jitter": JITTER, "past": PAST, "seeds": 2},
        "changes": done + more,
        "lost": lost,
        "why": [*known.get("why", []), *bad][:5],
        "holds": lost <= MOST_LOST * (done + more),
    }


def measure(part: str, count: int, known: dict[str, Any]) -> dict[str, Any]:
    """One part: so many repeats of the metric's rule, or so many further changes judged by whole trainings."""
    return metric(count) if part == "metric" else whole(known, part, count)
