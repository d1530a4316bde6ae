"""Several candidates beside one incumbent, one after the other and on several places at once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoopt.errors import NodeLost, TrialFailed
from autoopt.records import Change, Noise, Plan
from autoopt.records.measured import Sharing
from autoopt.records.messages import Block
from autoopt.search.budget_allocation import TimeLimits
from autoopt.search.compare.arena import Source
from autoopt.search.compare.comparison import Comparison, Decision, Rule, SideName
from autoopt.search.compare.contest import Contest, Several
from autoopt.search.compare.noise import control
from autoopt.search.race import Neighbours, ParallelRace
from autoopt.testing import Behaviour, FakeClock, FakeMachine, NoiseModel
from autoopt.testing.fakes import FakeArm
from tests.simulated import World, product, strategy, verdicts

SHARED = Plan()
RULE = Rule(max_seconds=600)


def plan(name: str) -> Plan:
    return Plan(changes=(Change(strategy=name),))


def machine(
    behaviours: dict[str, Behaviour], shared: Behaviour | None = None, kind: str = "heavy", **fields
) -> FakeMachine:
    """Plans by the name of their only change, and the shared one without any."""

    def behave(plan: Plan) -> Behaviour:
        return behaviours[plan.changes[0].strategy] if plan.changes else shared or Behaviour()

    return FakeMachine(**{"behave": behave, "noise": NoiseModel(kind), **fields})


def run(fake: FakeMachine, names: list[str], role: SideName = "incumbent", rule: Rule = RULE, **arguments) -> Several:
    contest = Contest(
        Source(fake.start), SHARED, [plan(name) for name in names], role, rule, clock=fake.clock, **arguments
    )
    several = Several(comparisons=tuple(contest.run()))
    assert not fake.alive, "processes were left behind"
    return several


def faster(times: float) -> Behaviour:
    return Behaviour(step_seconds=0.02 / times)


def decisions(several: Several) -> list[Decision | None]:
    return [comparison.decision if comparison else None for comparison in several.comparisons]


def one_by_one(several: Several) -> list[Comparison]:
    assert all(several.comparisons)
    return [comparison for comparison in several.comparisons if comparison]


@pytest.mark.parametrize("kind", ["normal", "heavy", "drifting", "bimodal"])
def test_each_is_decided_as_it_truly_is(kind: str) -> None:
    true = {"fast": 1.6, "slow": 0.6, "same": 1.0}
    fake = machine({name: faster(times) for name, times in true.items()}, kind=kind)
    noise, _ = control(fake.start, SHARED, RULE, clock=fake.clock)
    found = one_by_one(run(fake, list(true), noise=noise))
    assert found[0].decision is Decision.ACCEPT
    assert found[1].decision in (Decision.HARMFUL, Decision.REJECT)
    assert found[2].decision is not Decision.ACCEPT
    for each, times in zip(found, true.values(), strict=True):
        assert each.estimate.low <= times <= each.estimate.high
        assert each.incumbent.plan == SHARED
        assert each.estimate.n == len(each.pairs)


def test_the_shared_plan_may_be_the_candidate_of_each() -> None:
    fake = machine({"less": faster(0.7), "more": faster(1.5)}, kind="normal")
    less, more = one_by_one(run(fake, ["less", "more"], "candidate"))
    assert (less.decision, more.decision) == (Decision.ACCEPT, Decision.HARMFUL)
    assert less.estimate.low <= 1 / 0.7 <= less.estimate.high
    assert (less.candidate.plan, less.incumbent.plan) == (SHARED, plan("less"))


def test_the_shared_plan_is_started_once_a_round_and_what_is_decided_no_more() -> None:
    fake = machine({"fast": faster(2.0), "slow": faster(0.4), "same": faster(1.0)})
    rounds: list[int] = []
    found = one_by_one(run(fake, ["fast", "slow", "same"], on_generation=rounds.append))
    started = [plan.names() for plan, _ in fake.started]
    assert started.count(()) == len(rounds) == max(len(each.pairs) for each in found)
    for name, each in zip(("fast", "slow", "same"), found, strict=True):
        assert started.count((name,)) == len(each.pairs)
    assert rounds[0] == 3 > rounds[-1]


def test_what_fails_is_its_own_failure_and_the_others_go_on() -> None:
    crash = TrialFailed("crashed", "gone", where="training")
    behaviours = {
        "fast": faster(1.6),
        "at_start": Behaviour(fails=crash),
        "later": Behaviour(fails=crash, fails_at=60),
        "no_number": Behaviour(loss=lambda step: None if step > 2 else 1.0),
    }
    fake = machine(behaviours, kind="normal")
    found = one_by_one(run(fake, list(behaviours)))
    assert [each.decision for each in found] == [Decision.ACCEPT, *[Decision.FAILED] * 3]
    assert [each.failure.kind for each in found[1:] if each.failure] == ["crashed", "crashed", "not_finite"]
    assert all(each.failure.side == "candidate" for each in found[1:] if each.failure)


def test_a_failure_of_the_shared_plan_is_that_of_each() -> None:
    crash = TrialFailed("crashed", "gone", where="training")
    fake = machine({"fast": faster(1.6), "slow": faster(0.6)}, Behaviour(fails=crash, fails_at=60))
    for each in one_by_one(run(fake, ["fast", "slow"])):
        assert each.decision is Decision.FAILED
        assert "the incumbent, not the candidate" in each.reason


TWO = 2 * Behaviour().memory_bytes


@pytest.mark.parametrize("lack", [{"memory_limit_bytes": TWO}, {"exclusive": True}, {"retries_beyond": TWO}], ids=str)
def test_what_does_not_fit_together_is_left_to_comparisons_of_two(lack: dict[str, Any]) -> None:
    fake = machine({"fast": faster(1.6), "slow": faster(0.6)}, **lack)
    assert decisions(run(fake, ["fast", "slow"])) == [None, None]


def test_time_that_is_up_ends_all_of_them_with_what_is_known() -> None:
    fake = machine({"same": faster(1.0), "alike": faster(1.005)})
    found = one_by_one(run(fake, ["same", "alike"], rule=Rule(max_seconds=30)))
    assert all(each.decision is Decision.INCONCLUSIVE for each in found)
    assert all(each.estimate is not None for each in found), "its starts were paid for"
    none = one_by_one(run(fake, ["same", "alike"], deadline=fake.clock.now))
    assert [each.reason for each in none] == ["no time for a single comparison"] * 2


@pytest.mark.parametrize("kind", ["heavy", "drifting"])
def test_intervals_hold_and_placebos_are_not_accepted(kind: str) -> None:
    """Of four plans that are all the same as the shared one, over many machines."""
    names = ["a", "b", "c", "d"]
    missed = accepted = 0
    for seed in range(10):
        fake = machine(dict.fromkeys(names, faster(1.0)), kind=kind, seed=seed)
        fake.noise = replace(fake.noise, process_sd=0.015)
        noise, _ = control(fake.start, SHARED, RULE, clock=fake.clock)
        several = run(fake, names, noise=noise, rng=np.random.default_rng(seed), rule=Rule(max_seconds=200))
        for each in one_by_one(several):
            accepted += each.decision is Decision.ACCEPT
            missed += not (each.estimate is not None and each.estimate.low <= 1.0 <= each.estimate.high)
    assert missed <= 4  # of 40; 2 are allowed on average
    assert accepted <= 1


# Looks on several places at once, in simulated time: as quick as there are places, told in the same order.


class SimulatedWorkers:
    """Workers in simulated time: a job begins when its place is free, and whoever waits for it waits until its end."""

    def __init__(self, clock: FakeClock, places: int) -> None:
        self.clock, self.free = clock, [0.0] * places
        self.closed = 0

    def submit(self, job: Callable[[int], Any]) -> Future[Any]:
        now, place = self.clock.now, int(np.argmin(self.free))
        self.clock.now = max(now, self.free[place])
        future = _Later(self.clock)
        try:
            future.set_result(job(place))
        except Exception as error:
            future.set_exception(error)
        future.ended = self.free[place] = self.clock.now
        self.clock.now = now
        return future

    def close(self, wait: bool = True) -> None:
        self.closed += 1
        self.clock.now = max(self.clock.now, *self.free) if wait else self.clock.now


class _Later(Future[Any]):
    ended = 0.0

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def result(self, timeout: float | None = None) -> Any:
        self._clock.now = max(self._clock.now, self.ended)
        return super().result(timeout)


class Runner:
    """A place of a fake machine."""

    limits = TimeLimits()
    latest_log: str | None = None

    def __init__(self, machine: FakeMachine, name: str = "") -> None:
        self.name = name
        self.start: Any = machine.start


PLANS = [Plan(changes=(Change(strategy=f"candidate_{number}"),)) for number in range(160)]


def race_of(machine: FakeMachine, places: int) -> tuple[ParallelRace, SimulatedWorkers]:
    workers = SimulatedWorkers(machine.clock, places)
    runners = [Runner(machine, str(number)) for number in range(places)]
    rule = Rule(max_seconds=60)
    main = Runner(machine)
    race = ParallelRace(main, runners, Plan(), rule, workers=lambda: workers, clock=machine.clock, seed=[0])
    return race, workers


def test_trials_on_eight_places_take_an_eighth_of_the_time() -> None:
    """Each takes as long as the next, within what blocks round to: only the first start on each place is on top."""
    machine = FakeMachine(behave=lambda plan: Behaviour(startup_seconds=0.5), noise=NoiseModel("quiet"))
    race, _ = race_of(machine, 8)
    screenings, began = [(plan, TimeLimits()) for plan in PLANS], machine.clock.now
    seconds = 0.0
    for number, (plan, _) in enumerate(screenings):
        race.expect(screenings[number:], Noise())
        seconds += race.screen(plan, Noise()).seconds
    efficiency = seconds / (8 * (machine.clock.now - began))
    race.close()
    assert efficiency > 0.95
    assert [label for _, label in machine.started].count("incumbent") == 8
    assert not machine.alive, "processes were left behind"


def test_what_was_not_expected_is_measured_when_asked_for_and_what_fails_is_a_verdict_on_it_alone() -> None:
    def behave(plan: Plan) -> Behaviour:
        fails = TrialFailed("crashed", "signal 11") if plan == PLANS[2] else None
        return Behaviour(step_seconds=0.02 if plan == PLANS[1] else 0.04, fails=fails, fails_at=3)

    machine = FakeMachine(behave=behave, noise=NoiseModel("quiet"))
    race, workers = race_of(machine, 2)
    race.expect([(plan, TimeLimits()) for plan in (PLANS[0], PLANS[2])], Noise())
    found = [race.screen(PLANS[number], Noise()) for number in (1, 0, 2)]
    assert [seen.estimate.value for seen in found[:2]] == pytest.approx([2.0, 1.0])
    assert [seen.failure is not None for seen in found] == [False, False, True]
    race.close()
    assert workers.closed == 1


def test_a_lost_machine_is_told_when_its_look_is_asked_for_and_the_look_is_measured_again() -> None:
    machine = FakeMachine(noise=NoiseModel("quiet"))
    race, _ = race_of(machine, 2)
    starts = [race._races[number]._start for number in (0, 1)]
    lost: list[int] = []

    def start(plan: Plan, label: str) -> FakeArm:
        if plan == PLANS[0] and not lost:
            lost.append(1)
            raise NodeLost("gone")
        return starts[0](plan, label)  # type: ignore[return-value]

    race._races[0]._start = race._races[1]._start = start
    race.expect([(plan, TimeLimits()) for plan in PLANS[:2]], Noise())
    with pytest.raises(NodeLost):
        race.screen(PLANS[0], Noise())
    assert race.screen(PLANS[0], Noise()).estimate is not None
    assert race.screen(PLANS[1], Noise()).estimate is not None
    race.close()
    assert not machine.alive


class SharedArm(FakeArm):
    """An arm that is slower while others train beside it."""

    def block(self, seconds: float, min_steps: int, ramp_seconds: float, cycle: int = 1) -> Block:
        machine: Any = self._machine
        beside = sum(not arm.frozen for arm in machine.alive) > 1
        found = super().block(seconds, min_steps, ramp_seconds, cycle)
        return found.model_copy(update={"seconds": found.seconds * (machine.cost if beside else 1.0)})


class SharedMachine(FakeMachine):
    cost = 1.0

    def start(self, plan: Plan, label: str) -> FakeArm:
        self.started.append((plan, label))
        return SharedArm(self, plan, label)


def control_parallel(cost: float, floor: float | None = 0.08, **machine: Any) -> Sharing:
    made = SharedMachine(noise=NoiseModel("normal"), **machine)
    made.cost = cost
    workers = SimulatedWorkers(made.clock, 2)
    neighbours = Neighbours([Runner(made), Runner(made)], Plan(), Rule(max_seconds=60), workers)
    rng = np.random.default_rng(0)
    found = neighbours.sharing(["one", "two"], floor, clock=made.clock, deadline=600.0, rng=rng)
    neighbours.close()
    assert not made.alive
    return found


@pytest.mark.parametrize(
    ("cost", "asked", "allowed", "reason"),
    [
        (1.0, {}, True, "within the noise floor of 8.0%"),
        (1.25, {}, False, "more than the noise floor of 8.0%"),
        (1.0, {"floor": None}, False, "the noise floor was not measured"),
        (1.0, {"floor": 0.001}, False, "not known well enough"),
        (1.0, {"memory_limit_bytes": 1}, False, "could not run at the same time: out_of_memory"),
    ],
)
def test_neighbours_may_cost_no_more_than_the_floor_and_what_is_not_known_is_refused(
    cost: float, asked: dict[str, Any], allowed: bool, reason: str
) -> None:
    found = control_parallel(cost, **asked)
    assert found.allowed is allowed
    assert reason in found.reason
    for each in filter(None, found.beside):
        assert each.low <= 1 / cost <= each.high
        assert each.value == pytest.approx(1 / cost, rel=0.1)


FACTORS = {f"change_{number}": (1.3 if number == 5 else 1.0) for number in range(8)}


def world(tmp_path: Path, places: int, cost: float = 1.0, resume: bool = False) -> World:
    made = World(
        tmp_path / "run", *(strategy(name) for name in FACTORS), speed=product(FACTORS), budget=900.0, resume=resume
    )
    runner: Any = made.runner
    if places > 1:
        old = runner.machine
        machine = SharedMachine(old.behave, old.noise, seed=3, clock=old.clock)
        machine.cost = cost
        runner.machine, runner.start = machine, machine.start
        placed = [copy.copy(runner) for _ in range(places)]
        for number, each in enumerate(placed):
            each.place = f"device {number}"
        runner.parallel, runner.placed = places, lambda: placed
        runner.workers = lambda: SimulatedWorkers(old.clock, places)
    return made


def test_the_whole_loop_finds_the_same_in_less_time_and_says_what_sharing_costs(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "four").mkdir()
    alone, together = world(tmp_path / "one", 1), world(tmp_path / "four", 4)
    outcomes = [each.go() for each in (alone, together)]
    assert [outcome.best.plan.names() for outcome in outcomes] == [("change_5",)] * 2
    assert verdicts(outcomes[0]).keys() == verdicts(outcomes[1]).keys()
    (first, *_) = outcomes[1].state.sharing.values()
    assert first.allowed
    assert len(first.places) == 4
    first_looks = [[took.seconds for took in each.run.took if took.kind == "look"][:8] for each in (alone, together)]
    assert sum(first_looks[1]) < 0.4 * sum(first_looks[0])
    assert not together.runner.machine.alive, "processes were left behind"


@pytest.mark.slow
def test_a_run_that_was_killed_amid_its_looks_is_resumed_to_the_same_end(tmp_path: Path) -> None:
    """What was measured ahead and not yet asked for is no step: it is measured again."""
    first = world(tmp_path, 4).go()
    journal = tmp_path / "run" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    ended = [number for number, line in enumerate(lines) if b'"kind":"look"' in line]
    journal.write_bytes(b"".join(lines[: ended[5] + 1]))
    again = world(tmp_path, 4, resume=True)
    outcome = again.go()
    assert outcome.best.plan == first.best.plan
    control = [next(iter(each.state.sharing.values())) for each in (first, outcome)]
    assert control[0] == control[1], "it is read back, and not measured again"
    assert not again.runner.machine.alive
