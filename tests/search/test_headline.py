"""The headline and the seconds beside it are of one run: to a target, or over the planned run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoopt.records import Plan, Verdict
from autoopt.search.accept.headline import goal_of, timed_pairs
from autoopt.search.accept.interleaved import TrainedPair
from autoopt.testing.fakes import Behaviour
from made_up import OBJECTIVE, run
from simulated import STEPS, World, product, strategy


@pytest.mark.parametrize(("fixed", "over_planned"), [(4.0, False), (40.0, True)])
def test_the_figures_of_the_first_screen_are_of_one_run(tmp_path: Path, fixed: float, over_planned: bool) -> None:
    """Costs paid once weigh more on the way to a lower target than in the planned run: the figures say which."""

    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        return replace(behaviour, startup_seconds=2.0 + fixed * bool(plan.changes))

    world = World(tmp_path, strategy("good"), speed=product({"good": 2.0}), behave=behave, reach=lambda plan: None)
    world.runner.facts = world.runner.facts.model_copy(update={"max_steps": 20 * STEPS})
    outcome = world.go()
    assert outcome.best.plan.names() == ("good",)
    before, after = outcome.baseline.time_to_target_seconds, outcome.best.time_to_target_seconds
    ratio, planned = outcome.speedup.time_to_target, outcome.speedup.planned_steps
    assert before.value / after.value == pytest.approx(ratio.value, rel=0.02)
    assert planned == (20 * STEPS if over_planned else None)
    assert ("over the planned run of" in outcome.speedup.detail) == (not over_planned)
    kept = next(trial for trial in outcome.state.trials if trial.verdict is Verdict.KEPT)
    assert kept.planned_steps == 20 * STEPS
    assert kept.time_to_target.value > 1.5


def test_a_target_that_was_met_earlier_by_chance_is_no_speed() -> None:
    """Steps of 10 ms on both sides, and the plan met the target after 60 of them where the baseline took 100."""
    pair = TrainedPair(baseline=run(0, to=100.0, fixed_seconds=0.0), best=run(0, to=60.0, fixed_seconds=0.0))
    ((before, after),) = timed_pairs([pair], OBJECTIVE, otherwise=False)
    assert before == pytest.approx(after)
    ((before, after),) = timed_pairs([pair], OBJECTIVE, otherwise=True)
    assert before > 1.3 * after


def test_without_a_target_a_training_that_went_on_counts_as_far_as_the_other_went() -> None:
    """A first training whose baseline was cut off by its seconds, where the faster plan came further."""
    objective = OBJECTIVE.model_copy(update={"target": None})
    pair = TrainedPair(
        baseline=run(0, to=None, steps=480, training_seconds=19.2, fixed_seconds=0.0, evaluation_seconds=0.0),
        best=run(0, to=None, steps=600, training_seconds=12.0, fixed_seconds=0.0, evaluation_seconds=0.0),
    )
    ((before, after),) = timed_pairs([pair], objective, otherwise=False)
    assert before / after == pytest.approx(2.0)
    assert timed_pairs([pair], objective, otherwise=True) == []
    assert goal_of(objective, [pair]) == "the same number of steps"
