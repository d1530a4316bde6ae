"""Screenings on several places at once, where there are some and a control of neighbours allows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from math import exp, log, log1p

import numpy as np

from autoopt.errors import Interrupted, TrialFailed, WorkloadError
from autoopt.records import Estimate, Noise, Plan
from autoopt.records.measured import Sharing
from autoopt.records.messages import Block
from autoopt.search.budget_allocation import TimeLimits
from autoopt.search.compare.arena import Clock, block_length, end, row_of
from autoopt.search.compare.arm import TrialArm
from autoopt.search.compare.comparison import Comparison, Rule, SideStatistics
from autoopt.search.compare.contest import OnProgress
from autoopt.search.compare.rounds import Paired, ratio_of_totals
from autoopt.search.compare.sequential_test import ALPHA
from autoopt.search.compare.statistics import MIN_BLOCKS, known_radius
from autoopt.search.race import Race
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.places import Workers

MOST_TURNS = 60
"""Turns of blocks alone and next to the others: what is not known by then is not taken for granted."""


class Neighbours:
    """Live processes of one plan, one on each place."""

    def __init__(self, runners: Sequence[TrialRunner], plan: Plan, rule: Rule, workers: Workers) -> None:
        self._runners, self._plan, self._rule, self._workers = runners, plan, rule, workers
        self.arms: list[TrialArm] = []
        self._sides = [SideStatistics(plan) for _ in runners]
        self._turns: list[list[Paired]] = [[] for _ in runners]

    def start(self) -> None:
        """Starts all at the same time, warms them up one by one, each while the others stand still.

        Raises:
            TrialFailed, WorkloadError: one of them cannot be started.
        """

        asked = [self._workers.submit(partial(self._started, runner)) for runner in self._runners]
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

    def _started(self, runner: TrialRunner, place: int) -> TrialArm:
        return runner.start(self._plan, "incumbent")

    @property
    def freezing(self) -> bool:
        return all(arm.can_freeze for arm in self.arms)

    def turn(self, shared_first: bool) -> None:
        """A block of each alone, and one of all at the same time."""
        shared = self._shared() if shared_first else []
        alone = [self._block(number) for number in range(len(self.arms))]
        for arm, turns, *blocks in zip(self.arms, self._turns, alone, shared or self._shared(), strict=True):
            one, other = (row_of(block, self._plan, arm.process, len(turns), 0.0) for block in blocks)
            turns.append((one, other))

    def _block(self, number: int) -> Block:
        self.arms[number].thaw()
        block = self._measured(number)
        self.arms[number].freeze()
        self._sides[number].ran(block)
        return block

    def _measured(self, number: int, place: int = 0) -> Block:
        return self.arms[number].block(*block_length(self._rule, self._sides[number].step_seconds))

    def _shared(self) -> list[Block]:
        for arm in self.arms:
            arm.thaw()
        asked = [self._workers.submit(partial(self._measured, number)) for number in range(len(self.arms))]
        blocks = [future.result() for future in asked]
        for arm, side, one in zip(self.arms, self._sides, blocks, strict=True):
            arm.freeze()
            side.ran(one)
        return blocks

    def seen(self) -> list[Estimate | None]:
        """Throughput next to the others over alone, by place; valid however often it is screened."""
        return [_estimate(turns) for turns in self._turns]

    def whole(self) -> Estimate | None:
        """The same over all places together."""
        return _estimate([pair for turns in self._turns for pair in turns])

    def close(self) -> None:
        """Ends all of them."""
        for arm in self.arms:
            end(arm)
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
    """Measures what neighbours cost, until it is known on every place or time is up; a noise floor is needed."""
    began = clock()
    allowed, reason = False, "the noise floor was not measured"
    if floor is not None:
        try:
            neighbours.start()
            reason = "their processes cannot be stopped here, so that none is ever measured alone"
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
    neighbours: Neighbours, places: Sequence[str], floor: float, clock: Clock, deadline: float, rng: np.random.Generator
) -> tuple[bool, str]:
    """Whether neighbors cost no more than the floor, and the reason that the report shows."""
    most = log1p(floor)
    for turn in range(MOST_TURNS):
        neighbours.turn(bool(rng.integers(2)))
        whole = neighbours.whole()
        seen = [(each, name) for each, name in zip(neighbours.seen(), places, strict=True) if each is not None]
        if whole is None or not seen:
            continue
        worst, name = max(seen, key=lambda item: abs(log(item[0].value)))
        text = f"next to its neighbors {whole.text('.3f')} in the mean, and {name} {worst.text('.3f')} at the worst"
        if max(abs(log(ratio)) for ratio in (whole.low, whole.high, worst.value)) <= most:
            return True, f"{text}: within the noise floor of {floor:.1%}"
        if any(log(each.high) < -most or log(each.low) > most for each in (whole, *(each for each, _ in seen))):
            return False, f"{text}: more than the noise floor of {floor:.1%}"
        if clock() > deadline or turn == MOST_TURNS - 1:
            return False, f"{text}: not known well enough to be within the noise floor of {floor:.1%}"
    return False, "too few blocks were measured"


def _estimate(turns: Sequence[Paired]) -> Estimate | None:
    if len(turns) < MIN_BLOCKS:
        return None
    level = ratio_of_totals(turns)
    radius = known_radius(max(level.error, 1e-6), ALPHA)
    low, high = exp(level.value - radius), exp(level.value + radius)
    return Estimate(value=exp(level.value), low=low, high=high, confidence=1 - ALPHA, n=len(turns))


AHEAD = 2
"""Looks for each place that are begun or waiting: a place that is done early has another."""


Expected = tuple[Plan, TimeLimits]
"""A measurement that will be asked for: its plan, and the limits of its start."""


class ParallelRace:
    """Candidates against live processes of the incumbent, one on each place.

    Args:
        main: the runner of the search, whose limits hold for what was not expected, and which is reported the logs.
        workers: makes the workers that fill the places.
    """

    def __init__(
        self,
        main: TrialRunner,
        runners: Sequence[TrialRunner],
        incumbent: Plan,
        rule: Rule,
        *,
        workers: Callable[[], Workers],
        clock: Clock,
        seed: Sequence[int],
    ) -> None:
        self._main, self._runners, self.incumbent, self._make = main, list(runners), incumbent, workers
        self._workers: Workers | None = None
        self._waiting: dict[str, Future[tuple[Comparison, str | None]]] = {}
        self._races = [
            Race(each.start, incumbent, rule, clock=clock, rng=np.random.default_rng([*seed, number]))
            for number, each in enumerate(self._runners)
        ]

    @property
    def places(self) -> int:
        """How many looks are measured at the same time."""
        return len(self._races)

    def expect(self, screenings: Iterable[Expected], noise: Noise) -> None:
        """Begins looks that will be asked for, in this order, as far as there are places for them soon."""
        for screening in screenings:
            if len(self._waiting) >= AHEAD * self.places:
                return
            if screening[0].key not in self._waiting:
                self._begin(screening, noise)

    def screen(self, candidate: Plan, noise: Noise, on_progress: OnProgress | None = None) -> Comparison:
        """The screening of a candidate, waited for; measured now where it was not expected. See ``Race.screen``."""
        if candidate.key not in self._waiting:
            self._begin((candidate, self._main.limits), noise)
        future = self._waiting.pop(candidate.key)
        try:
            seen, self._main.latest_log = future.result()
        except (Interrupted, KeyboardInterrupt):
            self._end(wait=False)  # the launcher ends what is still measured
            raise
        return seen

    def _begin(self, screening: Expected, noise: Noise) -> None:
        plan, limits = screening

        def measure(place: int) -> tuple[Comparison, str | None]:
            runner, race = self._runners[place], self._races[place]
            runner.limits = limits
            return race.screen(plan, noise), runner.latest_log

        self._workers = self._workers or self._make()
        self._waiting[plan.key] = self._workers.submit(measure)

    def _end(self, wait: bool) -> None:
        if self._workers is not None:
            self._workers.close(wait)
        self._workers = None
        self._waiting.clear()

    def close(self) -> None:
        """Drops what nobody has asked for, and ends the incumbent's processes."""
        self._end(wait=True)
        for race in self._races:
            race.close()


