"""Packages that are optional, and the extra that brings each."""

from __future__ import annotations

from autoopt.errors import EnvironmentLacks

EXTRAS = {
    "accelerate": ("accelerate", "yaml"),
    "card": ("PIL",),
    "examples": ("skimage", "sklearn"),
    "lightning": ("lightning",),
    "mcp": ("mcp",),
    "mlflow": ("mlflow",),
    "model": ("peft", "torch_pruning"),
    "profilers": ("line_profiler", "pynvml"),
    "ray": ("ray",),
    "serving": ("onnx", "onnxruntime", "onnxscript", "torchao"),
    "tensorboard": ("tensorboard",),
    "transformers": ("transformers",),
    "tune": ("optuna",),
    "wandb": ("wandb",),
}
EXTRA_OF = {package: extra for extra, packages in EXTRAS.items() for package in packages}


def lacking(error: ModuleNotFoundError) -> EnvironmentLacks | None:
    """The error for a package that is not installed, with the extra that brings it; None for one of ours."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "autoopt", "autoopt_strategies", "autoopt_model", "autoopt_reports"):
        return None
    extra = f"torch-autoopt[{EXTRA_OF[package]}]" if package in EXTRA_OF else package
    return EnvironmentLacks(f"{package} is not installed", hint=f"pip install '{extra}'")
