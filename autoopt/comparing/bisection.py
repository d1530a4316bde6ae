"""Which step of a history made a training slower: noisy comparisons with its good end, and what follows from them.

Each hypothesis is a step (a commit, a package) that is the first slow one, or none. A comparison of a place with the
good end shows nothing before that step and the whole loss from it on. The posterior of all hypotheses shows where the
next comparison shows most; places whose answer was noisy are asked again by that (Waeber, Frazier and Henderson,
"Bisection search with noisy responses", SIAM J. Control Optim. 51, 2013).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

SURE = 0.95
"""The probability from which a step is blamed."""
_DOF = 4.0
"""Of the noise of one comparison: a machine has bad minutes, which a normal distribution would take for evidence."""
_MOST, _MOST_ENDS = 64, 4
"""Comparisons in all, and of the bad end, where it is not plain whether it is slower."""


@dataclass(frozen=True)
class Told:
    """What one comparison with the good end showed: log of the speedup, and its standard error."""

    place: int
    value: float
    error: float


class Measure(Protocol):
    """Compares a place of the history with its good end, until it is plain whether it is slower than ``margin``."""

    def __call__(self, place: int, margin: float) -> Told | None:
        """None where that place cannot be run.

        Args:
            place: 1 is the first after the good end.
            margin: a share of the good end's speed.
        """


@dataclass(frozen=True)
class Blame:
    """The answer. ``probabilities``: of each place that it is the first slow one; ``loss``: log speedup of the bad end.

    ``place``: the likeliest; None where the bad end is not slower. ``sure``: its probability reaches :data:`SURE`.
    """

    place: int | None
    probabilities: tuple[float, ...]
    loss: float
    asked: tuple[Told, ...]

    @property
    def sure(self) -> bool:
        return self.place is not None and self.probabilities[self.place - 1] >= SURE


class Posterior:
    """The probability of each place to be the first slow one.

    Args:
        count: of places, the bad end last.
        loss: log speedup of the bad end, below 0.
        error: its standard error.
    """

    def __init__(self, count: int, loss: float, error: float) -> None:
        self.count = count
        self._losses = np.linspace(loss - 3 * error, min(loss + 3 * error, -1e-4), 41)
        prior = -0.5 * ((self._losses - loss) / max(error, 1e-6)) ** 2
        self._log = np.tile(prior, (count, 1))

    def told(self, told: Told) -> None:
        """Takes a comparison into account."""
        slow = student.logpdf(told.value, _DOF, loc=self._losses, scale=told.error)
        same = float(student.logpdf(told.value, _DOF, loc=0.0, scale=told.error))
        self._log[: told.place] += slow
        self._log[told.place :] += same

    @property
    def probabilities(self) -> NDArray[np.float64]:
        odds = np.exp(self._log - self._log.max())
        return np.asarray(odds.sum(axis=1) / odds.sum())

    def next(self, skipped: set[int]) -> int | None:
        """The place before which half of the probability lies; None where there is none left to ask."""
        before = np.cumsum(self.probabilities)
        places = [place for place in range(1, self.count) if place not in skipped]
        return min(places, key=lambda place: abs(before[place - 1] - 0.5), default=None)


def bisect(count: int, measure: Measure, more: Callable[[], bool]) -> Blame:
    """Finds the first slow place.

    Args:
        count: of places; the last is the bad end.
        measure: asks about one.
        more: whether there is time for another comparison.
    """
    ends: list[Told] = []
    least = 0.01  # a loss below this is none
    loss = error = 0.0
    while not ends or (abs(loss + least / 2) < 2 * error and len(ends) < _MOST_ENDS and more()):
        found = measure(count, least)
        if found is None:
            return Blame(None, (), 0.0, tuple(ends))
        ends.append(found)
        weights = [1.0 / told.error**2 for told in ends]
        loss = sum(weight * told.value for weight, told in zip(weights, ends, strict=True)) / sum(weights)
        error = (1.0 / sum(weights)) ** 0.5
    if loss + 2 * error > -least / 2:
        return Blame(None, (), loss, tuple(ends))
    posterior, asked, skipped = Posterior(count, loss, error), list(ends), set[int]()
    while posterior.probabilities.max() < SURE and len(asked) < _MOST and more():
        place = posterior.next(skipped)
        if place is None:
            break
        told = measure(place, 1.0 - float(np.exp(loss / 2)))
        if told is None:
            skipped.add(place)
            continue
        asked.append(told)
        posterior.told(told)
    found_at = posterior.probabilities
    return Blame(int(found_at.argmax()) + 1, tuple(float(each) for each in found_at), loss, tuple(asked))
