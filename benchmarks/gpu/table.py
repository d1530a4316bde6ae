"""A case's document: from autoopt's result to plain numbers, and to the lines that are printed."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.rivals import TITLES

NOTHING = "not measured"


def of_result(result: Any) -> dict[str, Any]:
    """A case's figures of an ``autoopt.Result``; what was not measured is None."""
    last = result.rounds[-1] if result.rounds else None
    return {
        "baseline": side(result.baseline),
        "best": side(result.best),
        "throughput": estimate(result.speedup.throughput),
        "time_to_target": estimate(result.speedup.time_to_target),
        "end_to_end_verified": result.speedup.end_to_end_verified,
        "quality": result.quality.model_dump() if result.quality else None,
        "noise_floor": result.noise.floor,
        "kept": [kept(result, change) for change in result.best.plan.changes],
        "ceiling": ceiling(last),
        "best_matmul_flops_per_second": matmul_peak(result.environment.peaks),
        "mfu_missing": {"before": mfu_missing(result, result.baseline), "after": mfu_missing(result, result.best)},
        "budget_seconds": result.budget_seconds,
        "seconds": result.seconds,
        "stop": result.stop.model_dump(),
        "warnings": list(result.warnings),
        "autoopt_version": result.autoopt_version,
    }


def side(configuration: Any) -> dict[str, Any]:
    """A configuration's figures."""
    steps = configuration.step_seconds
    return {
        "samples_per_second": configuration.samples_per_second,
        "step_seconds": steps.p50 if steps else None,
        "time_to_target_seconds": estimate(configuration.time_to_target_seconds),
        "time_to_target_source": configuration.time_to_target_source,
        "metric": configuration.metric,
        "flops_per_second": configuration.flops_per_second,
        "mfu": configuration.mfu,
        "peak_memory_bytes": configuration.peak_memory_bytes,
    }


def estimate(value: Any) -> dict[str, Any] | None:
    return None if value is None else {"value": value.value, "low": value.low, "high": value.high, "n": value.n}


def kept(result: Any, change: Any) -> dict[str, Any]:
    """A change of the best plan with its gain: when it was kept, and from the ablation."""
    trial = next(
        (t for t in result.trials if t.strategy == change.strategy and t.verdict.value == "kept"),
        None,
    )
    row = next((r for r in result.ablation if r.strategy == change.strategy), None)
    return {
        "strategy": change.strategy,
        "setting": change.setting,
        "throughput": estimate(trial.throughput) if trial else None,
        "without": estimate(row.without) if row else None,
    }


def ceiling(round_: Any) -> dict[str, Any] | None:
    """The last round's step beside its ceiling, and what holds it."""
    if round_ is None:
        return None
    return {
        "step_seconds": round_.step_seconds,
        "ceiling_step_seconds": round_.ceiling_step_seconds,
        "bottleneck": round_.bottleneck,
        "violated": [
            stage.name
            for stage in round_.stages
            if stage.measured and stage.ceiling_seconds and stage.seconds < 0.95 * stage.ceiling_seconds
        ],
    }


def matmul_peak(peaks: Any) -> float | None:
    """The best matmul rate that was measured, FLOP/s: what MFU is a share of."""
    names = ("fp32", "tf32", "bf16", "fp16")
    rates = [getattr(peaks, f"matmul_{name}_flops_per_second") for name in names]
    return max((rate for rate in rates if rate), default=None)


def mfu_missing(result: Any, configuration: Any) -> str | None:
    """Why there is no MFU; None where there is one."""
    if configuration.mfu is not None:
        return None
    if matmul_peak(result.environment.peaks) is None:
        return "no peak of this device was measured"
    if not result.rounds:
        return "the budget ended before a round was examined, in which operations are counted"
    if configuration.flops_per_second is None:
        return "its operations were not counted: the budget ended before it was examined, or they could not be"
    return "not known"


def mfu(case: dict[str, Any], samples_per_second: float | None) -> float | None:
    """An arm's share of the matmul peak, from the operations of one sample as the untouched model needs them."""
    run = case["autoopt"]
    base, peak = run["baseline"], run["best_matmul_flops_per_second"]
    if not (samples_per_second and base["flops_per_second"] and base["samples_per_second"] and peak):
        return None
    return float(samples_per_second * base["flops_per_second"] / base["samples_per_second"] / peak)


def render(case: dict[str, Any]) -> str:
    """The case as text."""
    return "\n".join(lines_of(case))


def lines_of(case: dict[str, Any], *, finished: bool = True) -> list[str]:
    """The case line by line; one that still runs has the lines alone that will not change any more."""
    size = ", toy size" if case["toy"] else ""
    lines = [f"{case['case']} on {case['device']}{size}"]
    if "fit" in case:
        lines += fit_lines(case["fit"])
    if "autoopt" in case:
        lines += run_lines(case["autoopt"])
    if finished and "race" in case:
        lines += race_lines(case)
    if finished and case.get("state", "finished") != "finished":
        lines.append(f"  ended early, while it was: {case['state']}")
    return lines


