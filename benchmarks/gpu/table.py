"""A case's document: from autoopt's result to plain numbers, and to the lines that are printed next to its report."""

from __future__ import annotations

from typing import Any

from benchmarks.documents import MISSING, dumped, speedup
from benchmarks.gpu.rivals import TITLES


def of_result(result: Any) -> dict[str, Any]:
    """A case's figures of an ``autoopt.Result``; its report has the others. What was not measured is None."""
    return {
        "baseline": {"samples_per_second": result.baseline.samples_per_second},
        "best": {"samples_per_second": result.best.samples_per_second},
        "throughput": dumped(result.speedup.throughput),
        "time_to_target": dumped(result.speedup.time_to_target),
        "end_to_end_verified": result.speedup.end_to_end_verified,
        "quality": dumped(result.quality),
        "kept": [change.model_dump() for change in result.best.plan.changes],
        "budget_seconds": result.budget_seconds,
        "seconds": result.seconds,
        "stop": result.stop.model_dump(),
        "warnings": list(result.warnings),
        "autoopt_version": result.autoopt_version,
    }


def lines_of(case: dict[str, Any], *, finished: bool = True) -> list[str]:
    """The case line by line; one that still runs has the lines alone that will not change any more."""
    size = ", toy size" if case["toy"] else ""
    lines = [f"{case['case']} on {case['device']}{size}"]
    if "fit" in case:
        lines += _fit_lines(case["fit"])
    if "autoopt" in case:
        lines += _run_lines(case["autoopt"])
    if finished and "race" in case:
        lines += _race_lines(case["race"])
    if finished and case.get("state", "finished") != "finished":
        lines.append(f"  ended early, while it was: {case['state']}")
    return lines


def _fit_lines(fit: dict[str, Any]) -> list[str]:
    lines = [f"  tried: {' + '.join(row['plan']) or 'untouched'}: {row['outcome']}" for row in fit["tried"]]
    if fit["plan"] is None:
        return [*lines, "  nothing that autoopt has makes it fit here"]
    return [*lines, f"  fits with: {' + '.join(fit['plan']) or 'nothing changed'}"]


def _run_lines(run: dict[str, Any]) -> list[str]:
    verified = "verified end to end" if run["end_to_end_verified"] else "not verified end to end"
    kept = [f"  kept {change['strategy']} {change['setting'] or ''}" for change in run["kept"]]
    return [
        f"  faster to target: {speedup(run['time_to_target'])}, {verified}; throughput: {speedup(run['throughput'])}",
        *(kept or ["  no safe gain found"]),
        f"  stopped: {run['stop']['reason']} ({run['stop']['detail']})",
    ]


def _race_lines(race: dict[str, Any]) -> list[str]:
    """The arms, interleaved with autoopt's plan, and their ways to the target."""
    lines = ["  interleaved with autoopt's plan:"]
    for name, row in race["blocks"].items():
        lines.append(f"    {TITLES.get(name, name):22} {_block_text(row)}")
    for name, row in (race.get("to_target") or {}).items():
        lines.append(f"    {TITLES.get(name, name):22} {_target_text(row)}")
    return lines


def _block_text(row: dict[str, Any]) -> str:
    if "failed" in row:
        return str(row["failed"])
    peak = row["peak_memory_bytes"]
    memory = MISSING if peak is None else f"{peak / 2**30:.2f} GiB"
    ratio = f", {speedup(row['over_autoopt'])} over autoopt's plan" if row.get("over_autoopt") else ""
    return f"{row['samples_per_second']:,.1f} samples/s, {memory}{ratio}"


def _target_text(row: dict[str, Any]) -> str:
    if "failed" in row:
        return str(row["failed"])
    if not row["reached"]:
        return f"target not reached in {row['seconds']:.0f} s"
    return f"to the target in {row['seconds']:.1f} s"
