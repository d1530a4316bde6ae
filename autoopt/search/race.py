"""Looks: candidates against one live incumbent, each in a process of its own, or put on in the incumbent's; on several
places at once, where there are some and a control of neighbours allows it.

How processes of one program differ is in the interval of a screening, so that it refuses what is plainly slow and never
accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from math import inf, log, log1p
from statistics import fmean

import numpy as np

from autoopt.benchmark.switching import PARTS, SCRIPT_PARTS, unswitchable
from autoopt.errors import Interrupted, TrialFailed, WorkloadError
from autoopt.records import Estimate, JsonDict, Noise, Plan
from autoopt.records.measured import Sharing
from autoopt.records.messages import Block
from autoopt.registry import Registry
from autoopt.search.budget_allocation import BudgetAllocation, TimeLimits
from autoopt.search.candidate import plan_of
from autoopt.search.compare.arena import Clock, LiveArm, Source, block_length, end, row_of
from autoopt.search.compare.arm import SETTLING_STEPS, Start, TrialArm
from autoopt.search.compare.comparison import Comparison, Rule, SideStatistics
from autoopt.search.compare.contest import Contest, OnProgress, Several
from autoopt.search.compare.sequential_test import ALPHA, as_estimate
from autoopt.search.compare.statistics import MIN_BLOCKS, Paired, known_radius, ratio_of_totals
from autoopt.search.planner import PLUGIN_ERRORS, Proposal
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.trial_runner import MemoryLedger, TrialRunner
from autoopt.strategy import Case
from autoopt.trial.places import Workers

MOST_ROUNDS = 12
"""Of a screening measurement: more of them serve less than another process would."""


class Race:
    """Candidates against one live incumbent, each in a process of its own, so many ``places`` at the same time."""

    places = 1

    def __init__(
        self,
        start: Start,
        incumbent: Plan,
        rule: Rule,
        *,
        clock: Clock,
        rng: np.random.Generator,
        memory: MemoryLedger | None = None,
    ) -> None:
        self._start, self._clock, self._rng, self.incumbent = start, clock, rng, incumbent
        self._rule = rule.model_copy(update={"max_pairs": 1, "max_seconds": inf})
        self._live: LiveArm | None = None
        self._memory = memory or MemoryLedger()
        self._one_at_a_time = False

    def screen(self, candidate: Plan, noise: Noise, on_progress: OnProgress | None = None) -> Comparison:
        """One pair of processes. ``inconclusive``, ``reject``, ``harmful`` or ``failed``; never ``accept``."""
        self._one_at_a_time = self._one_at_a_time or not self._memory.fit_together(self.incumbent, candidate)
        if self._one_at_a_time:
            self.close()
        contest = Contest(
            Source(self._start, self.hand_over()),
            self.incumbent,
            [candidate],
            "incumbent",
            self._rule,
            clock=self._clock,
            noise=noise,
            rng=self._rng,
            most_rounds=MOST_ROUNDS,
            on_progress=on_progress,
            keep_live=True,
            alternating=self._one_at_a_time,
        )
        (seen,) = contest.run()
        assert seen is not None
        self._memory.note(seen)
        self._one_at_a_time = self._one_at_a_time or contest.for_want_of_room
        self._live = contest.live
        return seen

    def hand_over(self) -> LiveArm | None:
        """The incumbent's live process, which belongs to whoever asks from here on; None where there is none."""
        live, self._live = self._live, None
        return live

    def close(self) -> None:
        """Ends the incumbent's process."""
        live = self.hand_over()
        if live is not None:
            live.close()


SECONDS = 4.0
"""Of a screening in a process that is alive, at least, as thought beforehand."""


def switchable_parts(runner: TrialRunner) -> frozenset[str]:
    """Parts of a setup that can be switched in processes of a run; none where several train together, or at once."""
    script = runner.base.script
    if runner.parallel > 1 or (script is not None and script.launch is not None):
        return frozenset()
    return PARTS if script is None else SCRIPT_PARTS


def seconds_of_screening(allocation: BudgetAllocation, state: SearchState) -> float:
    """Seconds of a screening in a live process, about: ramp and block of both, as often as counts."""
    startup = state.aa.side.startup
    steps = SETTLING_STEPS + 4 * MIN_BLOCKS * (startup.cycle if startup is not None else 1)
    return max(SECONDS, steps * allocation.step_seconds)


