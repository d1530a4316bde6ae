"""Runs an exported script inside the test's own process."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch


def loaded(text: str, folder: Path) -> ModuleType:
    """A script as a module."""
    path = folder / "optimized_train.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("optimized_train", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    sys.modules["optimized_train"] = module
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def script_losses(module: ModuleType, *words: str) -> tuple[list[float], list[float]]:
    """Losses and accuracies of the whole run of a script, with these arguments, on the CPU."""
    threads = torch.get_num_threads()
    args = module.arguments(["--device", "cpu", *words])
    losses, metrics = [], []
    for _, loss, found in module.train(args):
        losses.append(float(loss))
        metrics += [found["accuracy"]] if found else []
    torch.set_num_threads(threads)
    return losses, metrics
