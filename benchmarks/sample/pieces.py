"""Parts of the synthetic documents."""

from __future__ import annotations

import math
import random

from autoopt import records as r


def estimate(value: float, half: float = 0.02, n: int = 12) -> r.Estimate:
    """An estimate whose interval is ``value`` times or over ``1 + half``."""
    return r.Estimate(value=round(value, 5), low=round(value / (1 + half), 5), high=round(value * (1 + half), 5), n=n)


def predicted(value: float, half: float = 0.02, kind: str = "simulated") -> r.Estimate:
    """A prediction of a kind."""
    return estimate(value, half, n=1).as_kind(kind)


def environment(load: float = 0.3) -> r.Environment:
    return r.Environment(
        python="3.11.9",
        torch="2.13.0+cu130",
        cuda="13.0",
        device="cuda",
        device_name="Synthetic GPU",
        device_memory_bytes=80 * 1024**3,
        cpu="Synthetic CPU",
        cores=16,
        threads=8,
        ram_bytes=128 * 1024**3,
        os="Linux",
        git_commit="0123abc",
        load=load,
        packages={"numpy": "2.1.0", "pillow": "11.0"},
        peaks=r.Peaks(
            matmul_fp32_flops_per_second=6.1e13,
            matmul_tf32_flops_per_second=3.9e14,
            matmul_bf16_flops_per_second=7.2e14,
            memory_bytes_per_second=2.9e12,
            copy_pageable_to_device_bytes_per_second=9.1e9,
            copy_pinned_to_device_bytes_per_second=5.3e10,
            launch_seconds=3.4e-6,
        ),
    )


def _whole_run(step: float) -> r.WholeRun:
    """Ten thousand steps, evaluated ten times, with what comes before and between them."""
    each = {"imports": (3.2, 1), "build": (6.1, 1), "steps": (step, 10_000), "evaluations": (4.5, 10)}
    whole = sum(seconds * count for seconds, count in each.values())
    parts = tuple(
        r.RunPart(name=name, seconds=s * n, each=s, count=n, share=s * n / whole) for name, (s, n) in each.items()
    )
    return r.WholeRun(steps=10_000, seconds=whole, parts=parts, missing=("end",))


def round_(index: int, plan: r.Plan, step: float, shares: dict[str, float], bottleneck: str) -> r.Round:
    """A round whose stages take the given shares of the step."""
    where = {
        "read": r.Resource.STORAGE,
        "decode": r.Resource.WORKER,
        "collate": r.Resource.WORKER,
        "copy": r.Resource.LINK,
        "host": r.Resource.HOST,
        "forward": r.Resource.DEVICE,
        "backward": r.Resource.DEVICE,
        "optimizer": r.Resource.DEVICE,
    }
    stages = []
    for place, (name, resource) in enumerate(where.items()):
        exposed = round(shares.get(name, 0.0) * step, 7)
        alone = round(max(exposed, step * (0.02 + 0.01 * place)), 7)
        ceiling = round(alone / (1.2 + 0.35 * place), 7)
        stages.append(
            r.Stage(
                name=name,
                resource=resource,
                seconds=alone,
                exposed_seconds=exposed,
                ceiling_seconds=None if name == "read" else ceiling,
                gap=None if name == "read" else round(alone / ceiling, 4),
                parallel=4 if resource is r.Resource.WORKER else 1,
            )
        )
    names = list(where)
    edges = tuple(zip(names, [*names[1:3], "copy", "forward", "forward", "backward", "optimizer"], strict=False))
    operators = tuple(
        r.Operator(
            name=f"aten::{op}",
            seconds=round(step * 0.3 / (k + 1), 7),
            flops=round(2.0e12 / (k + 1) ** 1.6),
            bytes=round(3.0e10 / (k + 1) ** 0.4),
            ceiling_seconds=round(step * 0.1 / (k + 1), 7),
        )
        for k, op in enumerate(["convolution", "addmm", "native_batch_norm", "relu_", "max_pool2d", "add_"])
    )
    return r.Round(
        index=index,
        plan=plan,
        step_seconds=step,
        stages=tuple(stages),
        edges=edges,
        critical_path=tuple(n for n in names if shares.get(n, 0) > 0.05),
        bottleneck=bottleneck,
        predicted_step_seconds=round(step * 1.04, 7),
        simulation_error=0.04,
        ceiling_step_seconds=round(step * 0.31, 7),
        whole_run=_whole_run(step),
        bottleneck_class="decoding on the CPU" if bottleneck == "decode" else "compute on the device",
        deeper=(
            r.Deeper(
                name=bottleneck,
                kind="stage",
                seconds=round(step * 0.5, 7),
                ceiling_seconds=round(step * 0.2, 7),
                gap=2.5,
            ),
            r.Deeper(
                name="ToTensor()",
                kind="transform",
                seconds=round(step * 0.3, 7),
                file="data.py",
                line=41,
                note="PIL to float",
            ),
        ),
        operators=operators,
    )


