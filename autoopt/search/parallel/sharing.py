"""The control of neighbours: a process of the incumbent on each place, with the others stopped and with them training.

All are processes of one plan, and each is compared with itself: a block alone, a block beside the others, in turns. So
neither drift nor how processes differ is in the ratio, which tells what sharing the machine costs (cores, links, power,
storage). Pairs share it where the mean of all places lies within the noise floor with its whole interval, and each
place as it was seen does; else they stay one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log, log1p
from typing import Protocol

import numpy as np

from autoopt.errors import TrialFailed, WorkloadError
from autoopt.records import Estimate, Plan
from autoopt.records.messages import Block
from autoopt.records.parallel import Sharing
from autoopt.search.compare.arm import Arm
from autoopt.search.compare.comparison import Rule
from autoopt.search.compare.pairs import Clock, LiveArm, block_length
from autoopt.search.compare.side_statistics import SideStatistics, rates
from autoopt.search.compare.statistics import MIN_BLOCKS, known_radius, trimmed
from autoopt.trial.places import Workers

MOST_TURNS = 60
"""Turns of blocks alone and beside the others: what is not known by then is not taken for granted."""
CONFIDENCE = 0.95


class _Neighbour(Protocol):
    def start(self, plan: Plan, label: str) -> Arm: ...


class Neighbours:
    """Live processes of one plan, one on each place.

    Args:
        runners: one for each place.
        plan: of all.
        rule: block length and patience.
        workers: run one thing on every place at the same time.
    """

    def __init__(self, runners: Sequence[_Neighbour], plan: Plan, rule: Rule, workers: Workers) -> None:
        self._runners, self._plan, self._rule, self._workers = runners, plan, rule, workers
        self.arms: list[Arm] = []
        self._sides = [SideStatistics(plan) for _ in runners]
        self._logs: list[list[float]] = [[] for _ in runners]

    def start(self) -> None:
        """Starts all at the same time, warms them up one by one, each while the others stand still.

        Raises:
            TrialFailed, WorkloadError: one of them cannot be started.
        """

        def started(runner: _Neighbour) -> Callable[[int], Arm]:
            return lambda _: runner.start(self._plan, "incumbent")

        asked = [self._workers.submit(started(runner)) for runner in self._runners]
        failures = []
        for future in asked:
            try:
                self.arms.append(future.result())
            except (TrialFailed, WorkloadError) as failure:
                failures.append(failure)
        if failures:
            raise failures[0]
        for arm, side in zip(self.arms, self._sides, strict=True):
            arm.ready()
            side.started(arm.warm_up(self._rule.warm_up_seconds))
            arm.freeze()

    @property
    def freezing(self) -> bool:
        return all(arm.can_freeze for arm in self.arms)

    def turn(self, beside_first: bool) -> None:
        """A block of each alone, and one of all at the same time."""
        beside = self._beside() if beside_first else []
        alone = [self._block(number) for number in range(len(self.arms))]
        for number, (one, other) in enumerate(zip(alone, beside or self._beside(), strict=True)):
            before, after = rates(one, other)
            self._logs[number].append(log(after / before))

    def _block(self, number: int) -> Block:
        arm, side = self.arms[number], self._sides[number]
        arm.thaw()
        block = arm.block(*block_length(self._rule, side.step_seconds))
        arm.freeze()
        side.ran(block)
        return block

    def _beside(self) -> list[Block]:
        def block(number: int) -> Callable[[int], Block]:
            length = block_length(self._rule, self._sides[number].step_seconds)
            return lambda _: self.arms[number].block(*length)

        for arm in self.arms:
            arm.thaw()
        blocks = [future.result() for future in [self._workers.submit(block(n)) for n in range(len(self.arms))]]
        for arm, side, one in zip(self.arms, self._sides, blocks, strict=True):
            arm.freeze()
            side.ran(one)
        return blocks

    def seen(self) -> list[Estimate | None]:
        """Throughput beside the others over alone, by place; valid however often it is looked at."""
        return [_estimate(logs) for logs in self._logs]

    def whole(self) -> Estimate | None:
        """The same over all places: the mean of each turn."""
        return _estimate([float(np.mean(turn)) for turn in zip(*self._logs, strict=True)])

    def live(self) -> list[LiveArm]:
        """The frozen processes, to be looked against."""
        return [
            LiveArm(arm, side.startups[-1], side.paths[-1]) for arm, side in zip(self.arms, self._sides, strict=True)
        ]

    def close(self) -> None:
        """Ends all of them."""
        for arm in self.arms:
            arm.thaw()
            arm.close()
        self.arms.clear()


def sharing_of(
    neighbours: Neighbours,
    places: Sequence[str],
    plan: Plan,
    floor: float | None,
    *,
    clock: Clock,
    deadline: float,
    rng: np.random.Generator,
) -> Sharing:
    """Measures what neighbours cost, until it is known on every place or the time is up.

    Args:
        floor: the noise floor of the run; None: not measured, and then nothing may share.
        deadline: on the clock.
    """
    began = clock()
    seen: list[Estimate | None] = [None] * len(places)
    if floor is None:
        return Sharing(plan=plan, places=tuple(places), beside=tuple(seen), reason="the noise floor was not measured")
    allowed, reason = False, "their processes cannot be stopped here, so that none is ever measured alone"
    try:
        neighbours.start()
        if neighbours.freezing:
            allowed, reason = _measured(neighbours, places, floor, clock, deadline, rng)
    except (TrialFailed, WorkloadError) as failure:
        reason = f"they could not run at the same time: {getattr(failure, 'reason', failure.message)}"
    return Sharing(
        plan=plan,
        places=tuple(places),
        beside=tuple(neighbours.seen()),
        floor=floor,
        allowed=allowed,
        reason=reason,
        seconds=clock() - began,
    )


def _measured(
    neighbours: Neighbours,
    places: Sequence[str],
    floor: float,
    clock: Clock,
    deadline: float,
    rng: np.random.Generator,
) -> tuple[bool, str]:
    for turn in range(MOST_TURNS):
        neighbours.turn(bool(rng.integers(2)))
        whole = neighbours.whole()
        seen = [(each, name) for each, name in zip(neighbours.seen(), places, strict=True) if each is not None]
        if whole is None or not seen:
            continue
        worst, name = max(seen, key=lambda item: abs(log(item[0].value)))
        told = f"beside its neighbours {_ratio(whole)} in the mean, and {name} {_ratio(worst)} at the worst"
        if _within(whole.low, floor) and _within(whole.high, floor) and _within(worst.value, floor):
            return True, f"{told}: within the noise floor of {floor:.1%}"
        if any(_outside(each, floor) for each in (whole, *(each for each, _ in seen))):
            return False, f"{told}: more than the noise floor of {floor:.1%}"
        if clock() > deadline or turn == MOST_TURNS - 1:
            return False, f"{told}: not known well enough to be within the noise floor of {floor:.1%}"
    return False, "too few blocks were measured"


def _ratio(seen: Estimate) -> str:
    return f"{seen.value:.3f}x [{seen.low:.3f}, {seen.high:.3f}]"


def _within(ratio: float, floor: float) -> bool:
    return abs(log(ratio)) <= log1p(floor)


def _outside(seen: Estimate, floor: float) -> bool:
    return log(seen.high) < -log1p(floor) or log(seen.low) > log1p(floor)


def _estimate(logs: Sequence[float]) -> Estimate | None:
    if len(logs) < MIN_BLOCKS:
        return None
    level = trimmed(logs)
    radius = known_radius(max(level.error, 1e-6), 1 - CONFIDENCE)
    return Estimate(
        value=exp(level.value),
        low=exp(level.value - radius),
        high=exp(level.value + radius),
        confidence=CONFIDENCE,
        n=len(logs),
    )
