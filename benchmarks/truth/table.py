"""The tables of truth.py as Markdown."""

from __future__ import annotations

from collections import Counter
from math import log
from statistics import median
from typing import Any


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def render(document: dict[str, Any]) -> str:
    """Everything that was measured so far."""
    parts = []
    if simulated := document.get("simulated"):
        parts.append(_simulated(simulated))
    if live := document.get("live"):
        parts.append(_live(live))
    if overhead := document.get("overhead"):
        parts.append(_overhead(overhead))
    return "\n".join(parts) or "nothing measured yet\n"


def _number(value: float | None, form: str) -> str:
    return "never" if value is None else format(value, form)


def _simulated(simulated: dict[str, Any]) -> str:
    keeps, rows = [], []
    for kind, found in simulated["kinds"].items():
        share = found["false_keeps"] / found["placebos"]
        keeps.append([kind, str(found["placebos"]), str(found["false_keeps"]), f"{share:.2%}"])
        for row in found["effects"]:
            decisions = ", ".join(f"{name} {count}" for name, count in sorted(row["decisions"].items()))
            rows.append(
                [
                    kind,
                    f"{row['effect']:g}",
                    f"{row['coverage']:.1%}",
                    decisions,
                    f"{row['block_seconds']:.1f}",
                    f"{row['pairs']:g}",
                    f"{row['rms_error']:.1%}",
                    f"{row['sequential_error_in_same_time']:.1%}",
                    _number(row["sequential_seconds_for_same_error"], ".0f"),
                ]
            )
    head = ["noise", "placebos", "kept", "share"]
    wide = [
        "noise",
        "true effect",
        "coverage",
        "decisions",
        "block seconds",
        "pairs",
        "error",
        "sequential: error in the same time",
        "sequential: seconds for the same error",
    ]
    return f"## Simulated: placebos kept\n\n{table(head, keeps)}\n## Simulated: planted effects\n\n{table(wide, rows)}"


def _loads(rows: list[dict[str, Any]]) -> str:
    """The machine's load while rows were measured, lowest and highest."""
    loads = [row["environment"]["load"][0] for row in rows if row["environment"]["load"]]
    return f"{min(loads):.1f} to {max(loads):.1f}" if loads else "not noted"


def _live(live: dict[str, Any]) -> str:
    text = ""
    if placebos := live.get("placebos"):
        text += "## TrialContext: placebos\n\n" + table(
            ["processor", "comparisons", "kept", "hold 1", "load"], _placebos(placebos)
        )
    rows = []
    for effect, found in sorted(live.get("effects", {}).items(), key=lambda item: float(item[0])):
        true = float(effect)
        decisions = Counter(one["decision"] for one in found)
        rows.append(
            [
                effect,
                str(len(found)),
                f"{sum(one['low'] <= true <= one['high'] for one in found)} of {len(found)}",
                ", ".join(f"{name} {count}" for name, count in sorted(decisions.items())),
                f"{median(one['block_seconds'] for one in found):.1f}",
                f"{median(one['wall_seconds'] for one in found):.0f}",
                f"{_rms([one['value'] / true for one in found]):.1%}",
                f"{_rms([one['sequential'] / true for one in found]):.1%}",
                _loads(found),
            ]
        )
    if rows:
        head = [
            *("true effect", "comparisons", "covered", "decisions", "block seconds", "wall seconds", "error"),
            *("sequential: error in the same time", "load"),
        ]
        text += "\n## TrialContext: planted effects\n\n" + table(head, rows)
    return text


def _placebos(placebos: list[dict[str, Any]]) -> list[list[str]]:
    """One row for each kind of processor, and one for all."""
    by_cpu: dict[str, list[dict[str, Any]]] = {}
    for one in placebos:
        by_cpu.setdefault(one["environment"]["cpu"], []).append(one)
    groups = {**by_cpu, "all": placebos} if len(by_cpu) > 1 else by_cpu
    return [
        [
            name,
            str(len(found)),
            str(sum(one["decision"] == "accept" for one in found)),
            str(sum(one["low"] <= 1.0 <= one["high"] for one in found)),
            _loads(found),
        ]
        for name, found in groups.items()
    ]


def _rms(ratios: list[float]) -> float:
    """Root mean square of log ratios."""
    return (sum(log(ratio) ** 2 for ratio in ratios) / len(ratios)) ** 0.5


def _overhead(overhead: list[dict[str, Any]]) -> str:
    rows = [
        [
            one["workload"],
            f"{one['step_seconds'] * 1e3:.2f} ms",
            f"{one['ratio']:.4f}",
            f"[{one['low']:.4f}, {one['high']:.4f}]",
            f"{one['processes']} x {one['block_pairs_each']}",
            one["environment"]["cpu"],
            f"{one['environment']['load'][0]:.1f}",
        ]
        for one in overhead
    ]
    head = ["workload", "bare step", "instrumented over bare", "95 %", "processes x block pairs", "processor", "load"]
    return "## Overhead of the instrumented loop\n\n" + table(head, rows)
