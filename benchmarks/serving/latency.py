"""A case trained, then served within a latency: variants, what was taken, its acceptance test."""

from __future__ import annotations

from typing import Any

from benchmarks.serving.commands import Piece

CASES = {"text": "examples/text.py:build", "images": "benchmarks/serving/images.py:build"}
STUDENTS = {"text": "", "images": "benchmarks/serving/images.py:student"}
AFTER = 60.0
"""Seconds beside the budget: start, export, acceptance test."""
KEPT = (
    "limit_seconds", "max_drop", "metric", "validation_samples", "chosen", "holds", "reason", "control", "seconds",
)  # fmt: skip
OF_VARIANT = (
    "name", "status", "reason", "p95", "ratio", "screened_p95", "drop", "cost_seconds", "model_bytes", "loads",
    "cold_start", "front", "knee", "fits", "keeps",
)  # fmt: skip


def trained(piece: Piece, case: str) -> tuple[dict[str, Any], str]:
    """The case's training, and its checkpoint; it goes on where it was interrupted."""
    folder = piece.folder / "train"

    def measure() -> dict[str, Any]:
        plan = piece.folder / "plan.json"
        plan.write_text('{"schema_version": 1, "changes": []}')
        return piece.autoopt("train", CASES[case], "--plan", str(plan), "--out", str(folder), "--quiet")

    return piece.once("trained", measure), str(folder / "checkpoint.pt")


def served(piece: Piece, case: str, p95: str, budget: float) -> dict[str, Any]:
    """The figures of ``autoopt latency`` on the trained case.

    Args:
        budget: of the command, in seconds.
    """
    training, weights = trained(piece, case)
    student = STUDENTS[case]
    environ, words = {}, []
    if student:
        from benchmarks.serving.images import STUDENT, distilled

        path = piece.folder / "student.pt"
        piece.once("student", lambda: distilled(weights, path))
        environ, words = {STUDENT: str(path)}, ["--student", student]
    piece.need(budget + AFTER, "autoopt latency")

    def measure() -> dict[str, Any]:
        out = str(piece.folder / "run")
        return piece.autoopt(
            "latency", CASES[case], "--checkpoint", weights, "--p95", p95, "--budget", f"{budget:g}s", "--out", out,
            *words, **environ,
        )  # fmt: skip

    found = measure()
    return {
        "workload": CASES[case],
        "training_seconds": training["seconds"],
        "trained": {key: training.get(key) for key in ("metrics", "steps", "reached")},
        **{key: found[key] for key in KEPT},
        "acceptance": found["acceptance"] and {k: found["acceptance"][k] for k in ("exit_code", "output")},
        "variants": [{key: variant[key] for key in OF_VARIANT} for variant in found["variants"]],
    }
