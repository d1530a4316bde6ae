"""The synthetic documents that are hard to show: failures, an interruption, a thousand trials, hostile names."""

from __future__ import annotations

import random

from autoopt import records as r
from benchmarks.sample.pieces import configuration, estimate, trial
from benchmarks.sample.plain import PLAN, SNIPPETS, win

HOSTILE = '<script>alert("x")</script>\'"&\u202e\u05e9\u05dc\u05d5\u05dd \U0001f525\x1b[31m{{7*7}} [bold]'


def out_of_memory() -> r.Result:
    """Most of the search ran out of memory; one change survived, its gain in doubt."""
    base = win()
    trials = [
        trial(
            k,
            s,
            r.Verdict.FAILED,
            None,
            setting={"size": 256 * k},
            peak_memory_bytes=int((70 + k * 0.6) * 1024**3),
            reason=f"out_of_memory: tried to allocate {k}.5 GiB at {70 + k} GiB of 80 GiB",
        )
        for k, s in enumerate(["batch", "compile", "flash_attention"] * 5, start=1)
    ]
    trials.append(trial(16, "workers", r.Verdict.KEPT, 1.06, setting={"num_workers": 8}, quality=None))
    plan = r.Plan(changes=(r.Change(strategy="workers", setting={"num_workers": 8}),))
    return base.model_copy(
        update={
            "workload": base.workload.model_copy(update={"name": "synthetic, out of memory"}),
            "trials": tuple(trials),
            "quality": None,
            "ablation": (),
            "decided": (),
            "best": configuration(plan, 0.3996, 8.9, 79.1, 0.9309, 1),
            "snippets": SNIPPETS[:1],
            "speedup": r.Speedup(throughput=r.Estimate(value=1.03, low=0.991, high=1.072, n=3)),
            "stop": r.Stop(reason=r.StopReason.BUDGET),
            "warnings": ("peak memory within 5 % of the limit", "load rose during round 1"),
        }
    )


def interrupted() -> r.Result:
    """Stopped during the first round: most of it is not measured."""
    base = win()
    bare = r.Configuration(
        plan=r.Plan(), step_seconds=base.baseline.step_seconds, samples_per_second=base.baseline.samples_per_second
    )
    kept = r.Configuration(plan=r.Plan(changes=PLAN.changes[:1]))
    return base.model_copy(
        update={
            "workload": base.workload.model_copy(update={"name": "synthetic, interrupted", "parameters": None}),
            "baseline": bare,
            "best": kept,
            "noise": r.Noise(),
            "speedup": r.Speedup(),
            "quality": None,
            "rounds": base.rounds[:1],
            "trials": base.trials[:2],
            "ablation": (),
            "decided": (),
            "stop": r.Stop(reason=r.StopReason.INTERRUPTED, detail="Ctrl-C after trial 2"),
            "advice": (),
            "warnings": (),
            "finished": None,
            "environment": r.Environment(python="3.11.9", device="cpu"),
            "snippets": (),
            "break_even": r.BreakEven(search_seconds=310.0),
            "not_measured": ("the A/A control", "time to target", "peaks of the machine"),
            "seconds": 310.0,
        }
    )


def many(count: int = 1000) -> r.Result:
    """A search of so many trials."""
    base, draw = win(), random.Random(5)
    names = [f"strategy_{k}" for k in range(24)]
    made = list(base.trials)
    verdicts = [r.Verdict.NO_GAIN] * 6 + [
        r.Verdict.HARMFUL,
        r.Verdict.FAILED,
        r.Verdict.INCONCLUSIVE,
        r.Verdict.NOT_APPLICABLE,
    ]
    for k in range(len(made) + 1, count + 1):
        verdict = draw.choice(verdicts)
        ran = verdict not in {r.Verdict.FAILED, r.Verdict.NOT_APPLICABLE}
        made.append(
            trial(
                k,
                draw.choice(names),
                verdict,
                round(draw.uniform(0.7, 1.01), 4) if ran else None,
                setting={"size": k, "mode": draw.choice(["a", "b"])},
                finished_at=round(1500 + 3.5 * k, 1),
                seconds=3.2,
                reason="error: RuntimeError: something went wrong in the step" if verdict is r.Verdict.FAILED else "",
                ratios=(),
            )
        )
    title = f"synthetic, {count} trials"
    return base.model_copy(update={"workload": base.workload.model_copy(update={"name": title}), "trials": tuple(made)})


def hostile() -> r.Result:
    """Names that are markup, quotes, right-to-left text, control codes, emoji, and 10 kB long."""
    base = win()
    long = HOSTILE + "x" * 10_240
    change = r.Change(strategy=HOSTILE, setting={HOSTILE: long, "</style>": ["'", '"', None]})
    plan = r.Plan(changes=(change,))
    bad = trial(1, HOSTILE, r.Verdict.KEPT, 1.4, setting=change.setting, companions=(change,), reason=long, log=HOSTILE)
    bad2 = trial(2, long, r.Verdict.FAILED, None, reason=f"error: {HOSTILE}\n\x07{long}", peak_memory_bytes=2**36)
    stages = tuple(s.model_copy(update={"name": f"{k}{HOSTILE}"}) for k, s in enumerate(base.rounds[0].stages))
    rounds = (
        base.rounds[0].model_copy(
            update={
                "stages": stages,
                "bottleneck": stages[1].name,
                "bottleneck_class": long,
                "notes": (HOSTILE,),
                "edges": (
                    *tuple((stages[k].name, stages[k + 1].name) for k in range(len(stages) - 1)),
                    (stages[3].name, stages[0].name),
                ),
                "critical_path": tuple(s.name for s in stages[:4]),
                "operators": (r.Operator(name=HOSTILE, seconds=0.01, flops=1e9, bytes=1e8),),
                "deeper": (r.Deeper(name=long, kind="line", seconds=0.1, file=HOSTILE, line=3, note=HOSTILE),),
            }
        ),
    )
    code = f"</code></pre></textarea>{HOSTILE}\n--><!--"
    return base.model_copy(
        update={
            "workload": base.workload.model_copy(
                update={"name": "synthetic, hostile " + HOSTILE, "spec": "a b;$(rm):" + HOSTILE}
            ),
            "environment": base.environment.model_copy(update={"device_name": HOSTILE, "packages": {HOSTILE: HOSTILE}}),
            "objective": base.objective.model_copy(update={"metric": HOSTILE}),
            "trials": (bad, bad2),
            "rounds": rounds,
            "best": base.best.model_copy(update={"plan": plan}),
            "ablation": (
                r.Ablation(strategy=HOSTILE, setting=change.setting, without=estimate(1.4), alone=estimate(1.2)),
            ),
            "advice": (r.Advice(title=long, evidence=HOSTILE, file="javascript:alert(1)", line=1, suggestion=code),),
            "warnings": (long, HOSTILE),
            "not_measured": (HOSTILE,),
            "stop": r.Stop(reason=r.StopReason.EXHAUSTED, detail=long),
            "snippets": (
                r.Snippets(
                    strategy=HOSTILE,
                    title=f"x\nimport os\n{HOSTILE}",
                    pytorch=code,
                    lightning={HOSTILE: code, "_note": code},
                    transformers={"a": code},
                    risk=HOSTILE,
                    stages=(stages[1].name,),
                ),
            ),
            "reproduce": r.Reproduce(command=f"autoopt optimize '{HOSTILE}'", run_directory="runs/it's <b>"),
        }
    )
