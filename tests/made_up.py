"""Evidence for the judge: losses, sides, comparisons and trainings of given figures, and real trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from autoopt.benchmark.run import RunUnderWay
from autoopt.benchmark.trial_context import TrialContext
from autoopt.records import Change, Curve, CurvePoint, Estimate, Noise, Objective, Plan, Quality
from autoopt.records.messages import Startup, TrainingRun
from autoopt.records.protocol import TrialSpec
from autoopt.registry import Registry
from autoopt.search.accept.evidence import Evidence, Judgement, RequiredRuns
from autoopt.search.accept.gate import judge, required_runs
from autoopt.search.compare.comparison import Comparison, Decision, LossPath, Side
from autoopt.strategy import Risk
from workloads import breakers

OBJECTIVE = Objective(metric="accuracy", mode="max", target=0.9, target_source="user", tolerance=0.005, min_gain=0.01)
NOISE = Noise(seed_noise=0.004)
STEPS = 64
SAME = Quality(method="probe", level="identical", passed=True, detail="same batches, losses and weights")
DOUBT = Quality(method="probe", level="undecided", detail="gradients differ by more than rounding would")


def losses(seed: int = 0, steps: int = STEPS, slow: float = 1.0, jitter: float = 0.0) -> tuple[float, ...]:
    """A falling loss with batch noise that depends on the seed alone; ``slow`` learns that much slower."""
    batch = np.random.default_rng(seed).normal(0, 0.1, steps)
    own = np.random.default_rng(99).normal(0, 1, steps)
    step = np.arange(steps)
    return tuple(0.3 + 2.0 * np.exp(-step / 40.0 / slow) + batch + jitter * own)


def side(path: tuple[float | None, ...], rate: float = 1000.0, samples: float = 10.0, fixed: float = 1.0) -> Side:
    startup = Startup(build_seconds=0, setup_seconds=0, warmup_seconds=1, warmup_steps=5, fixed_seconds=fixed)
    return Side(
        samples_per_second=rate,
        samples_per_step=samples,
        startup=startup,
        fixed_seconds=(fixed,),
        losses=LossPath.of(path),
    )


def comparison(
    before: tuple[float | None, ...] = losses(),
    after: tuple[float | None, ...] = losses(),
    decision: Decision = Decision.ACCEPT,
    speed: float = 1.5,
    samples: float = 10.0,
    fixed: float = 1.0,
    **fields,
) -> Comparison:
    return Comparison(
        decision=decision,
        reason=f"{decision}",
        estimate=Estimate(value=speed, low=0.97 * speed, high=1.03 * speed, n=3),
        incumbent=side(before),
        candidate=side(after, 1000.0 * speed, samples, fixed),
        **fields,
    )


def run(seed: int, to: float | None = 100.0, best: float = 0.93, evaluated: int = 500, **fields) -> TrainingRun:
    """A training that reaches 0.9 after ``to`` steps, or ends at ``best`` below it where ``to`` is None."""
    steps = np.arange(20, 221, 20)
    metric = 0.9 * steps / to if to else best * steps / 220
    metric = np.minimum(metric, best)
    keep = int(np.argmax(metric >= 0.9)) + 1 if (metric >= 0.9).any() else len(steps)
    points = tuple(
        CurvePoint(step=int(s), seconds=0.01 * s, metric=float(m)) for s, m in zip(steps, metric, strict=True)
    )[:keep]
    return TrainingRun(
        **{
            "seed": seed,
            "curve": Curve(seed=seed, points=points),
            "seconds": 5.0,
            "training_seconds": 0.01 * points[-1].step,
            "evaluation_seconds": 0.1 * len(points),
            "evaluations": len(points),
            "evaluated_samples": evaluated,
            "steps": points[-1].step,
            "samples": 10 * points[-1].step,
            "fixed_seconds": 1.0,
            "reached": points[-1].metric >= 0.9,
            "losses": losses(seed, points[-1].step),
            **fields,
        }
    )


def breakers_trial(registry: Registry, *changes: str, seed: int = 0, build: str = "build") -> TrialContext:
    """A trial of ``workloads/breakers.py`` under these changes, in this process."""
    plan = Plan(changes=tuple(Change(strategy=name) for name in changes))
    spec = TrialSpec(workload=f"{Path(breakers.__file__)}:{build}", plan=plan, device="cpu", seed=seed)
    return TrialContext(spec, registry)


def trained(registry: Registry, *changes: str, seed: int = 0, target: float = 0.82, **how: Any) -> TrainingRun:
    """A whole training of ``workloads/breakers.py`` to its target."""
    context = breakers_trial(registry, *changes, seed=seed)
    run = RunUnderWay(context, max_seconds=60.0, target=target, **how)
    run.go_on()
    context.close()
    return run.document()


def evidence(candidate: tuple[TrainingRun, ...] = (), baseline: tuple[TrainingRun, ...] | None = None, **fields):
    runs = tuple(run(seed) for seed in range(3)) if baseline is None else baseline
    known = {"objective": OBJECTIVE, "noise": NOISE, "deterministic": True, "level": SAME, **fields}
    return Evidence(baseline_runs=runs, candidate_runs=candidate, **known)


def judge_as(risk: Risk, comparison: Comparison, evidence: Evidence, objective: Objective, noise: Noise) -> Judgement:
    """The verdict on a candidate of that class."""
    return judge(comparison, evidence.model_copy(update={"risk": risk, "objective": objective, "noise": noise}))


def required_as(
    risk: Risk, comparison: Comparison, evidence: Evidence, objective: Objective, noise: Noise
) -> RequiredRuns:
    """The trainings that the verdict on it still wants."""
    known = {"risk": risk, "objective": objective, "noise": noise}
    return required_runs(comparison, evidence.model_copy(update=known))
