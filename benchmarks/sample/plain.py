"""The synthetic documents of a search that ended well, and of one that found nothing."""

from __future__ import annotations

from autoopt import records as r
from benchmarks.sample.pieces import configuration, environment, estimate, predicted, quality, round_, trial

PLAN = r.Plan(
    changes=(
        r.Change(strategy="workers", setting={"num_workers": 8, "persistent": True}),
        r.Change(strategy="pin_memory", setting={"pin_memory": True}),
        r.Change(strategy="amp", setting={"dtype": "bfloat16"}),
        r.Change(strategy="compile", setting={"mode": "max-autotune"}),
    )
)

SNIPPETS = (
    r.Snippets(
        strategy="workers",
        setting=PLAN.changes[0].setting,
        title="Load batches in 8 processes",
        risk="exact",
        pytorch="loader = DataLoader(train_set, batch_size=256, num_workers=8, persistent_workers=True)",
        transformers={"dataloader_num_workers": 8, "dataloader_persistent_workers": True},
        stages=("decode", "collate"),
    ),
    r.Snippets(
        strategy="pin_memory",
        setting=PLAN.changes[1].setting,
        title="Pinned host memory",
        risk="exact",
        pytorch="loader = DataLoader(train_set, pin_memory=True)\nx = x.to(device, non_blocking=True)",
        transformers={"dataloader_pin_memory": True},
        stages=("copy",),
    ),
    r.Snippets(
        strategy="amp",
        setting=PLAN.changes[2].setting,
        title="bfloat16 autocast",
        risk="numeric",
        pytorch='with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = criterion(model(x), y)',
        lightning={"precision": "bf16-mixed"},
        transformers={"bf16": True},
        accelerate={"mixed_precision": "bf16"},
        stages=("forward", "backward"),
    ),
    r.Snippets(
        strategy="compile",
        setting=PLAN.changes[3].setting,
        title="torch.compile",
        risk="numeric",
        pytorch='model = torch.compile(model, mode="max-autotune")',
        transformers={"torch_compile": True, "torch_compile_mode": "max-autotune"},
        accelerate={"dynamo_config": {"dynamo_backend": "INDUCTOR"}},
        stages=("forward", "backward"),
    ),
)

HEADLINE = r.Headline(
    kind="to_target",
    value=32760.0 / 14184.0,
    low=2.2402,
    high=2.3811,
    n=8,
    step_ratio=estimate(32760.0 / 42_000 * 42_630 / 14184.0, 0.021, n=8),
    steps_ratio=estimate(42_000 / 42_630, 0.022, n=8),
    baseline_seconds=32760.0,
    best_seconds=14184.0,
    source="trained",
    baseline_steps=42_000,
    best_steps=42_630,
    pairs=8,
    blocks=estimate(2.29, 0.02),
    agrees=True,
)
"""Of :func:`win`: eight pairs of trainings, of which the plan's need a few more steps."""

BEFORE = {"read": 0.02, "decode": 0.48, "copy": 0.05, "forward": 0.14, "backward": 0.23, "optimizer": 0.05}
AFTER = {"decode": 0.06, "copy": 0.04, "forward": 0.27, "backward": 0.46, "optimizer": 0.11}


