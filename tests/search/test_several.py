"""One plan against several others in simulated time: truth, failures, memory, and that nothing is left alive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from autoopt.errors import TrialFailed
from autoopt.records import Change, Plan
from autoopt.search.compare.arena import Source
from autoopt.search.compare.comparison import Comparison, Decision, Rule, SideName
from autoopt.search.compare.contest import Contest, Several
from autoopt.search.compare.noise import control
from autoopt.testing import Behaviour, FakeMachine, NoiseModel

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
        assert each.estimate is not None
        assert each.estimate.low <= times <= each.estimate.high
        assert each.incumbent.plan == SHARED
        assert each.estimate.n == len(each.pairs)


def test_the_shared_plan_may_be_the_candidate_of_each() -> None:
    fake = machine({"less": faster(0.7), "more": faster(1.5)}, kind="normal")
    less, more = one_by_one(run(fake, ["less", "more"], "candidate"))
    assert (less.decision, more.decision) == (Decision.ACCEPT, Decision.HARMFUL)
    assert less.estimate is not None
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


def no_freezing(fake: FakeMachine) -> None:
    fake.can_freeze = False


def too_many(fake: FakeMachine) -> None:
    fake.memory_limit_bytes = 2 * Behaviour().memory_bytes


def one_at_a_time(fake: FakeMachine) -> None:
    fake.exclusive = True


def pressed(fake: FakeMachine) -> None:
    fake.retries_beyond = 2 * Behaviour().memory_bytes


@pytest.mark.parametrize("lacks", [no_freezing, too_many, one_at_a_time, pressed])
def test_what_does_not_fit_together_is_left_to_comparisons_of_two(lacks: Callable[[FakeMachine], None]) -> None:
    fake = machine({"fast": faster(1.6), "slow": faster(0.6)})
    lacks(fake)
    assert decisions(run(fake, ["fast", "slow"])) == [None, None]


def test_time_that_is_up_ends_all_of_them_with_what_is_known() -> None:
    fake = machine({"same": faster(1.0), "alike": faster(1.005)})
    found = one_by_one(run(fake, ["same", "alike"], rule=Rule(max_seconds=30)))
    assert all(each.decision is Decision.INCONCLUSIVE for each in found)
    assert all(each.estimate is not None for each in found), "its starts were paid for"
    none = one_by_one(run(fake, ["same", "alike"], deadline=fake.clock.now))
    assert [each.reason for each in none] == ["no time for a single comparison"] * 2


def test_seconds_are_shared_and_add_up_to_what_passed() -> None:
    fake = machine({"fast": faster(1.6), "slow": faster(0.6)}, kind="normal")
    found = one_by_one(run(fake, ["fast", "slow"]))
    assert sum(each.seconds for each in found) == pytest.approx(fake.clock.now)


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
