"""Tasks of a comparison's trials: train so many steps and hand over the weights; evaluate weights of another."""

from __future__ import annotations

from pathlib import Path

import torch

from autoopt.benchmark.blocks import run_block
from autoopt.benchmark.trial_context import TrialContext
from autoopt.records import JsonDict


def train_and_keep(live: TrialContext, steps: int, out: str) -> JsonDict:
    """Trains so many steps from where the training stands and writes the weights to a file: ``{"losses": [...]}``."""
    losses: list[float | None] = []
    if steps:
        losses = list(run_block(live.training, lambda done, _: done >= steps).losses)
    model = getattr(live.training.model, "_orig_mod", live.training.model)
    weights = {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}
    torch.save(weights, out)
    return {"losses": losses}


def apart(live: TrialContext, first: str, one: str, other: str) -> JsonDict:
    """How far two sets of weights lie apart, over how far training has moved the first: ``{"apart", "moved"}``.

    ``apart`` is None where they are not weights of one model. Files are read as tensors alone, never as code.

    Args:
        first: before training; one, other: after it.
    """
    before, left, right = (torch.load(Path(path), weights_only=True) for path in (first, one, other))
    if left.keys() != right.keys() or any(left[name].shape != right[name].shape for name in left):
        return {"apart": None, "moved": None}
    floating = [name for name, value in left.items() if value.is_floating_point()]
    moved = sum(float((left[name].double() - before[name].double()).square().sum()) for name in floating) ** 0.5
    off = sum(float((left[name].double() - right[name].double()).square().sum()) for name in floating) ** 0.5
    return {"apart": off / moved if moved else None, "moved": moved}


def evaluate(live: TrialContext, weights: str) -> JsonDict:
    """The metrics that this workload's own evaluation gives for weights of another: ``{"metrics": {...} | None}``."""
    training = live.training
    model = getattr(training.model, "_orig_mod", training.model)
    try:
        model.load_state_dict(torch.load(Path(weights), weights_only=True))
    except RuntimeError:
        return {"metrics": None}
    if training.evaluation is None:
        return {"metrics": {}}
    return {"metrics": {name: float(value) for name, value in training.evaluate().items()}}
