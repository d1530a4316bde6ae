"""Seconds of a whole run from its measured parts. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from autoopt.records import RunPart, RunParts, WholeRun


def whole_run_seconds(parts: RunParts, steps: float | None = None) -> WholeRun:
    """A whole run: start + steps + later epochs' starts + evaluations + checkpoints + end.

    Args:
        parts: as they were measured; what was not counts as nothing, and is named.
        steps: of the run; those of the plan where None.

    Raises:
        ValueError: neither tells the steps, or a step was not measured.
    """
    steps = parts.steps if steps is None else steps
    if steps is None or parts.step_seconds is None:
        what = "its steps" if steps is None else "the seconds of a step"
        raise ValueError(f"the seconds of a whole run need {what}, got None")
    epochs = math.ceil(steps / parts.steps_per_epoch - 1e-9) if parts.steps_per_epoch else 1
    each: list[tuple[str, float | None, float]] = [
        ("imports", parts.imports_seconds, 1),
        ("build", parts.build_seconds, 1),
        ("first batch", parts.first_batch_seconds, 1),
        ("warm-up", parts.warm_up_seconds, 1),
        ("steps", parts.step_seconds, steps),
        ("later epochs' starts", parts.epoch_seconds, max(epochs - 1, 0)),
        ("evaluations", parts.evaluation_seconds, _times(steps, parts.evaluate_every)),
        ("checkpoints", parts.checkpoint_seconds, _times(steps, parts.checkpoint_every)),
        ("end", parts.end_seconds, 1),
    ]
    seconds = sum((value or 0.0) * count for _, value, count in each)
    return WholeRun(
        steps=steps,
        seconds=seconds,
        parts=tuple(
            RunPart(name=name, seconds=s * n, each=s, count=n, share=s * n / seconds if seconds else 0.0)
            for name, s, n in each
            if s is not None and n
        ),
        missing=tuple(name for name, value, _ in each if value is None),
    )


def epoch_start(openings: Sequence[float], loader: Any, usual: float) -> float | None:
    """Seconds with which a later epoch begins, beyond the usual wait for a batch; None where there are no epochs.

    Before a second epoch was seen the first one's start stands for it, unless its workers stay.

    Args:
        openings: seconds until the first batch of each epoch so far was there.
        loader: the DataLoader that gives them.
        usual: seconds that a step waits for its batch.
    """
    if not openings:
        return None
    if len(openings) == 1 and (loader.persistent_workers or not loader.num_workers):
        return 0.0
    return max(statistics.median(openings[1:] or openings) - usual, 0.0)


def _times(steps: float, every: float | None) -> int:
    """How often something comes in so many steps; the last time at their end."""
    return math.ceil(steps / every - 1e-9) if every else 0
