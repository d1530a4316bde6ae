"""The search on a script: its first process, its metric, its arm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autoopt.errors import ScriptEnded, TrialFailed
from autoopt.events import NoiseMeasured, Predicted
from autoopt.records import (
    CurvePoint,
    Objective,
    Percentiles,
    Plan,
    RunParts,
    Site,
    Sites,
)
from autoopt.records.facts import WorkloadFacts
from autoopt.records.messages import Block, Startup
from autoopt.search import first_training
from autoopt.search.budget_allocation import BudgetAllocation
from autoopt.search.compare.arm import SETTLING_STEPS, SWITCHED_BLOCK, ScriptArm
from autoopt.search.first_training import begin
from autoopt.testing import Behaviour
from autoopt.testing.fakes import fake_facts
from simulated import World, product, strategy, training_run

EVALUATION = Site(file="train.py", line=9, end_line=9, function="main", kind="evaluation", call="Net", name="Net")
LOSS = "val loss ([0-9.]+)"


class Begun:
    """The beginning of a run of a script whose steps take 0.4 s; ``whole``: its first trainings."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        budget: float,
        epoch: int | None,
        *seen: Site,
        metric: str | None = None,
        step: float = 0.4,
    ) -> None:
        self.whole, self.notes = 0, list[str]()
        monkeypatch.setattr(first_training, "train_first", self._train_first)
        side = SimpleNamespace(step_seconds=Percentiles(p50=step, p95=step, p99=step), peak_memory_bytes=None)
        facts: WorkloadFacts = fake_facts(Behaviour()).model_copy(update={"steps_per_epoch": epoch})
        state: Any = SimpleNamespace(
            trained=None,
            aa=SimpleNamespace(side=side, start_seconds=2.0, pair_seconds=8.0),
            sites=Sites(command=("python", "train.py"), cwd="/", sites=seen),
            objective=Objective(
                metric=metric, mode="min", target=None, target_source="baseline", tolerance=0.01, min_gain=0.01
            ),
            facts=facts,
            planned_steps=None,
            planned_seconds=None,
            baseline=Plan(),
            memory_limit_bytes=None,
        )
        self.context: Any = SimpleNamespace(
            allocation=BudgetAllocation(budget=budget),
            now=lambda: 20.0,
            run_seconds=lambda: None,
            note=lambda *texts: self.notes.extend(texts),
            warn=lambda *texts: None,
            seed=0,
            state=state,
        )
        begin(self.context)

    def _train_first(self, context: Any) -> None:
        self.whole += 1

    @property
    def waits(self) -> bool:
        return not self.whole and not self.context.allocation.trained


@pytest.mark.parametrize(
    ("epoch", "seen", "wait"),
    [(5000, (), True), (20, (), False), (None, (), False), (5000, (EVALUATION,), False)],
    ids=["hours to an epoch's end", "an epoch ends in it", "no epoch is known", "it was seen to evaluate"],
)
def test_a_training_that_shows_no_metric_waits(
    monkeypatch: pytest.MonkeyPatch, epoch: int | None, seen: tuple[Site, ...], wait: bool
) -> None:
    begun = Begun(monkeypatch, 240.0, epoch, *seen)
    assert begun.waits is wait
    assert Begun(monkeypatch, 240.0, epoch, *seen, metric="val loss").waits
    assert not Begun(monkeypatch, 7200.0, epoch, *seen).waits


@pytest.mark.parametrize("budget", [90.0, 300.0])
def test_a_metric_is_looked_for_where_the_budget_holds_a_training_that_is_judged_by_it(
    monkeypatch: pytest.MonkeyPatch, budget: float
) -> None:
    """Where the watched run has not named it."""
    begun = Begun(monkeypatch, budget, 20, EVALUATION, step=0.04)
    assert bool(begun.whole) is (budget > 90.0)
    assert (first_training.NOT_LOOKED_FOR in begun.notes) is (budget == 90.0)


# An arm of a script that comes to its end: it is run again, and warmed up no longer than leaves steps to measure.

STARTUP = Startup(build_seconds=0, setup_seconds=0, warmup_seconds=1, warmup_steps=5, fixed_seconds=1.0).model_dump()


class Short:
    """A process whose script trains for some seconds and has come to its end then."""

    def __init__(self, clock: list[float], lasts: float) -> None:
        self.clock, self.lasts = clock, lasts

    def call(self, task: str, **arguments: Any) -> Any:
        seconds = arguments["max_seconds"]
        self.clock[0] += min(seconds, self.lasts)
        if seconds >= self.lasts:
            raise ScriptEnded(320)
        return STARTUP

    def close(self) -> None: ...


def arm_of(made: Callable[[], Any], **known: Any) -> tuple[ScriptArm, list[Any]]:
    """An arm of such processes, and those that it has launched."""
    launched: list[Any] = []

    def launch() -> Any:
        launched.append(made())
        return launched[-1]

    return ScriptArm(launch, Plan(), **known), launched