def fit_lines(fit: dict[str, Any]) -> list[str]:
    lines = [f"  tried: {' + '.join(row['plan']) or 'untouched'}: {row['outcome']}" for row in fit["tried"]]
    if fit["plan"] is None:
        return [*lines, "  nothing that autoopt has makes it fit here"]
    return [*lines, f"  fits with: {' + '.join(fit['plan']) or 'nothing changed'}"]


def run_lines(run: dict[str, Any]) -> list[str]:
    before, after = run["baseline"], run["best"]
    rows = [
        ("samples/s", number(before["samples_per_second"]), number(after["samples_per_second"])),
        ("time to target", seconds(before), seconds(after)),
        ("MFU", share(before["mfu"]), share(after["mfu"])),
        ("peak memory", gib(before["peak_memory_bytes"]), gib(after["peak_memory_bytes"])),
    ]
    lines = [f"  {'':15}{'before':>18}{'after':>18}"]
    lines += [f"  {name:15}{left:>18}{right:>18}" for name, left, right in rows]
    lines.append(f"  faster to target: {ratio(run['time_to_target'])}; throughput: {ratio(run['throughput'])}")
    lines.append(f"  verified end to end: {'yes' if run['end_to_end_verified'] else 'no'}; quality: {quality(run)}")
    for change in run["kept"]:
        lines.append(
            f"  kept {change['strategy']} {change['setting'] or ''}: {ratio(change['throughput'])} when added, "
            f"{ratio(change['without'])} against the final plan without it"
        )
    if not run["kept"]:
        lines.append("  no safe gain found")
    for when, why in run["mfu_missing"].items():
        lines += [f"  MFU {when}: {why}"] if why else []
    top = run["ceiling"]
    if top is None or not top["ceiling_step_seconds"]:
        lines.append(f"  ceiling: {NOTHING}: the budget ended before a round was examined")
    else:
        lines.append(
            f"  ceiling: {1e3 * top['ceiling_step_seconds']:.2f} ms a step, now {1e3 * top['step_seconds']:.2f} ms; "
            f"bottleneck: {top['bottleneck']}"
        )
        if top["violated"]:
            lines.append(f"  doubtful: faster than their ceiling: {', '.join(top['violated'])}")
    return [*lines, f"  stopped: {run['stop']['reason']} ({run['stop']['detail']})"]


def race_lines(case: dict[str, Any]) -> list[str]:
    """The arms side by side."""
    race = case["race"]
    blocks = race["blocks"]
    base = blocks.get("untouched", {}).get("samples_per_second")
    lines = [f"  side by side, in turns of {race['steps_per_block']} steps:"]
    for name, row in blocks.items():
        title = TITLES.get(name, name)
        if "failed" in row:
            lines.append(f"    {title:22} {row['failed']}")
            continue
        rate = row["samples_per_second"]
        against = f"{rate / base:.2f}x" if base else ""
        lines.append(
            f"    {title:22} {number(rate):>12} samples/s {against:>7}  MFU {share(mfu(case, rate))}  "
            f"{gib(row['peak_memory_bytes'])}  start {row['start_seconds']:.1f} s  loss {row['loss']:.4g}"
            + (f"  (then {row['failed_later']})" if "failed_later" in row else "")
        )
    for name, row in (race.get("to_target") or {}).items():
        lines.append(f"    {TITLES.get(name, name):22} {target_text(row)}")
    return lines


def target_text(row: dict[str, Any]) -> str:
    if "failed" in row:
        return str(row["failed"])
    if not row["reached"]:
        return f"target not reached in {row['seconds']:.0f} s"
    return f"to the target in {row['seconds']:.1f} s"


def quality(run: dict[str, Any]) -> str:
    found = run["quality"]
    if found is None or found["passed"] is None:
        return "not tested"
    return "within tolerance" if found["passed"] else "lost"


def number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.1f}"


def seconds(configuration: dict[str, Any]) -> str:
    value = configuration["time_to_target_seconds"]
    how = f" {configuration['time_to_target_source']}" if configuration.get("time_to_target_source") else ""
    return NOTHING if value is None else f"{value['value']:,.1f} s{how}"


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"


def gib(value: float | None) -> str:
    return NOTHING if value is None else f"{value / 2**30:.2f} GiB"


def ratio(value: dict[str, Any] | None) -> str:
    return NOTHING if value is None else f"{value['value']:.2f}x [{value['low']:.2f}-{value['high']:.2f}]"
