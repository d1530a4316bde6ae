"""Several optimizers in a training step: the order in which they take turns, and which of them ends the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

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


class Passes:
    """Backward passes between the steps of optimizers, by the line that asks for them."""

    def __init__(self) -> None:
        self._since: Counter[Hashable] = Counter()
        self._within = False
        self._done = 0
        self._at_steps: list[int] = []
        self._added_up: list[int] = []

    def backward(self, line: Hashable, *, within_step: bool = False) -> None:
        """A pass; ``within_step``: an optimizer asks for it in its step, as often as it likes."""
        self._done += 1
        self._within = self._within or within_step
        if not within_step:
            self._since[line] += 1

    def stepped(self) -> None:
        """An optimizer has stepped; one that steps on the gradients of another's passes adds up none of its own."""
        self._at_steps.append(self._done)
        added_up = max(self._since.values(), default=0) + self._within
        if added_up:
            self._added_up.append(added_up)
        self._since.clear()
        self._within = False

    @property
    def accumulation(self) -> float:
        """How often the same line has run for an optimizer's step, on the mean; losses of two lines are two terms."""
        return sum(self._added_up) / len(self._added_up) if self._added_up else 1

    def per_turn(self, steps: int) -> float | None:
        """Passes in a turn of so many optimizers' steps, of turns that came to their end; None where none did."""
        turns = len(self._at_steps) // steps
        return self._at_steps[turns * steps - 1] / turns if turns else None
