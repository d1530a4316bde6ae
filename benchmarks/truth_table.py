"""The tables of truth.py as Markdown."""

from __future__ import annotations

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


def _live(live: dict[str, Any]) -> str:
    text = ""
    if placebos := live.get("placebos"):
        kept = sum(one["decision"] == "accept" for one in placebos)
        inside = sum(one["low"] <= 1.0 <= one["high"] for one in placebos)
        text += (
            f"## Live: placebos\n\n{len(placebos)} comparisons of a plan with itself: {kept} kept, "
            f"{inside} intervals hold 1.\n\n"
        )
    rows = []
    for effect, found in sorted(live.get("effects", {}).items(), key=lambda item: float(item[0])):
        inside = sum(one["low"] <= one["true"] <= one["high"] for one in found)
        seconds = sorted(one["block_seconds"] for one in found)[len(found) // 2]
        shown = ", ".join(
            f"{one['value']:.3f} [{one['low']:.3f}, {one['high']:.3f}] {one['decision']}" for one in found
        )
        rows.append([effect, f"{found[0]['true']:.3f}", f"{inside} of {len(found)}", f"{seconds:.1f}", shown])
    if rows:
        text += "## Live: planted effects\n\n" + table(["planted", "true", "covered", "block seconds", "found"], rows)
    return text


def _overhead(overhead: list[dict[str, Any]]) -> str:
    rows = [
        [one["workload"], f"{one['ratio']:.4f}", f"[{one['low']:.4f}, {one['high']:.4f}]", str(one["blocks"])]
        for one in overhead
    ]
    return "## Overhead of the instrumented loop\n\n" + table(
        ["workload", "instrumented over bare step", "95 %", "block pairs"], rows
    )
