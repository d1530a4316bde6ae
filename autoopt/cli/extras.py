"""Packages that are optional, and the extra that brings each."""

from __future__ import annotations

from autoopt.errors import EnvironmentLacks

EXTRA_OF = {
    "PIL": "card",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "line_profiler": "profilers",
    "mcp": "mcp",
    "mlflow": "mlflow",
    "onnx": "serving",
    "onnxruntime": "serving",
    "onnxscript": "serving",
    "optuna": "tune",
    "peft": "model",
    "pynvml": "profilers",
    "ray": "ray",
    "skimage": "examples",
    "sklearn": "examples",
    "tensorboard": "tensorboard",
    "torch_pruning": "model",
    "torchao": "serving",
    "transformers": "transformers",
    "wandb": "wandb",
    "yaml": "accelerate",
}


def lacking(error: ModuleNotFoundError) -> EnvironmentLacks | None:
    """The error for a package that is not installed, with the extra that brings it; None for one of ours."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "autoopt", "autoopt_strategies", "autoopt_model", "autoopt_reports"):
        return None
    extra = f"torch-autoopt[{EXTRA_OF[package]}]" if package in EXTRA_OF else package
    return EnvironmentLacks(f"{package} is not installed", hint=f"pip install '{extra}'")
