"""Tasks of a comparison's trials: hand over weights; compare and evaluate those of another; say what was read."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import torch

from autoopt.benchmark.evaluation import evaluating
from autoopt.benchmark.fingerprint import digest
from autoopt.benchmark.seeding import disturb, mix, seed_everything
from autoopt.benchmark.trial_context import TrialContext
from autoopt.records import JsonDict
from autoopt.script.tasks import LOSSES


def keep(live: Any, out: str) -> JsonDict:
    """Writes the weights of a function's or a script's model to a file, under its own names: ``{"steps"}``."""
    weights = {name: value.detach().to("cpu", copy=True) for name, value in _model(live).state_dict().items()}
    torch.save(weights, out)
    return {"steps": live.training.steps}


def _model(live: Any) -> Any:
    """The model under its own names, also where it was compiled."""
    return getattr(live.training.model, "_orig_mod", live.training.model)


def sampled(live: Any, seed: int) -> JsonDict:
    """Some entries of every floating tensor of the model, drawn by the seed: ``{"values": [...]}``, None: not finite.

    The same entries for models of the same shapes.
    """
    weights = [value for value in _model(live).state_dict().values() if value.is_floating_point() and value.numel()]
    # as many as keep the answer below a hundredth of the shortest block
    each = max(1024 // max(len(weights), 1), 1)
    drawn = torch.Generator().manual_seed(seed)
    found = []
    for value in weights:
        place = [torch.randint(size, (each,), generator=drawn).to(value.device) for size in value.shape]
        found.append(value.detach()[tuple(place)].reshape(-1).double())
    values = torch.cat(found).tolist() if found else []
    return {"values": [value if math.isfinite(value) else None for value in values]}


def moved_away(live: Any, seed: int) -> JsonDict:
    """Changes the weights a little, by a draw of the seed: what was prepared before is of other weights."""
    # no training minds it, and gradients there differ by far more than rounding
    disturb(live.training.model, 0.01, seed, 0)
    return {}


def apart(live: Any, first: str, last: str, pairs: list[list[str]]) -> JsonDict:
    """How far weights lie apart, over how far training has moved them from first to last: ``{"apart": [...]}``.

    One figure a pair of files; None where they are not weights of one model. Files are read as tensors alone, never as
    code.
    """

    @functools.cache
    def read(path: str) -> Any:
        return torch.load(Path(path), weights_only=True)

    moved = _distance(read(last), read(first))
    found = [_distance(read(left), read(right)) for left, right in pairs]
    return {"apart": [off / moved if off is not None and moved else None for off in found]}


def _distance(left: Any, right: Any) -> float | None:
    if left.keys() != right.keys() or any(left[name].shape != right[name].shape for name in left):
        return None
    floating = [name for name, value in left.items() if value.is_floating_point()]
    squares = (float((left[name].double() - right[name].double()).square().sum()) for name in floating)
    return math.sqrt(sum(squares))


def evaluate(live: TrialContext, weights: str, metric: str, losses: bool) -> JsonDict:
    """The metric of another's weights by this workload, in the form of ``autoopt.script.tasks:evaluate``.

    Args:
        losses: those of training batches are taken in place of the metric, as where there is no evaluation.

    Returns:
        ``metric``, ``value``; ``losses``; ``why``: there is no metric. ``digest``: of the batches that the evaluation
        reads, the first of them where they are many. Nothing of weights that do not fit this model.
    """
    training, model = live.training, _model(live)
    try:
        model.load_state_dict(torch.load(Path(weights), weights_only=True))
    except RuntimeError:
        return {}
    if losses:
        groups = [training.next() for _ in range(LOSSES)]
        return {"losses": [_loss(live, group) for group in groups], "why": "the workload has no evaluation"}
    assert training.evaluation is not None
    hashed = hashlib.sha256()
    with evaluating(training.model):
        for batch in itertools.islice(training.evaluation.batches, 512):
            hashed.update(digest(batch).encode())
    value = training.evaluate().get(metric)
    found = {"value": None if value is None else float(value), "digest": hashed.hexdigest()[:16]}
    return {"metric": metric, **found, "losses": []}


def _loss(live: TrialContext, group: list[Any]) -> float | None:
    """The mean loss of a step's micro-batches, whose draws are the same for all weights; None where not finite."""
    seed_everything(mix("loss", live.seed))
    with torch.no_grad():
        value = sum(float(live.training.forward(batch)) for batch in group) / len(group)
    return value if math.isfinite(value) else None


def imported(live: Any) -> JsonDict:
    """The files of all modules that this process has imported: ``{"files": [...]}``."""
    files = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
    return {"files": sorted(file for file in files if isinstance(file, str))}