def curve(seed: int, until: float, seconds: float, evaluations: int = 20, steps: int = 4000) -> r.Curve:
    draw = random.Random(seed)
    points = []
    for k in range(1, evaluations + 1):
        metric = until * (1 - math.exp(-4 * k / evaluations)) / (1 - math.exp(-4)) + draw.gauss(0, 0.003)
        points.append(
            r.CurvePoint(
                step=steps * k // evaluations,
                seconds=round(seconds * k / evaluations, 2),
                metric=round(metric, 5),
            )
        )
    return r.Curve(
        seed=seed, points=tuple(points), reached=True, seconds_to_target=round(seconds * 0.9, 2), steps_to_target=steps
    )


def configuration(
    plan: r.Plan, step: float, hours: float, memory: float, metric: float, seeds: int = 3
) -> r.Configuration:
    return r.Configuration(
        plan=plan,
        samples_per_second=round(256 / step, 3),
        step_seconds=r.Percentiles(p50=step, p95=step * 1.08, p99=step * 1.2),
        time_to_target_seconds=estimate(hours * 3600, 0.015),
        fixed_seconds=21.4,
        evaluation_seconds=11.2,
        steps_to_target=79000,
        metric=metric,
        peak_memory_bytes=int(memory * 1024**3),
        device_utilization=0.42,
        cpu_utilization=0.81,
        flops_per_second=round(2.9e12 / step),
        mfu=0.11,
        cost_to_target=round(hours * 3.5, 2),
        curves=tuple(curve(seed, metric, hours * 3600) for seed in range(seeds)),
    )


def quality(method: str, margin: float | None = 0.00465) -> r.Quality:
    if method == "metric":
        return r.Quality(
            method="metric",
            passed=True,
            metric="accuracy",
            baseline=0.9312,
            candidate=0.9318,
            margin=margin,
            difference=r.Estimate(value=0.0006, low=-0.0019, high=0.0031, n=3),
            seeds=3,
        )
    return r.Quality(method="losses", passed=True, largest_loss_difference=3e-7, steps=64)


def trial(place: int, strategy: str, verdict: r.Verdict, ratio: float | None, **more: object) -> r.Trial:
    """A trial with plausible company; ``more`` replaces any field."""
    fields: dict[str, object] = {
        "id": place,
        "round": 1 + place // 8,
        "strategy": strategy,
        "verdict": verdict,
        "risk": "numeric",
        "predicted": predicted(1 + 0.07 * (place % 5 + 1), 0.08, ("simulated", "tried", "declared")[place % 3]),
        "seconds": 40.0 + 13 * (place % 7),
        "log": f"logs/{place}.log",
        "finished_at": 300.0 + 110.0 * place,
    }
    if ratio is not None:
        fields |= {
            "throughput": estimate(ratio),
            "quality": quality("losses"),
            "peak_memory_bytes": (20 + place % 9) * 1024**3,
            "samples_per_second": round(620 * ratio, 2),
            "ratios": tuple(round(ratio * (1 + 0.01 * k), 4) for k in (-1, 0, 1)),
        }
    return r.Trial.model_validate(fields | more)
