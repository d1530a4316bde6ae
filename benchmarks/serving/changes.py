"""Changes of the model, by ``autoopt optimize --allow model``: time to target, trained parameters, memory, metric."""

from __future__ import annotations

from typing import Any

from benchmarks.serving.commands import Piece

CASES = {
    "lora": ("benchmarks/serving/text.py:build", "lora"),
    "pruning": ("benchmarks/serving/images.py:wide", "pruning"),
    "distillation": ("benchmarks/serving/images.py:teacher", "distillation"),
}
OF_TRIAL = (
    "strategy", "setting", "verdict", "reason", "throughput", "time_to_target", "quality", "peak_memory_bytes",
    "trained_parameters", "seconds",
)  # fmt: skip
OF_CONFIGURATION = (
    "samples_per_second", "time_to_target_seconds", "steps_to_target", "metric", "peak_memory_bytes",
    "trained_parameters",
)  # fmt: skip


def changed(piece: Piece, case: str, budget: float) -> dict[str, Any]:
    """The run's own figures: baseline, every setting that was tried, what was kept."""
    spec, strategy = CASES[case]
    result = piece.optimized(spec, budget, "--allow", "model", "--only", strategy, **_pretrained(piece, case))
    return {
        "workload": spec,
        "budget_seconds": result["budget_seconds"],
        "objective": result["objective"],
        "baseline": {key: result["baseline"][key] for key in OF_CONFIGURATION},
        "best": {key: result["best"][key] for key in OF_CONFIGURATION},
        "speedup": result["speedup"],
        "trials": [{key: t[key] for key in OF_TRIAL} for t in result["trials"] if t["strategy"] == strategy],
    }


def _pretrained(piece: Piece, case: str) -> dict[str, str]:
    """Weights that the case starts from, made once; they are named by an environment variable."""
    if case == "lora":
        from benchmarks.serving import text

        path = piece.folder / "body.pt"
        piece.once("body", lambda: {"accuracy": text.pretrain(path)})
        return {text.WEIGHTS: str(path)}
    if case == "distillation":
        from benchmarks.serving import images

        path = piece.folder / "teacher.pt"
        piece.once("teacher", lambda: images.train_teacher(path))
        return {images.TEACHER: str(path)}
    return {}