def _trials() -> tuple[r.Trial, ...]:
    v = r.Verdict
    oom = "out_of_memory: tried to allocate 9.4 GiB of 80 GiB"
    return (
        trial(1, "workers", v.KEPT, 1.21, setting={"num_workers": 4}, risk="exact"),
        trial(2, "workers", v.KEPT, 1.18, setting={"num_workers": 8, "persistent": True}, risk="exact", base="1"),
        trial(
            3,
            "workers",
            v.INCONCLUSIVE,
            1.004,
            setting={"num_workers": 16},
            risk="exact",
            reason="the interval still held 1.01 when time was up",
        ),
        trial(4, "pin_memory", v.KEPT, 1.04, setting={"pin_memory": True}, risk="exact"),
        trial(
            5,
            "amp",
            v.KEPT,
            1.31,
            setting={"dtype": "bfloat16"},
            quality=quality("metric"),
            peak_memory_bytes=23 * 1024**3,
        ),
        trial(
            6,
            "amp",
            v.QUALITY_LOST,
            1.30,
            setting={"dtype": "float16"},
            reason="accuracy lower by 0.011 than the tolerance allows",
            quality=r.Quality(
                method="metric", passed=False, metric="accuracy", baseline=0.9312, candidate=0.9155, margin=0.00465
            ),
        ),
        trial(
            7,
            "compile",
            v.KEPT,
            1.15,
            setting={"mode": "max-autotune"},
            quality=quality("metric"),
            peak_memory_bytes=24 * 1024**3,
        ),
        trial(8, "channels_last", v.NO_GAIN, 1.0, reason="upper bound 1.02 under the smallest gain of 1.01 asked for"),
        trial(9, "batch", v.FAILED, None, setting={"size": 1024}, reason=oom, peak_memory_bytes=79 * 1024**3),
        trial(10, "batch", v.NO_GAIN, 1.005, setting={"size": 512}, time_to_target=estimate(0.97), risk="training"),
        trial(11, "checkpointing", v.HARMFUL, 0.74, reason="memory was not the limit"),
        trial(
            12,
            "fused_optimizer",
            v.FAILED,
            None,
            reason="error: RuntimeError: fused is not supported for sparse gradients",
        ),
        trial(
            13,
            "flash_attention",
            v.NOT_APPLICABLE,
            None,
            reason="no attention in the model",
            predicted=None,
            seconds=None,
            finished_at=None,
            log=None,
        ),
        trial(
            14,
            "prefetch",
            v.NOT_TRIED,
            None,
            reason="its best prediction of 1.004 lies under the noise floor of 1.2 %",
            predicted=predicted(1.004, 0.001),
            seconds=None,
            finished_at=None,
            log=None,
        ),
    )


def win() -> r.Result:
    """A search that found four changes and verified them."""
    base, best = configuration(r.Plan(), 0.412, 9.1, 31.2, 0.9312), configuration(PLAN, 0.1783, 3.94, 24.1, 0.9318)
    plans = [r.Plan(), r.Plan(changes=PLAN.changes[:2]), PLAN]
    rounds = (
        round_(0, plans[0], 0.4141, BEFORE, "decode"),
        round_(1, plans[1], 0.281, AFTER | {"decode": 0.2, "backward": 0.34}, "backward"),
        round_(2, plans[2], 0.1791, AFTER, "backward"),
    )
    return r.Result(
        autoopt_version="0.1.0",
        created="2026-01-02T03:04:05Z",
        finished="2026-01-02T04:31:10Z",
        seconds=5225.0,
        budget_seconds=7200.0,
        workload=r.WorkloadSummary(
            spec="synthetic.photos:build",
            name="synthetic photos",
            parameters=25_557_032,
            train_samples=1_281_167,
            batch_size=256,
            max_steps=90_000,
        ),
        environment=environment(),
        objective=r.Objective(
            metric="accuracy",
            mode="max",
            target=0.93,
            target_source="user",
            tolerance=0.005,
            min_gain=0.01,
            price_per_hour=3.5,
        ),
        noise=r.Noise(aa_ratio=estimate(1.003, 0.008), floor=0.012, ratios=(0.998, 1.004, 1.009), seed_noise=0.0011),
        baseline=base,
        best=best,
        speedup=r.Speedup(
            headline=HEADLINE,
            time_to_target=HEADLINE.estimate,
            throughput=estimate(2.311, 0.02),
            end_to_end_verified=True,
        ),
        break_even=r.BreakEven(search_seconds=5225.0, runs=0.28),
        rounds=rounds,
        trials=_trials(),
        ablation=(
            r.Ablation(
                strategy="workers", setting=PLAN.changes[0].setting, without=estimate(1.52), alone=estimate(1.43)
            ),
            r.Ablation(
                strategy="pin_memory",
                setting=PLAN.changes[1].setting,
                without=estimate(1.03, 0.012),
                alone=estimate(1.004),
            ),
            r.Ablation(
                strategy="amp", setting=PLAN.changes[2].setting, without=estimate(1.36), alone=estimate(1.12, 0.04)
            ),
            r.Ablation(strategy="compile", setting=PLAN.changes[3].setting, without=estimate(1.14), alone=None),
        ),
        decided=(
            r.Decided(strategy="workers", verdict=r.Verdict.KEPT, by="its own confirmation"),
            r.Decided(strategy="pin_memory", by="kept as a part of a confirmed combination"),
            r.Decided(strategy="batch", verdict=r.Verdict.FAILED, by="out_of_memory: tried to allocate 9.4 GiB"),
        ),
        stop=r.Stop(
            reason=r.StopReason.DIMINISHING_RETURNS,
            detail="the best remaining prediction is 1.006, under the smallest gain of 1 %",
        ),
        advice=(
            r.Advice(
                title="The loss is read every step",
                evidence=".item() waits for the device: 3.1 ms of each step",
                file="train.py",
                line=88,
                suggestion="Add up losses on the device and read the sum every 50 steps.",
            ),
        ),
        warnings=("2 of 16 cores were busy with other programs during trial 3",),
        snippets=SNIPPETS,
        reproduce=r.Reproduce(
            command="autoopt optimize synthetic.photos:build --budget 2h --seed 0",
            seed=0,
            strategies=("workers", "pin_memory", "amp", "compile"),
            run_directory="autoopt-runs/synthetic-1",
        ),
        not_measured=("energy: the device does not tell it",),
        quality=quality("metric"),
    )


