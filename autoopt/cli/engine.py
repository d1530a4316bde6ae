"""Finds the engine's functions when a command runs, so that help costs no torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from autoopt.errors import EnvironmentLacks, UsageError

EXTRA_OF = {
    "accelerate": "accelerate",
    "lightning": "lightning",
    "libcst": "export",
    "line_profiler": "profilers",
    "mlflow": "mlflow",
    "pynvml": "profilers",
    "ray": "ray",
    "sklearn": "examples",
    "skimage": "examples",
    "tensorboard": "tensorboard",
    "transformers": "transformers",
    "wandb": "wandb",
    "yaml": "accelerate",
}


def engine(where: str, wanted_by: str) -> Callable[..., Any]:
    """A function of the engine by ``module:name``.

    Args:
        where: such as ``autoopt.api:optimize_run``.
        wanted_by: the command or option that needs it, for the message.

    Raises:
        UsageError: this version has no such function yet.
        EnvironmentLacks: a package that it needs is not installed.
    """
    module, _, name = where.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("autoopt"):
            raise
        found = None
    if found is None:
        raise UsageError(f"{wanted_by} is not part of this version of autoopt yet")
    assert callable(found)
    return found  # type: ignore[no-any-return]


def lacking(error: ModuleNotFoundError) -> EnvironmentLacks | None:
    """The error for a package that is not installed, with the extra that brings it; None for one of ours."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "autoopt", "autoopt_strategies", "autoopt_reports"):
        return None
    extra = f"autoopt[{EXTRA_OF[package]}]" if package in EXTRA_OF else package
    return EnvironmentLacks(f"{package} is not installed", hint=f"pip install '{extra}'")