@pytest.mark.parametrize(("lasts", "starts"), [(60.0, 1), (2.0, 2), (0.0, 2)])
def test_a_short_script_is_warmed_up_for_half_as_long_as_it_lasts(lasts: float, starts: int) -> None:
    clock = [0.0]
    arm, launched = arm_of(lambda: Short(clock, lasts), timer=lambda: clock[0])
    if lasts:
        assert arm.warm_up(30.0) == Startup.model_validate(STARTUP)
    else:
        with pytest.raises(TrialFailed, match="give it more to train"):
            arm.warm_up(30.0)
    assert len(launched) == starts


class Counted:
    """A process whose script has so many steps, of which warming up takes ten."""

    def __init__(self, steps: int) -> None:
        self.left, self.blocks = steps, list[int]()

    def call(self, task: str, **arguments: Any) -> Any:
        steps = arguments.get("min_steps", 10)
        self.left -= steps
        if self.left < 0:
            raise ScriptEnded(steps)
        if task != SWITCHED_BLOCK:
            return STARTUP
        self.blocks.append(steps)
        return Block(steps=steps, samples=steps, seconds=1.0, losses=(), step_seconds=()).model_dump()

    def close(self) -> None: ...


def test_a_process_that_switches_is_run_again_where_its_script_ends_and_settles_anew() -> None:
    arm, launched = arm_of(lambda: Counted(24))
    arm.warm_up(10.0)
    blocks = [arm.switched_block(Plan(), 0.1, 4, 0.0) for _ in range(4)]
    assert [block.steps for block in blocks] == [4, 4, 4, 4]
    assert [process.blocks for process in launched] == [[SETTLING_STEPS, 4, 4], [SETTLING_STEPS, 4, 4]]


def test_a_script_whose_run_holds_no_block_is_not_run_again_and_again() -> None:
    """Fifty runs of it took two minutes of four, beyond the budget's end."""
    arm, launched = arm_of(lambda: Counted(12))
    arm.warm_up(10.0)
    with pytest.raises(TrialFailed, match="give it more to train"):
        arm.switched_block(Plan(), 0.1, 4, 0.0)
    assert len(launched) == 2


# What strategies are predicted to bring a script is told before anything of it is compared.

SITES_DIAGNOSIS = Sites(command=("python", "train.py"), cwd="/", step_seconds=0.05)


def world(folder: Path, budget: float, sites: Sites | None = SITES_DIAGNOSIS) -> World:
    found = World(folder, strategy("a"), strategy("b"), speed=product({"a": 1.4, "b": 1.1}), budget=budget)
    runner: Any = found.runner
    runner.watched = lambda ask=None, wait=0.0: sites
    return found


def profiles(of: World) -> list[str]:
    """The kinds of steps in which it was measured from the inside, the first two."""
    return [step.kind for step in of.run.took if step.kind in ("diagnose", "examine")][:2]


@pytest.mark.parametrize("budget", [240.0, 3000.0])
def test_predictions_of_a_script_come_before_its_first_comparison(tmp_path: Path, budget: float) -> None:
    run = world(tmp_path / "run", budget)
    run.go()
    kinds = [type(event) for event in run.events]
    assert kinds.index(Predicted) < kinds.index(NoiseMeasured)
    told = next(event for event in run.events if isinstance(event, Predicted))
    assert {each.strategy for each in told.predictions} == {"a", "b"}


def test_on_a_short_budget_that_profile_is_the_first_round_s(tmp_path: Path) -> None:
    short, long = world(tmp_path / "short", 240.0), world(tmp_path / "long", 3000.0)
    build = world(tmp_path / "build", 240.0, sites=None)
    for run in (short, long, build):
        run.go()
    assert profiles(short)[0] == "diagnose"
    assert profiles(long) == ["diagnose", "examine"]
    assert profiles(build)[0] == "examine", "a function is profiled in its round"
    examined = [step for step in short.run.took if step.kind == "examine"]
    assert len(examined) == len(short.loop.state.rounds) - 1


@pytest.mark.parametrize(
    ("steps", "seconds", "every", "each"),
    [
        ((1, 501, 1001), 2.7, 500.0, 0.9),
        ((501,), 0.9, 24.0, 2.5),  # one shows no distance
        ((1, 501), 0.0, 24.0, 2.5),  # a build() whose evaluations were not timed
    ],
)
def test_evaluations_are_as_often_as_the_first_training_has_seen_them(
    steps: tuple[int, ...], seconds: float, every: float, each: float
) -> None:
    """25 steps were watched, with an evaluation after the first: one after each 24 was 74 % of the run."""
    parts = RunParts(steps=2000, evaluation_seconds=2.5, evaluate_every=24.0)
    points = tuple(CurvePoint(step=step, seconds=0.01 * step, metric=0.5) for step in steps)
    run = training_run(Behaviour(), 0, points, 1400, reached=False)
    seen = first_training.evaluated_as(parts, run.model_copy(update={"evaluation_seconds": seconds}))
    assert (seen.evaluate_every, seen.evaluation_seconds) == (every, pytest.approx(each))
