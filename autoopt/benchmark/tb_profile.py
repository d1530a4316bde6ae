"""A trace as torch-tb-profiler reads it: the step's breakdown, kernels, operators and recommendations."""

from __future__ import annotations

import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

from autoopt.errors import EnvironmentLacks
from autoopt.records import JsonDict

_TAG = re.compile(r"<[^>]+>")
_LISTED = 10
"""Operators, and kernels, that are listed."""


def read_profile(path: Path | str) -> JsonDict:
    """Reads a readable trace back (:func:`autoopt.benchmark.trace.readable_trace`).

    Args:
        path: the ``.pt.trace.json`` or ``.pt.trace.json.gz`` file.

    Returns:
        ``step_seconds`` (mean), ``breakdown`` (role, such as ``DataLoader`` or ``Kernel``, to seconds of a
        mean step), ``shares`` (the same over the step), ``recommendations`` (plain text), ``operators`` and
        ``kernels`` (``name``, ``calls``, ``seconds``, the most expensive first).

    Raises:
        EnvironmentLacks: torch-tb-profiler is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch_tb_profiler.profiler.data import RunProfileData  # type: ignore[import-untyped]
            from torch_tb_profiler.profiler.run_generator import RunGenerator  # type: ignore[import-untyped]
    except ImportError as error:
        raise EnvironmentLacks(
            f"torch-tb-profiler cannot be imported ({error})", hint="pip install torch-tb-profiler"
        ) from None
    path = Path(path)
    with tempfile.TemporaryDirectory() as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data: Any = RunProfileData.parse("worker0", None, str(path), cache)
        data.process()
        data.analyze()
        run: Any = RunGenerator("worker0", None, data).generate_run_profile()
    return {
        **_breakdown(data),
        "recommendations": [_TAG.sub("", str(text)) for text in data.recommendations],
        "operators": _operators(run),
        "kernels": _kernels(data),
    }


def _breakdown(data: Any) -> JsonDict:
    costs = data.avg_costs.costs
    roles = ("Kernel", "Memcpy", "Memset", "Communication", "Runtime", "DataLoader", "CpuOp", "Other", "Total")
    seconds = {role: float(cost) / 1e6 for role, cost in zip(roles, costs, strict=False)}
    total = seconds.pop("Total", 0.0)
    shares = {role: value / total for role, value in seconds.items()} if total > 0 else {}
    return {"step_seconds": total or None, "breakdown": seconds, "shares": shares}


def _operators(run: Any) -> list[JsonDict]:
    rows = (run.operation_table_by_name or {}).get("data", [])
    found = [
        {
            "name": row["name"],
            "calls": row["calls"],
            "seconds": max(row.get("device_self_duration") or 0, 0) / 1e6,
            "host_seconds": max(row.get("host_self_duration") or 0, 0) / 1e6,
        }
        for row in rows
    ]
    return sorted(found, key=lambda row: -(row["seconds"] or row["host_seconds"]))[:_LISTED]


def _kernels(data: Any) -> list[JsonDict]:
    table = getattr(data, "kernel_stat", None)
    if table is None or len(table) == 0:
        return []
    rows: list[JsonDict] = [
        {"name": str(name), "calls": int(row["count"]), "seconds": float(row["sum"]) / 1e6}
        for name, row in table.iterrows()
    ]
    return sorted(rows, key=lambda row: -row["seconds"])[:_LISTED]
