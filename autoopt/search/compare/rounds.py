"""From rows to the ratio of two plans' speeds, with its error.

The speed of a plan is total work over total seconds: what happens rarely in its steps (a stall, a recompilation, a wait
for one batch in eight) belongs to the time that the user pays, so nothing that the plan itself does is trimmed. The
error comes from the scatter between rounds (batch means; Law and Carson, "A sequential procedure for determining the
length of a steady-state simulation", Operations Research 27, 1979). Rounds in which other programs used more of the
processor than usual are left out, by their CPU seconds alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import median

import numpy as np
from numpy.typing import NDArray

from autoopt.records.account import Row
from autoopt.search.compare.comparison import PairOfProcesses, total
from autoopt.search.compare.statistics import MIN_BLOCKS, Level

Array = NDArray[np.float64]
Paired = tuple[Row, Row]
"""Blocks of incumbent and candidate from one round."""

DISTURBED = 0.15
"""CPU seconds of other programs per block second, beyond what is usual, from which a block counts as disturbed."""
_MOST_DISCARDED = 0.25
"""Share of rounds that other programs may disturb: load that is there all the time belongs to the conditions."""
_EXPECTED_DOF = 8
"""Weight of the scatter seen in earlier pairs of processes, in rounds: an A/A control of four pairs has seen twenty or
more, and the load of a machine changes."""


def work_of(paired: Sequence[Paired]) -> list[tuple[Array, Array]]:
    """Work and seconds of each block, incumbent's and candidate's: samples, or steps where one side cannot count them.

    Raises:
        ValueError: a row holds no work or no time.
    """
    by_steps = not all(row.samples for pair in paired for row in pair)
    sides = []
    for rows in zip(*paired, strict=True):
        work = [row.steps if by_steps else row.samples for row in rows]
        for row, done in zip(rows, work, strict=True):
            if not done or done <= 0 or row.seconds <= 0:
                raise ValueError(f"a block needs work and time, got {done} in {row.seconds} s")
        sides.append((np.asarray(work, dtype=np.float64), np.array([row.seconds for row in rows])))
    return sides


def ratio_of_totals(paired: Sequence[Paired], expected_sd: float | None = None) -> Level:
    """Log of the ratio of total work over total seconds, candidate over incumbent, with its standard error.

    The factor ``dof / (dof - 2)`` is the variance of Student's t, so that a normal model above this level is not misled
    by a standard error from few rounds, of which there are :data:`MIN_BLOCKS` at least. ``expected_sd``: scatter of a
    round's log ratio in earlier pairs of processes; it counts as much as eight rounds.
    """
    n = len(paired)
    if n < MIN_BLOCKS:
        raise ValueError(f"a standard error needs at least {MIN_BLOCKS} rounds, got {n}")
    logs, influence = [], []
    for work, seconds in work_of(paired):
        speed = work.sum() / seconds.sum()
        logs.append(log(speed))
        influence.append((work - speed * seconds) / (speed * seconds.mean()))
    variance = float(np.sum((influence[1] - influence[0]) ** 2)) / (n - 1)
    dof, pooled = n - 1, variance
    if expected_sd is not None:
        dof += _EXPECTED_DOF
        pooled = ((n - 1) * variance + _EXPECTED_DOF * expected_sd**2) / dof
    error = (pooled * dof / (dof - 2) / n) ** 0.5
    return Level(logs[1] - logs[0], error, n, variance**0.5)


def merged(rows: Sequence[Row]) -> Row:
    """Blocks of one plan from one round as one block."""
    summed = ("steps", "samples", "seconds", "foreign_cpu_seconds", "late_seconds")
    return rows[0].model_copy(update={name: total(getattr(row, name) for row in rows) for name in summed})


class Rounds:
    """Rounds of one pair of processes."""

    def __init__(self) -> None:
        self.paired: list[Paired] = []
        self._settled = 0

    def add(self, incumbent: Row, candidate: Row) -> None:
        self.paired.append((incumbent, candidate))
        if incumbent.late_seconds or candidate.late_seconds:
            self._settled = len(self.paired)

    @property
    def since(self) -> int:
        """The first round that counts: after one that compiled or searched again, where enough rounds follow."""
        return self._settled if len(self.paired) - self._settled >= MIN_BLOCKS else 0

    def counted(self) -> list[Paired]:
        """Rounds that other programs did not disturb."""
        later = self.paired[self.since :]
        keep = undisturbed([(one.foreign_share, other.foreign_share) for one, other in later])
        return [pair for pair, kept in zip(later, keep, strict=True) if kept]

    def level(self, expected_sd: float | None = None) -> Level | None:
        """The ratio with its error; None while there are too few rounds."""
        counted = self.counted()
        return ratio_of_totals(counted, expected_sd) if len(counted) >= MIN_BLOCKS else None

    def document(self, expected_sd: float | None, *, startup_seconds: float, seconds: float) -> PairOfProcesses | None:
        """The pair of processes that they were measured in; None where they are too few to count."""
        level, counted = self.level(expected_sd), self.counted()
        if level is None:
            return None
        sides = [work / seconds for work, seconds in work_of(counted)]
        return PairOfProcesses(
            log_ratio=level.value,
            standard_error=level.error,
            block_log_ratios=tuple(float(ratio) for ratio in np.log(sides[1] / sides[0])),
            block_sd=level.sd,
            disturbed=len(self.paired) - self.since - len(counted),
            startup_seconds=startup_seconds,
            seconds=seconds,
        )


def undisturbed(shares: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """Which rounds to keep, from the foreign CPU share of their two blocks alone; ratios are never read.

    A block is disturbed when it saw more than ``DISTURBED`` above what is usual for its own side. Where one side has n
    of them, the n rounds with the most foreign time go on either side: time that is taken from every busy core shows
    more in the side that keeps more cores busy, and leaving out its slow blocks alone would make it look faster. At
    most a quarter goes: load that is there all the time belongs to the conditions of the measurement.
    """
    most = int(_MOST_DISCARDED * len(shares))
    sides = []  # the rounds of each side above its usual share, by how much and where, most first
    for which in (0, 1):
        side = [pair[which] for pair in shares]
        usual = median([share for share in side if share is not None] or [0.0])
        over = [(usual - share, index) for index, share in enumerate(side) if share is not None and share > usual]
        sides.append(sorted(over))
    count = min(max(sum(-over > DISTURBED for over, _ in side) for side in sides), -(-most // 2))
    ranked = sorted((-over <= DISTURBED, over, index) for side in sides for over, index in side[:count])
    gone = list(dict.fromkeys(index for *_, index in ranked))[:most]
    return [index not in gone for index in range(len(shares))]