def no_gain() -> r.Result:
    """Nothing was kept: the step already stands at its ceiling."""
    base = win()
    rejected = tuple(
        t.model_copy(update={"verdict": r.Verdict.NO_GAIN, "throughput": estimate(1.003)})
        if t.verdict is r.Verdict.KEPT
        else t
        for t in base.trials
    )
    return base.model_copy(
        update={
            "workload": base.workload.model_copy(update={"name": "synthetic, no gain"}),
            "best": base.baseline,
            "rounds": base.rounds[:1],
            "speedup": r.Speedup(),
            "quality": None,
            "trials": rejected,
            "ablation": (),
            "decided": (),
            "snippets": (),
            "break_even": r.BreakEven(search_seconds=5225.0),
            "stop": r.Stop(
                reason=r.StopReason.AT_THE_CEILING, detail="the step is within 3 % of the simulated ceiling"
            ),
        }
    )


def profile() -> r.Profile:
    base = win()
    return r.Profile(
        autoopt_version="0.1.0",
        created=base.created,
        seconds=71.0,
        workload=base.workload,
        environment=base.environment,
        baseline=base.baseline,
        round=base.rounds[0],
        advice=base.advice,
        warnings=base.warnings,
        reproduce=base.reproduce,
        predictions=(
            r.Prediction(strategy="workers", setting={"num_workers": 8}, predicted=predicted(1.6, 0.1)),
            r.Prediction(strategy="amp", setting={"dtype": "bfloat16"}, predicted=predicted(1.14, 0.05, "tried")),
            r.Prediction(strategy="prefetch", predicted=None),
            r.Prediction(strategy="flash_attention", applies=False, reason="no attention in the model"),
        ),
        profilers=(
            r.Profiled(
                tool="torch",
                file="profilers/torch/steps 4.pt.trace.json.gz",
                lines=("a step takes 412.00 ms", " 51.0 %  DataLoader", "You could try to set num_workers."),
            ),
            r.Profiled(tool="nsys", lines=("nsys is not installed here; where it is, run:", "nsys profile <train>")),
            r.Profiled(tool="pyspy", file="/elsewhere/flame.svg", lines=("5 s sampled at 200 Hz",)),
        ),
    )