def switchable(registry: Registry, incumbent: Plan, plan: Plan, parts: frozenset[str] = PARTS) -> bool:
    """Whether a process of the incumbent can take the plan on: by the word of its strategies, and by what they set."""
    both = (incumbent, plan)
    changed = [change for one in both for change in one.changes if not all(change in other.changes for other in both)]
    if not changed or not all(registry[change.strategy].switchable for change in changed):
        return False
    try:
        return not unswitchable(registry.fold(incumbent), registry.fold(plan), parts)
    except PLUGIN_ERRORS:  # its own look says so
        return False


class SwitchedScreenings:
    """Visits of plans in one process, and the screenings that they brought until they are asked for.

    Args:
        take_over: hands over a live process of the incumbent.
    """

    def __init__(self, context: RunContext, case: Case, take_over: Callable[[], LiveArm | None]) -> None:
        self._context, self._state, self._case, self._take_over = context, context.state, case, take_over
        self._seen: dict[str, Comparison | None] = {}  # None: it failed, or it was taken
        self._spent: list[float] = []
        self._rng = np.random.default_rng([context.seed, context.state.numbers, 5])
        self._live: LiveArm | None = None

    def possible(self, plan: Plan) -> bool:
        """Whether a visit may tell of a plan, and none has failed to."""
        runner, failed = self._context.runner, plan.key in self._seen and not self.knows(plan)
        return not failed and switchable(runner.registry, self._state.incumbent, plan, switchable_parts(runner))

    @property
    def each(self) -> float:
        """Seconds of a screening in a visit, as thought beforehand and as seen so far."""
        return fmean([seconds_of_screening(self._context.allocation, self._state), *self._spent])

    def able(self, proposal: Proposal) -> bool:
        """Whether a process can take on its first setting, sooner than one of its own would show it."""
        strategy = proposal.strategy
        if not strategy.switchable or self.each > self._context.allocation.screening:
            return False
        plan = plan_of(self._context, strategy, self._case, proposal.setting)
        return plan is not None and self.possible(plan)

    def visit(self, plans: Sequence[Plan], deadline: float) -> None:
        """Screens those plans that a process can take on and that were not screened, by one pair of processes of each
        that are one process of the incumbent, which lives on; a durable step."""
        new = [plan for plan in plans if not self.knows(plan) and self.possible(plan)]
        if not new:
            return
        context, state, incumbent = self._context, self._state, self._state.incumbent
        key: JsonDict = {
            "purpose": f"looks in one process from {state.numbers}",
            "incumbent": incumbent.model_dump(),
            "candidates": [plan.model_dump() for plan in new],
        }

        def measure() -> Several:
            usual = incumbent.names()
            names = ", ".join("+".join(name for name in plan.names() if name not in usual) for plan in new)
            screened = f"screening {len(new)} candidates in one process: {names}"
            context.begin("optimize", len(state.rounds), screened if len(new) > 1 else f"screening {names}")
            live, self._live = self._live or self._take_over(), None
            contest = Contest(
                Source(context.runner.start, live, switched=incumbent),
                incumbent,
                new,
                "incumbent",
                context.screening_rule(deadline - context.now()),
                clock=context.now,
                noise=state.noise,
                rng=self._rng,
                most_rounds=MOST_ROUNDS,
                keep_live=True,
            )
            found = Several(comparisons=tuple(contest.run()))
            self._live = contest.live
            return found

        seen = context.run.step("look", key, measure, Several)
        self._spent += [screening.seconds for screening in seen.comparisons if screening is not None]
        self._seen |= {plan.key: screening for plan, screening in zip(new, seen.comparisons, strict=True)}

    def knows(self, plan: Plan) -> bool:
        """Whether a visit has brought a screening of a plan that nobody has taken."""
        return self._seen.get(plan.key) is not None

    def take(self, plan: Plan) -> Comparison | None:
        """The screening of a plan, once."""
        seen = self._seen.get(plan.key)
        if seen is not None:
            self._seen[plan.key] = None
        return seen

    def close(self) -> None:
        """Ends the process; what was seen is kept."""
        live, self._live = self._live, None
        if live is not None:
            live.close()


MOST_TURNS = 60
"""Turns of blocks alone and next to the others: what is not known by then is not taken for granted."""


