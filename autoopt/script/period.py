"""Several optimizers in a training step: the order in which they take turns, and which of them ends the step."""

from __future__ import annotations

from collections.abc import Sequence

_TURNS = 2
"""Turns that must be seen before an order counts as one."""


def period_of(order: Sequence[int]) -> tuple[int, ...]:
    """The shortest sequence whose repetition is this order of steps; the last turn may be broken off.

    Args:
        order: which optimizer stepped, one after another.

    Returns:
        One turn; each optimizer once, in the order of their first steps, where the order does not repeat.
    """
    for length in range(1, len(order) // _TURNS + 1):
        if all(order[index] == order[index - length] for index in range(length, len(order))):
            return tuple(order[:length])
    return tuple(dict.fromkeys(order))


def anchor_of(period: Sequence[int]) -> int | None:
    """The optimizer whose step ends a training step: the rarest in a turn, of equally rare ones the last.

    So a turn that is not always of the same length (a critic that is trained more often at first) still has one end.
    """
    if not period:
        return None
    least = min(period.count(each) for each in period)
    return next(each for each in reversed(period) if period.count(each) == least)
