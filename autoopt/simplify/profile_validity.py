"""Profile validity: whether the stages of a plan were measured in peace. A profile that was not excludes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from autoopt.simplify.stage_profile import StageProfile

Measured = TypeVar("Measured")

FOREIGN_CORES = 0.3
"""Cores that others may use meanwhile: two busy-waiting compute threads lose far more than that share."""
DRIFT = 1.3
"""How far the profile's own step may be from the one that the paired comparison measured."""
MODEL_ERROR = 0.2
"""How far the simulated step may be from the one that ran between the stubs: two ways to measure one thing. Beyond it
the machine most likely changed its speed between the two."""


def least_doubtful(measure: Callable[[], Measured], doubt: Callable[[Measured], float]) -> Measured:
    """Measures, and once more where that was disturbed; the less doubtful of the two.

    Args:
        measure: profiles a plan.
        doubt: how much that was disturbed; 1 is as much as is let pass.
    """
    first = measure()
    return first if doubt(first) <= 1 else min(first, measure(), key=doubt)


def doubt_of(seen: StageProfile, usual_step: float | None, error: float | None) -> float:
    """How much a profile was disturbed; 1 is as much as is let pass.

    Args:
        usual_step: seconds of its step in a paired comparison; None where there was none.
        error: of the model: the simulated step over the measured one, less 1; None where that is not known.
    """
    step = seen.step_seconds
    drift = max(step / usual_step, usual_step / step) - 1 if usual_step and step else 0.0
    return max(drift / (DRIFT - 1), (seen.foreign_cores or 0.0) / FOREIGN_CORES, abs(error or 0.0) / MODEL_ERROR)


def reason_to_doubt(seen: StageProfile, usual_step: float | None) -> str:
    """The reason to doubt a profile, as a user reads it; "" where there is none."""
    step = seen.step_seconds
    if usual_step and step and not 1 / DRIFT <= step / usual_step <= DRIFT:
        return (
            f"while its stages were measured a step took {step * 1e3:.3g} ms, "
            f"in the comparisons {usual_step * 1e3:.3g} ms"
        )
    if seen.foreign_cores is not None and seen.foreign_cores > FOREIGN_CORES:
        return f"while its stages were measured other programs used {seen.foreign_cores:.1f} cores"
    return ""
