"""Whether the stages of a plan were measured in peace: a profile that was not excludes no strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from autoopt.search.stage_profile import Examined

Seen = TypeVar("Seen")

FOREIGN_CORES = 0.3
"""What others may use of the machine meanwhile: two busy-waiting compute threads lose far more than that share."""
ASTRAY = 1.3
"""How far the profile's own step may be from the one that the paired comparison measured."""
APART = 0.2
"""How far the simulated step may be from the one that ran between the stubs: two ways to measure one thing. Beyond it
the machine most likely changed its speed between the two."""


def calmest(look: Callable[[], Seen], doubt: Callable[[Seen], float]) -> Seen:
    """Looks, and once more where that was disturbed; gives the calmer of the two.

    Args:
        look: examines a plan.
        doubt: how much that was disturbed; 1 is as much as is let pass.
    """
    first = look()
    return first if doubt(first) <= 1 else min(first, look(), key=doubt)


def doubt_of(seen: Examined, usual_step: float | None, apart: float | None) -> float:
    """How much a profile was disturbed; 1 is as much as is let pass.

    Args:
        usual_step: seconds of its step in a paired comparison; None where there was none.
        apart: the simulated step over the measured one, less 1; None where that is not known.
    """
    step = seen.step_seconds
    astray = max(step / usual_step, usual_step / step) - 1 if usual_step and step else 0.0
    return max(astray / (ASTRAY - 1), (seen.foreign_cores or 0.0) / FOREIGN_CORES, abs(apart or 0.0) / APART)


def disturbance(seen: Examined, usual_step: float | None) -> str:
    """What speaks against a profile, as a user reads it; "" where nothing does."""
    step = seen.step_seconds
    if usual_step and step and not 1 / ASTRAY <= step / usual_step <= ASTRAY:
        return (
            f"while its stages were measured a step took {step * 1e3:.3g} ms, "
            f"in the comparisons {usual_step * 1e3:.3g} ms"
        )
    if seen.foreign_cores is not None and seen.foreign_cores > FOREIGN_CORES:
        return f"while its stages were measured other programs used {seen.foreign_cores:.1f} cores"
    return ""