CONTROL_SHARE = 0.2
"""Of the time that is left, for the control of neighbours at most."""


def open_race(context: RunContext, state: SearchState, screenings: int, until: float) -> Race | ParallelRace:
    """The race for about so many looks on the present incumbent, until the screening ends on the run's clock."""
    seed, runner, rule = [context.seed, state.numbers, 2], context.runner, context.screening_rule(1.0)
    if runner.parallel > 1 and screenings > runner.parallel:
        runners = runner.placed()
        if _control(context, state, runners, until).allowed:
            return ParallelRace(
                runner, runners, state.incumbent, rule, workers=runner.workers, clock=context.now, seed=seed
            )
    rng = np.random.default_rng(seed)
    return Race(runner.start, state.incumbent, rule, clock=context.now, rng=rng, memory=runner.memory)


def _control(context: RunContext, state: SearchState, runners: Sequence[TrialRunner], until: float) -> Sharing:
    """Costs of neighbours to the incumbent, measured once."""
    known = state.sharing.get(state.incumbent.key)
    if known is not None:
        return known
    names = [runner.place for runner in runners]

    def measure() -> Sharing:
        workers = context.runner.workers()
        neighbours = Neighbours(runners, state.incumbent, context.screening_rule(1.0), workers)
        try:
            return sharing_of(
                neighbours,
                names,
                state.incumbent,
                state.noise.floor,
                clock=context.now,
                deadline=context.now() + CONTROL_SHARE * max(until - context.now(), 0.0),
                rng=np.random.default_rng([context.seed, state.numbers, 4]),
            )
        finally:
            neighbours.close()
            workers.close()

    key = {"purpose": "neighbours", "incumbent": state.incumbent.model_dump()}
    found = state.sharing[state.incumbent.key] = context.run.step("sharing", key, measure, Sharing)
    if not found.allowed:
        context.warn(state, f"--parallel {len(names)}: pairs are measured one after the other: {found.reason}")
    return found
