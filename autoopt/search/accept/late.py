"""Breaks that come later than any probe: parameters that stop learning, a metric that falls after the target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoopt.records import Noise, Objective
from autoopt.records.messages import Moved, TrainingRun
from autoopt.search.accept.quality import FEWEST_SEEDS

Pairs = Sequence[tuple[TrainingRun, TrainingRun]]

PAST = 0.25
"""Share of the steps to the target that a verification trains on beyond it."""

_SKIPPED = 16
"""A gradient scaler may leave out fewer steps in a row than this, in which nothing moves."""

_NOISES = 3.0
"""Standard deviations over seeds by which a metric must lie below the target to have fallen."""


def stood_still(pairs: Pairs) -> str:
    """A sentence where a parameter stops moving that moves in the same steps of the baseline's training, else empty."""
    for before, after in pairs:
        known = {(move.first_step, move.step): move for move in before.moves}
        for move in after.moves:
            other = known.get((move.first_step, move.step))
            name = _still(other, move) if other is not None else None
            if name is not None:
                where = f"from step {move.first_step} to {move.step} of the training from seed {after.seed}"
                return f"{name} is not updated {where}"
    return ""


def _still(before: Moved, after: Moved) -> str | None:
    if before.parameters != after.parameters:
        return None
    if len(after.still) == after.parameters and after.step - after.first_step < _SKIPPED:
        return None
    slow = set(before.slow)
    return next((name for place, name in zip(after.still, after.names, strict=True) if place not in slow), None)


def fell_after_target(pairs: Pairs, objective: Objective, noise: Noise) -> str:
    """A sentence where the metric falls after the target was confirmed, from every seed, and the baseline's does not.

    Fallen: the median of the evaluations beyond lies below the target by more than the tolerance and what chance
    explains.
    """
    if objective.target is None:
        return ""
    margin = max(objective.tolerance * abs(objective.target), _NOISES * (noise.seed_noise or 0.0))
    known = [(_beyond(old, objective), _beyond(new, objective)) for old, new in pairs]
    both = [(old, new) for old, new in known if old is not None and new is not None]
    fallen = [new for old, new in both if new < -margin <= old]
    if len(both) < FEWEST_SEEDS or len(fallen) < len(both):
        return ""
    return (
        f"{objective.metric} falls by {-float(np.median(fallen)):.3g} below the target when trained on beyond it, "
        f"from each of {len(fallen)} seeds; the baseline's does not"
    )


def _beyond(run: TrainingRun, objective: Objective) -> float | None:
    """How far the metric lies above the target beyond it, in the metric's unit; None where it was not trained on."""
    values = [point.metric for point in run.past if point.metric is not None]
    if not values or objective.target is None:
        return None
    above = float(np.median(values)) - objective.target
    return above if objective.mode == "max" else -above
