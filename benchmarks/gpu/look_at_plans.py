"""A first look at whole plans on a CUDA device: predictions beside comparisons, the ladder, loader workers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.gpu.look import ROOT, Found, Look, failed, trials

PREDICTED = ("cuda_graphs", "fused_optimizer", "prepared_samples", "matmul_precision", "amp", "compile")


def predictions(look: Look) -> Found:
    """Predictions of strategies on ``tiny``, beside a direct comparison of each in pairs of processes."""
    from autoopt.options import Options
    from autoopt.records import Plan
    from autoopt.records.protocol import TrialSpec
    from autoopt.registry import load_strategies
    from autoopt.search.baseline import objective_of
    from autoopt.search.compare.comparison import Rule
    from autoopt.search.compare.contest import compare
    from autoopt.search.planner import candidate_plan, predict
    from autoopt.search.state import SearchState
    from autoopt.search.trial_runner import TrialRunner
    from autoopt.simplify.analyse import build_round
    from autoopt.simplify.stage_profile import describe, profile_stages
    from autoopt.trial.parent import Launcher

    registry, found = load_strategies(), {}
    spec = TrialSpec(workload=look.case("tiny"), device=look.device, directory=str(ROOT), search_path=(str(ROOT),))
    with tempfile.TemporaryDirectory() as logs, Launcher() as launcher:
        runner = TrialRunner(launcher, spec, registry, Path(logs))
        described = describe(runner)
        profile = profile_stages(runner, Plan(), seconds=2.0 if look.toy else 9.0, advise=False)
        round_, pipeline = build_round(described, profile)
        facts = described.facts.model_copy(update={"inspected": profile.inspected})
        state = SearchState(facts=facts, environment=described.environment, objective=objective_of(facts, Options()))
        case = state.case(registry, pipeline, None)
        document: Found = {"simulation_error": round_.simulation_error, "changes": found}
        for name in PREDICTED[:2] if look.toy else PREDICTED:
            strategy = registry[name]
            applies = strategy.applies(case)
            if not applies:
                found[name] = {"refused": applies.reason}
                continue
            if look.left(0.0) < 20.0 and not look.toy:
                found[name] = {"not measured": "no time was left"}
                continue
            setting = dict(next(iter(strategy.settings(case))))
            reported = predict(strategy, case, setting)
            seconds = min(60.0, look.left() / 2) if not look.toy else 3.0
            rule = Rule(max_seconds=seconds, min_pairs=2, max_pairs=2, until_error=0.03, warm_up_seconds=30.0)
            change = _change(name, setting)
            measured = compare(
                runner.start, Plan(), candidate_plan(registry, Plan(), (change,)), rule, clock=perf_counter
            )
            found[name] = {"setting": setting, "predicted": _plain(reported), "measured": _plain(measured.estimate)}
    return document


def _change(name: str, setting: Found) -> Any:
    from autoopt.records import Change

    return Change(strategy=name, setting=setting)


def _plain(estimate: Any) -> Any:
    return None if estimate is None else estimate.model_dump()


def ladder(look: Look) -> Found:
    """GPT-2 by fixed plans, each on top of the one before: samples per second, operations, share of the peak."""
    import torch

    from autoopt.simplify.peaks import matmul_rate

    peak = matmul_rate(torch.device(look.device), "bf16", 0.2 if look.toy else 2.0)
    rungs: list[tuple[str, Found | None]] = [
        ("baseline", {}),
        ("matmul_precision", {"precision": "high"}),
        ("amp", {"dtype": "bfloat16"}),
        ("flash_attention", None),
        ("fused_optimizer", {"implementation": "fused"}),
        ("chunked_loss", None),
        ("compile", {"mode": "default"}),
    ]
    found: Found = {"peak_bf16_flops_per_second": peak, "rungs": []}
    changes: list[tuple[str, Found]] = []
    with trials(look) as start:
        for name, setting in rungs:
            rung: Found = {"plan": [*(change for change, _ in changes), name]}
            try:
                if name != "baseline":
                    reported = _setting(start, changes, name) if setting is None else setting
                    changes.append((name, reported))
                rung |= _rate(start, changes, look, peak)
            except Exception as error:
                rung |= failed(error)
                changes = [change for change in changes if change[0] != name]
            found["rungs"].append(rung)
    return found


def _setting(start: Callable[..., Any], changes: list[tuple[str, Found]], name: str) -> Found:
    """The setting that a strategy would try first on the plan so far, as its inspection finds it."""
    with start("gpt2", *changes) as process:
        found = process.call("autoopt.benchmark.tasks:inspect", timeout=180.0, strategies=[name])[name]
    if name == "flash_attention":
        return {"functions": found["functions"]}
    if "path" not in found:
        raise LookupError(found.get("reason") or "no head was found whose logits go into the loss")
    return {"path": found["path"], "rows": 2048, "multiple": 64}


def _rate(start: Callable[..., Any], changes: Any, look: Look, peak: float | None, case: str = "gpt2") -> Found:
    began = perf_counter()
    with start(case, *changes) as process:
        process.call("autoopt.benchmark.tasks:warm_up", timeout=look.left(60.0), max_seconds=3.0 if look.toy else 90.0)
        ready = perf_counter() - began
        seconds = 0.2 if look.toy else 8.0
        block = process.call("autoopt.benchmark.tasks:run_block", timeout=120.0, seconds=seconds, min_steps=5)
        flops = process.call("autoopt.benchmark.tasks:flops", timeout=120.0).get("flops_per_step")
    step = block["seconds"] / block["steps"]
    return {
        "samples_per_second": block["samples"] / block["seconds"],
        "step_seconds": step,
        "ready_seconds": ready,
        "flops_per_second": None if not flops else flops / step,
        "mfu": None if not flops or not peak else flops / step / peak,
        "peak_memory_bytes": block.get("peak_memory_bytes"),
    }


def loader(look: Look) -> Found:
    """ResNet-50 from JPEG files with more and more workers."""
    found: Found = {}
    with trials(look) as start:
        for workers in (0, 1) if look.toy else (0, 4, 8, 12, 16):
            options = {"num_workers": workers, "persistent_workers": True, "prefetch_factor": 4}
            changes = [("workers", options)] if workers else []
            try:
                found[str(workers)] = _rate(start, changes, look, None, "resnet50")
            except Exception as error:
                found[str(workers)] = failed(error)
    return found
