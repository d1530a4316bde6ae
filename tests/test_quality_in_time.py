"""Quality on a short budget, in simulated time: what is proved, trained or given up in the time there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autoopt.records import JsonDict, Plan, Verdict
from autoopt.setup import Setup
from autoopt.strategy import Risk, Strategy
from autoopt.testing.fakes import Behaviour
from simulated import World, product, strategy, verdicts


def test_no_proof_is_spent_on_a_quality_that_cannot_be_decided_in_time(tmp_path: Path) -> None:
    """The faster of two, but only trainings tell of its quality: the other one is proved and kept."""

    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        return replace(behaviour, quality="undecided" if "doubtful" in plan.names() else "identical")

    speeds = {"doubtful": 1.7, "sure": 1.4}
    strategies = [strategy("doubtful", risk=Risk.NUMERIC), strategy("sure")]
    world = World(tmp_path, *strategies, speed=product(speeds), behave=behave, budget=150.0)
    outcome = world.go()
    assert outcome.best.plan.names() == ("sure",)
    assert verdicts(outcome)["doubtful"][0] is Verdict.INCONCLUSIVE
    proved = [comparison.candidate.plan.names() for comparison in outcome.state.comparisons.values()]
    assert proved == [("sure",)]


@pytest.mark.parametrize("budget", [240.0, 3000.0])
def test_what_only_trainings_can_tell_is_trained_in_turns_once_it_was_proved_faster(
    tmp_path: Path, budget: float
) -> None:
    """Those trainings are the verification, too: from two minutes of them a plan of 2.2x comes out checked."""

    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        return replace(behaviour, quality="undecided" if "doubtful" in plan.names() else "identical")

    strategies = [strategy("doubtful", risk=Risk.NUMERIC), strategy("sure")]
    world = World(tmp_path, *strategies, speed=product({"doubtful": 1.7, "sure": 1.3}), behave=behave, budget=budget)
    outcome = world.go()
    assert set(outcome.best.plan.names()) == {"doubtful", "sure"}
    assert outcome.quality is not None
    assert outcome.quality.level == "trained"
    assert outcome.speedup.end_to_end_verified
    trained = [seed for plan, seed in world.runner.trained if plan.changes]
    assert len(trained) == len(set(trained)), "no seed is trained twice"
    assert world.clock() <= budget


def test_a_plan_that_was_trained_in_vain_gives_way_to_what_is_sure(tmp_path: Path) -> None:
    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        return replace(behaviour, quality="undecided" if "doubtful" in plan.names() else "identical")

    world = World(
        tmp_path,
        strategy("doubtful", risk=Risk.NUMERIC),
        strategy("sure"),
        speed=product({"doubtful": 1.7, "sure": 1.3}),
        behave=behave,
        reach=lambda plan: 900 if "doubtful" in plan.names() else 600,
        budget=600.0,
    )
    outcome = world.go()
    assert outcome.best.plan.names() == ("sure",)
    assert outcome.speedup.end_to_end_verified
    assert Verdict.QUALITY_LOST in verdicts(outcome)["doubtful"]
    tried = {plan.names() for plan, _ in world.runner.trained}
    assert tried == {(), ("doubtful", "sure"), ("sure",)}, "the part that is in doubt is not trained alone as well"


@pytest.mark.parametrize(("speed", "verdict"), [(1.08, Verdict.NO_GAIN), (1.6, Verdict.KEPT)])
def test_what_rounding_costs_is_taken_off_before_anything_is_proved(
    tmp_path: Path, speed: float, verdict: Verdict
) -> None:
    """Noise of 0.4 of the spread costs up to 16 % more steps."""

    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        return replace(behaviour, quality="noisy" if "rounding" in plan.names() else "identical", process_sd=0.002)

    strategies = [strategy("rounding", risk=Risk.NUMERIC)]
    world = World(tmp_path, *strategies, speed=product({"rounding": speed}), behave=behave, budget=1200.0)
    outcome = world.go()
    assert verdicts(outcome)["rounding"] == [verdict]
    assert bool(outcome.state.comparisons) is (verdict is Verdict.KEPT), "no pair of processes is spent on the other"
    trial = next(trial for trial in outcome.state.trials if trial.strategy == "rounding")
    assert trial.quality is not None
    assert trial.quality.step_penalty is not None
    assert trial.quality.step_penalty.value == pytest.approx(1.16, abs=0.03)


class OtherSamples(Strategy):
    """Makes samples otherwise: nearly the same pixels, by fewer of them."""

    name, risk, stages = "other_samples", Risk.NUMERIC, ("preparation",)

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_dataset(list)


@pytest.mark.parametrize("budget", [120.0, 420.0])
def test_samples_that_are_drawn_at_random_and_made_otherwise_are_looked_at_where_they_can_be_trained(
    tmp_path: Path, budget: float
) -> None:
    """Gradients of no two batches can be compared then. What a look would show, two minutes could not keep."""

    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        return replace(behaviour, quality="undecided" if "other_samples" in plan.names() else "equivalent")

    strategies = [OtherSamples(), strategy("sure")]
    speeds = {"other_samples": 1.7, "sure": 1.3}
    world = World(tmp_path, *strategies, speed=product(speeds), behave=behave, budget=budget)
    drawn = world.runner.facts.dataset.model_copy(update={"deterministic": False})
    world.runner.facts = world.runner.facts.model_copy(update={"dataset": drawn})
    outcome = world.go()
    if budget < 240.0:
        (trial,) = [trial for trial in outcome.state.all_trials() if trial.strategy == "other_samples"]
        assert trial.verdict is Verdict.NOT_TRIED
        assert "only trainings tell" in trial.reason
        assert "about --budget 7m would do" in trial.reason  # 420 seconds do, below
        assert not any("other_samples" in look.candidate.plan.names() for look in outcome.state.looks)
        assert outcome.best.plan.names() == ("sure",)
    else:
        assert set(outcome.best.plan.names()) == {"other_samples", "sure"}


def test_a_rival_that_only_trainings_tell_of_keeps_nothing_sure_out_of_the_stack(tmp_path: Path) -> None:
    """It is somewhat faster than the sure way to make samples, which would be left out of the stack for it."""

    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        return replace(behaviour, quality="undecided" if "other_samples" in plan.names() else "equivalent")

    strategies = [OtherSamples(), strategy("feed", stages=("preparation",)), strategy("compute")]
    speeds = {"other_samples": 1.3, "feed": 1.2, "compute": 1.4}
    world = World(tmp_path, *strategies, speed=product(speeds), behave=behave, budget=420.0)
    drawn = world.runner.facts.dataset.model_copy(update={"deterministic": False})
    world.runner.facts = world.runner.facts.model_copy(update={"dataset": drawn})
    outcome = world.go()
    assert set(outcome.best.plan.names()) >= {"feed", "compute"}
    assert any("other_samples" in look.candidate.plan.names() for look in outcome.state.looks)


def trains_otherwise(name: str) -> Callable[[Plan, Behaviour], Behaviour]:
    """A machine on which every plan with that change trains otherwise."""
    return lambda plan, behaviour: replace(behaviour, quality="another" if name in plan.names() else "identical")


def test_a_stack_gives_up_what_certainly_trains_otherwise(tmp_path: Path) -> None:
    behave = trains_otherwise("cheat")
    speeds = {"cheat": 1.7, "sure": 1.4, "also": 1.35}
    strategies = [strategy("cheat", risk=Risk.NUMERIC), strategy("sure"), strategy("also")]
    world = World(tmp_path, *strategies, speed=product(speeds), behave=behave, budget=600.0)
    outcome = world.go()
    assert set(outcome.best.plan.names()) == {"sure", "also"}
    assert Verdict.KEPT not in verdicts(outcome)["cheat"]


def test_a_stack_gives_up_an_exact_change_that_is_none(tmp_path: Path) -> None:
    behave = trains_otherwise("claims")
    speeds = {"claims": 1.5, "sure": 1.4, "also": 1.35}
    strategies = [strategy("claims"), strategy("sure", risk=Risk.NUMERIC), strategy("also", risk=Risk.NUMERIC)]
    world = World(tmp_path, *strategies, speed=product(speeds), behave=behave, budget=600.0)
    outcome = world.go()
    assert set(outcome.best.plan.names()) == {"sure", "also"}
    assert Verdict.KEPT not in verdicts(outcome)["claims"]


def test_once_it_is_known_what_trains_otherwise_the_others_are_asked_as_a_whole(tmp_path: Path) -> None:
    behave = trains_otherwise("cheat")
    speeds = {"cheat": 1.7, "one": 1.4, "two": 1.35, "three": 1.3, "four": 1.25}
    others = [strategy(name) for name in speeds if name != "cheat"]
    world = World(
        tmp_path, strategy("cheat", risk=Risk.NUMERIC), *others, speed=product(speeds), behave=behave, budget=900.0
    )
    outcome = world.go()
    assert set(outcome.best.plan.names()) == {"one", "two", "three", "four"}
    probed = [plan for plan in world.runner.probed if "cheat" not in plan.names() and plan.changes]
    assert not any(len(plan.changes) == 1 for plan in probed)