class Neighbours:
    """Live processes of one plan, one on each place."""

    def __init__(self, runners: Sequence[TrialRunner], plan: Plan, rule: Rule, workers: Workers) -> None:
        self._runners, self._plan, self._rule, self._workers = runners, plan, rule, workers
        self.arms: list[TrialArm] = []
        self._sides = [SideStatistics(plan) for _ in runners]
        self._turns: list[list[Paired]] = [[] for _ in runners]

    def sharing(
        self, places: Sequence[str], floor: float | None, *, clock: Clock, deadline: float, rng: np.random.Generator
    ) -> Sharing:
        """Measures what neighbours cost, until it is known on every place or time is up; a noise floor is needed."""
        began = clock()
        allowed, reason = False, "the noise floor was not measured"
        if floor is not None:
            try:
                self._start()
                allowed, reason = self._compared(places, floor, clock, deadline, rng)
            except (TrialFailed, WorkloadError) as failure:
                reason = f"they could not run at the same time: {getattr(failure, 'reason', failure.message)}"
        return Sharing(
            plan=self._plan,
            places=tuple(places),
            beside=tuple(map(_next_to_alone, self._turns)),
            floor=floor,
            allowed=allowed,
            reason=reason,
            seconds=clock() - began,
        )

    def _start(self) -> None:
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

    def _compared(
        self, places: Sequence[str], floor: float, clock: Clock, deadline: float, rng: np.random.Generator
    ) -> tuple[bool, str]:
        """Whether neighbors cost no more than the floor, and the reason that the report shows."""
        most, everyone = log1p(floor), range(len(self.arms))
        for turn in range(MOST_TURNS):
            shared = self._blocks(everyone) if rng.integers(2) else []
            alone = [self._blocks([number])[0] for number in everyone]
            for arm, turns, *blocks in zip(
                self.arms, self._turns, alone, shared or self._blocks(everyone), strict=True
            ):
                one, other = (row_of(block, self._plan, arm.process, len(turns), 0.0) for block in blocks)
                turns.append((one, other))
            whole = _next_to_alone([pair for turns in self._turns for pair in turns])
            found = zip(map(_next_to_alone, self._turns), places, strict=True)
            seen = [(each, name) for each, name in found if each is not None]
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

    def _blocks(self, numbers: Sequence[int]) -> list[Block]:
        """A block of each of these at the same time, while the others stand still."""
        for number in numbers:
            self.arms[number].thaw()
        asked = [self._workers.submit(partial(self._block, number)) for number in numbers]
        blocks = [future.result() for future in asked]
        for number, block in zip(numbers, blocks, strict=True):
            self.arms[number].freeze()
            self._sides[number].ran(block)
        return blocks

    def _block(self, number: int, place: int) -> Block:
        return self.arms[number].block(*block_length(self._rule, self._sides[number].step_seconds))

    def close(self) -> None:
        """Ends all of them."""
        for arm in self.arms:
            end(arm)
        self.arms.clear()


def _next_to_alone(turns: Sequence[Paired]) -> Estimate | None:
    """Throughput next to the others over alone; valid however often it is screened. None of too few turns."""
    if len(turns) < MIN_BLOCKS:
        return None
    level = ratio_of_totals(turns)
    radius = known_radius(max(level.error, 1e-6), ALPHA)
    return as_estimate(level, (level.value - radius, level.value + radius), 1 - ALPHA)


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


def open_race(context: RunContext, screenings: int, until: float) -> Race | ParallelRace:
    """The race for about so many looks on the present incumbent, until the screening ends on the run's clock."""
    state, runner, rule = context.state, context.runner, context.screening_rule(1.0)
    seed, incumbent = [context.seed, state.numbers, 2], state.incumbent
    if runner.parallel > 1 and screenings > runner.parallel:
        runners, found = runner.placed(), state.sharing.get(incumbent.key)
        if found is None:
            key = {"purpose": "neighbours", "incumbent": incumbent.model_dump()}
            measure = partial(_control, context, runners, rule, until)
            found = state.sharing[incumbent.key] = context.run.step("sharing", key, measure, Sharing)
            if not found.allowed:
                why = f"pairs are measured one after the other: {found.reason}"
                context.warn(f"--parallel {len(runners)}: {why}")
        if found.allowed:
            return ParallelRace(runner, runners, incumbent, rule, workers=runner.workers, clock=context.now, seed=seed)
    rng = np.random.default_rng(seed)
    return Race(runner.start, incumbent, rule, clock=context.now, rng=rng, memory=runner.memory)


def _control(context: RunContext, runners: Sequence[TrialRunner], rule: Rule, until: float) -> Sharing:
    """Costs of neighbours to the incumbent."""
    workers = context.runner.workers()
    neighbours = Neighbours(runners, context.state.incumbent, rule, workers)
    try:
        return neighbours.sharing(
            [runner.place for runner in runners],
            context.state.noise.floor,
            clock=context.now,
            deadline=context.now() + CONTROL_SHARE * max(until - context.now(), 0.0),
            rng=np.random.default_rng([context.seed, context.state.numbers, 4]),
        )
    finally:
        neighbours.close()
        workers.close()
