"""The whole loop in simulated time: a row for speeds, quality and budget, and the plan that comes out of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from autoopt.errors import TrialFailed
from autoopt.records import Change, JsonDict, Plan, StopReason, Verdict
from autoopt.search.accept.evidence import FEWEST_SEEDS
from autoopt.search.outcome import Outcome
from autoopt.search.verify import FRESH_SEEDS
from autoopt.setup import Setup
from autoopt.strategy import Applies, Case, Risk, Strategy
from autoopt.testing.fakes import Behaviour, FakeArm, NoiseModel
from benchmarks.search.cases import CASES, SimulatedCase
from benchmarks.search.minutes import simulated
from simulated import World, product, strategy, verdicts

Checked = Callable[[World, Outcome], bool]


@dataclass(frozen=True)
class Row:
    """Strategies by their speeds, and what is found.

    Args:
        speeds: of each strategy alone; they multiply where ``speed`` does not say otherwise.
        best: strategies of the plan that is found.
        numeric, training: those of these risk classes; the others are exact.
        quality: of every plan that holds the change, ``usual`` of the others; ``fails``, ``loss``: likewise.
        parts: further attributes of a strategy.
        reach: steps to the target.
        found: verdicts of a strategy that must be among its own; ``never``: that must not be.
        then: what holds besides.
    """

    speeds: dict[str, float]
    best: set[str]
    budget: float = 3000.0
    numeric: tuple[str, ...] = ()
    training: tuple[str, ...] = ()
    quality: dict[str, str] = field(default_factory=dict)
    usual: str = "identical"
    fails: dict[str, TrialFailed] = field(default_factory=dict)
    fails_at: int = 15
    loss: dict[str, Callable[[int], float | None]] = field(default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    speed: Callable[[Plan], float] | None = None
    reach: Callable[[Plan], int | None] = lambda plan: 600
    found: dict[str, Verdict] = field(default_factory=dict)
    never: dict[str, Verdict] = field(default_factory=dict)
    obeys_limits: bool = False
    drawn: bool = False
    then: Checked = lambda world, outcome: True

    def behave(self, plan: Plan, known: Behaviour) -> Behaviour:
        changed: dict[str, Any] = {}
        for name in plan.names():
            if name in self.quality:
                changed["quality"] = self.quality[name]
            if name in self.loss:
                changed["loss"] = self.loss[name]
            if name in self.fails:
                changed |= {"fails": self.fails[name], "fails_at": self.fails_at}
        return replace(known, **{**({"quality": self.usual} if self.quality else {}), **changed})

    def world(self, folder: Path) -> World:
        risks = {**dict.fromkeys(self.numeric, Risk.NUMERIC), **dict.fromkeys(self.training, Risk.TRAINING)}
        made = [strategy(name, risk=risks.get(name, Risk.EXACT), **self.parts.get(name, {})) for name in self.speeds]
        world = World(
            folder, *made, speed=self.speed or product(self.speeds), behave=self.behave, reach=self.reach,
            budget=self.budget,
        )  # fmt: skip
        world.runner.obeys_limits = self.obeys_limits
        if self.drawn:
            dataset = world.runner.facts.dataset.model_copy(update={"deterministic": False})
            world.runner.facts = world.runner.facts.model_copy(update={"dataset": dataset})
        return world


def useless(count: int, first: str = "useless") -> dict[str, float]:
    return {f"{first}_{number}": 1.0 for number in range(count)}


def together(speeds: dict[tuple[str, ...], float]) -> Callable[[Plan], float]:
    return lambda plan: speeds[tuple(sorted(plan.names()))]


def beside(*names: str) -> dict[str, Any]:
    return {"companions": lambda self, case, setting: [Change(strategy=name) for name in names]}


def after(name: str) -> dict[str, Any]:
    return {"applies": lambda self, case: Applies.yes() if name in case.plan.names() else Applies.no(f"needs {name}")}


def unless(name: str) -> dict[str, Any]:
    return {"applies": lambda self, case: Applies.no("shorter already") if name in case.plan.names() else Applies.yes()}


def other_samples(self: Strategy, setup: Setup, setting: JsonDict) -> Setup:
    return setup.with_dataset(list)


def fed(plan: Plan) -> float:
    """Samples take a fifth of a step: to feed it otherwise shows little, until computing takes half."""
    computing, making = (0.7 if "compute" in plan.names() else 1.5), (0.2 if "feed" in plan.names() else 0.4)
    return 1.9 / (computing + making)


def kept(outcome: Outcome) -> list[Any]:
    return [trial for trial in outcome.state.trials if trial.verdict is Verdict.KEPT]


def compared(outcome: Outcome) -> list[tuple[str, ...]]:
    return [comparison.candidate.plan.names() for comparison in outcome.state.comparisons.values()]


def reason(outcome: Outcome, name: str) -> str:
    return next(trial.reason for trial in outcome.state.all_trials() if trial.strategy == name)


def trained(world: World) -> list[tuple[tuple[str, ...], int]]:
    return [(plan.names(), seed) for plan, seed in world.runner.trained]


SLOW_LOSS: Callable[[int], float] = lambda step: 3.0 / (1.0 + 0.001 * step)  # noqa: E731
OUTLASTS = TrialFailed("timeout", "no answer within 20 s (warm_up)")
DRAWN: dict[str, Any] = {
    "numeric": ("other",), "quality": {"other": "undecided"}, "usual": "equivalent", "drawn": True,
    "parts": {"other": {"apply": other_samples, "stages": ("preparation",)}, "feed": {"stages": ("preparation",)}},
}  # fmt: skip
"""Samples that are drawn at random and made otherwise: gradients of no two batches can be compared then."""

ROWS = {
    "nothing helps": Row({"useless": 1.0}, set(), 600.0, then=lambda world, outcome: outcome.best == outcome.baseline
        and outcome.speedup.throughput == outcome.state.noise.aa_ratio),
    "companions that win only together": Row({"left": 1.02, "right": 0.9}, {"left", "right"},
        speed=together({(): 1.0, ("left",): 1.02, ("right",): 0.9, ("left", "right"): 1.7}),
        parts={"left": beside("right")}),
    "a companion that brings nothing": Row({"carrier": 1.6, "companion": 1.0}, {"carrier"},
        parts={"carrier": beside("companion")}),
    "what no longer pays is dropped by the ablation": Row({"good": 1.3, "better": 1.6}, {"better"},
        speed=together({(): 1.0, ("good",): 1.3, ("better",): 2.0, ("better", "good"): 1.6}),
        parts={"better": after("good")},
        then=lambda world, outcome: any("good was dropped" in text for text in outcome.state.notes)),
    "what another would not be tried beside is not stacked with it": Row({"amp": 1.6, "products": 1.4}, {"amp"}, 600.0,
        numeric=("amp", "products"), parts={"products": unless("amp")},
        speed=lambda plan: 1.6 if "amp" in plan.names() else 1.4 if plan.changes else 1.0,
        then=lambda world, outcome: not any(len(plan.changes) > 1 for plan, _ in world.runner.machine.started)),
    # failures
    **{f"a trial that fails: {kind}": Row({"broken": 2.0, "good": 1.5}, {"good"}, found={"broken": Verdict.FAILED},
        fails={"broken": TrialFailed(kind, "broken on purpose")},
        then=lambda world, outcome, kind=kind: reason(outcome, "broken").startswith(f"{kind}:"))
       for kind in TrialFailed.KINDS},
    "a loss that is not finite ends a trial at once": Row({"nan": 2.0}, set(), loss={"nan": lambda step: None},
        found={"nan": Verdict.FAILED},
        then=lambda world, outcome: reason(outcome, "nan") == "not_finite: the loss of step 0"
        and all(trial.seconds < 10.0 for trial in outcome.state.trials)),
    "what outlasts its look has no look in another setting": Row({"slow": 1.5, "sure": 1.4}, {"sure"}, 240.0,
        fails={"slow": OUTLASTS}, fails_at=0, parts={"slow": {"settings": ({"mode": "one"}, {"mode": "two"})}},
        then=lambda world, outcome: verdicts(outcome)["slow"] == [Verdict.FAILED]),
    "time that cheap trials leave goes to what promised less": Row({**useless(9, "broken"), "good": 1.6}, {"good"},
        260.0, fails=dict.fromkeys(useless(9, "broken"), TrialFailed("error", "broken on purpose")), fails_at=0,
        then=lambda world, outcome: all(verdicts(outcome)[name] == [Verdict.FAILED] for name in useless(9, "broken"))),
    # trainings
    "other losses lose quality however fast": Row({"cheat": 3.0}, set(), loss={"cheat": SLOW_LOSS},
        found={"cheat": Verdict.QUALITY_LOST}),
    "a change of training is judged by time to target": Row({"batch": 1.4}, set(), training=("batch",),
        reach=lambda plan: 1000 if plan.changes else 500, never={"batch": Verdict.KEPT},
        then=lambda world, outcome: "throughput 1." in reason(outcome, "batch")
        and "time to target 0." in reason(outcome, "batch")),
    "a change of training is not refused by a guess at its trainings": Row({"schedule": 1.6}, {"schedule"}, 180.0,
        training=("schedule",), reach=lambda plan: 100,
        then=lambda world, outcome: {1, 2} <= {seed for names, seed in trained(world) if names}
        and any(seed >= FRESH_SEEDS for names, seed in trained(world) if names)),
    # short budgets
    "a budget that holds nothing": Row({"good": 1.5}, set(), 25.0,
        then=lambda world, outcome: outcome.stop.reason is StopReason.BUDGET),
    "ninety seconds are enough for a large gain": Row({"large": 1.8, **useless(8)}, {"large"}, 90.0, obeys_limits=True),
    "a baseline that nothing beats is trained": Row({"slow": 0.7}, set(), 240.0,
        then=lambda world, outcome: outcome.baseline.time_to_target_seconds is not None),
    "three minutes prove the stack of what did well": Row({"large": 1.3, "useless": 1.0, "fair": 1.3, "slow": 0.8},
        {"large", "fair"}, 180.0, then=lambda world, outcome: len(kept(outcome)) == 1),
    "what may be no gain is proved after everything had its look": Row({**useless(9), "last": 1.8}, {"last"}, 200.0,
        then=lambda world, outcome: compared(outcome) == [("last",)]),
    "the verification compares as long as the trainings leave time": Row({"quick": 1.5}, {"quick"}, 220.0,
        then=lambda world, outcome: outcome.speedup.end_to_end_verified and outcome.speedup.throughput.n >= 3),
    "what pays once others are shorter is tried next to them": Row({"feed": 1.0, "compute": 1.0},
        {"feed", "compute"}, 200.0, speed=fed,
        parts={"feed": {"stages": ("preparation",)}, "compute": {"stages": ("forward", "backward")}}),
    # what only trainings tell
    "no proof is spent on what cannot be decided in time": Row({"doubtful": 1.7, "sure": 1.4}, {"sure"}, 150.0,
        numeric=("doubtful",), quality={"doubtful": "undecided"}, found={"doubtful": Verdict.INCONCLUSIVE},
        then=lambda world, outcome: compared(outcome) == [("sure",)]),
    **{f"trained once it was proved faster: {budget}": Row({"doubtful": 1.7, "sure": 1.3}, {"doubtful", "sure"}, budget,
        numeric=("doubtful",), quality={"doubtful": "undecided"},
        then=lambda world, outcome: outcome.quality.level == "trained" and outcome.speedup.end_to_end_verified
        and len({pair for pair in trained(world) if pair[0]}) == sum(bool(names) for names, _ in trained(world)))
       for budget in (360.0, 3000.0)},
    "a plan that was trained in vain gives way to what is sure": Row({"doubtful": 1.7, "sure": 1.3}, {"sure"}, 600.0,
        numeric=("doubtful",), quality={"doubtful": "undecided"},
        reach=lambda plan: 900 if "doubtful" in plan.names() else 600, found={"doubtful": Verdict.QUALITY_LOST},
        then=lambda world, outcome: outcome.speedup.end_to_end_verified
        and {names for names, _ in trained(world)} == {(), ("doubtful", "sure"), ("sure",)}),
    "two minutes could not keep samples that are made otherwise": Row({"other": 1.7, "sure": 1.3}, {"sure"}, 120.0,
        **DRAWN, found={"other": Verdict.NOT_TRIED},
        then=lambda world, outcome: reason(outcome, "other").startswith("no time in this budget")),
    "six minutes can": Row({"other": 1.7, "sure": 1.3}, {"other", "sure"}, 360.0, **DRAWN),
    "a rival that only trainings tell of keeps nothing sure out": Row({"other": 1.3, "feed": 1.2, "compute": 1.4},
        {"feed", "compute", "other"}, 420.0, **DRAWN,
        then=lambda world, outcome: [set(names) for names in compared(outcome) if "other" in names] == [
            {"feed", "compute", "other"}]),
    "a stack gives up what certainly trains otherwise": Row({"cheat": 1.7, "sure": 1.4, "also": 1.35}, {"sure", "also"},
        600.0, numeric=("cheat",), quality={"cheat": "another"}, never={"cheat": Verdict.KEPT}),
    "a stack gives up an exact change that is none": Row({"claims": 1.5, "sure": 1.4, "also": 1.35}, {"sure", "also"},
        600.0, numeric=("sure", "also"), quality={"claims": "another"}, never={"claims": Verdict.KEPT}),
    "the others are asked as a whole": Row({"cheat": 1.7, "one": 1.4, "two": 1.35, "three": 1.3, "four": 1.25},
        {"one", "two", "three", "four"}, 900.0, numeric=("cheat",), quality={"cheat": "another"},
        then=lambda world, outcome: not any(
            len(plan.changes) == 1 for plan in world.runner.probed if "cheat" not in plan.names())),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_the_plan_that_is_found(tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    world = row.world(tmp_path)
    outcome = world.go()
    assert set(outcome.best.plan.names()) == row.best
    assert world.clock() <= max(row.budget, 60.0)  # what is measured of the baseline takes as long in any case
    found = verdicts(outcome)
    for each, verdict in row.found.items():
        assert verdict in (*found.get(each, []), *(t.verdict for t in outcome.state.all_trials() if t.strategy == each))
    for each, verdict in row.never.items():
        assert verdict not in found.get(each, [])
    assert row.then(world, outcome)


ATTENTION = SimulatedCase("rounding", {"attention": 1.9, "other": 1.0}, numeric=frozenset({"attention"}),
                          step_seconds=0.12)  # fmt: skip
LAYOUT = SimulatedCase("slow", {"layout": 1.18, "other": 1.0}, numeric=frozenset({"layout"}), step_seconds=0.35,
                       switchable=frozenset())  # fmt: skip
TRANSFORMER = SimulatedCase("transformer", {"amp": 2.5, "matmul": 1.5}, step_seconds=0.25, start_seconds=3.0,
                            steps=4000)  # fmt: skip


@pytest.mark.parametrize(
    ("case", "budget", "seeds", "name", "least"),
    [
        (ATTENTION, 90.0, (0,), "attention", 1),  # proved in the time of a verification that has none
        (LAYOUT, 180.0, (1,), "layout", 1),
        (TRANSFORMER, 190.0, range(6), "amp", 5),  # its training leaves the proof its time
        (CASES["attention"], 120.0, (0,), "attention", 1),  # looked at before a visit of what promises little
        (CASES["slow text"], 240.0, (2,), "amp", 1),
        (CASES["slow images"], 240.0, (2,), "amp", 1),
        (CASES["slow images"], 180.0, (1, 3), "amp", 2),  # without a companion, or the whole stands
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_largest_gain_is_found_within_the_budget(
    tmp_path: Path, case: SimulatedCase, budget: float, seeds: Any, name: str, least: int
) -> None:
    kept = 0
    for seed in seeds:
        world = simulated(case, budget, seed, tmp_path / str(seed))
        kept += name in world.go().best.plan.names()
        assert world.clock() <= 1.05 * budget
    assert kept >= least


def steps(folder: Path) -> list[str]:
    """Kinds of the journal's steps, in order."""
    records = [json.loads(line)["record"] for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [record["kind"] for record in records if record["type"] == "start"]


def test_a_short_budget_trains_the_baseline_beside_the_plan_and_a_long_one_first(tmp_path: Path) -> None:
    """Time that is left narrows the headline by more seeds: a short budget has none for a third."""
    seeds, kinds = {}, {}
    for budget in (240.0, 3000.0):
        folder = tmp_path / str(budget)
        world = World(folder, strategy("quick"), speed=product({"quick": 1.5}), budget=budget)
        outcome = world.go()
        assert outcome.speedup.end_to_end_verified
        assert world.clock() <= budget
        kinds[budget] = steps(folder)
        seeds[budget] = {seed for plan, seed in world.runner.trained if seed >= FRESH_SEEDS and plan.changes}
        if budget == 240.0:
            assert [(len(plan.changes), seed) for plan, seed in world.runner.trained[:2]] == [(0, 0), (1, 0)]
    assert "training" not in kinds[240.0], "the baseline was not trained alone"
    assert kinds[240.0].index("look") < kinds[240.0].index("trial") < kinds[240.0].index("trainings")
    assert kinds[3000.0].index("training") < kinds[3000.0].index("look")
    assert len(seeds[3000.0]) > FEWEST_SEEDS >= len(seeds[240.0])


def test_a_disturbed_pair_of_the_control_gets_a_second_one(tmp_path: Path) -> None:
    """One pair that reads 1.5 says that something was in the way, not what the noise of the machine is."""
    world = World(tmp_path, strategy("quick"), speed=product({"quick": 1.8}), budget=240.0)
    start, started = world.runner.start, []

    def disturbed(plan: Plan, label: str) -> FakeArm:
        arm = start(plan, label)
        if not started:
            arm._between = 0.4  # the very first process of the run
        started.append(label)
        return arm

    world.runner.start = disturbed
    outcome = world.go()
    assert len(outcome.state.control.comparison.pairs) == 2
    assert outcome.best.plan.names() == ("quick",)


def test_a_start_that_takes_long_once_has_its_time(tmp_path: Path) -> None:
    """Filling takes 40 s, where the baseline is set up in no time: a look waits for it where its share allows it."""

    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        return replace(behaviour, startup_seconds=2.0 + 40.0 * ("fill" in plan.names()))

    def once_seconds(self: Strategy, case: Case, setting: JsonDict) -> float:
        return 40.0

    def run(budget: float) -> tuple[World, Outcome]:
        fill = strategy("fill", once_seconds=once_seconds)
        folder = tmp_path / str(budget)
        world = World(folder, fill, speed=product({"fill": 6.0}), behave=behave, budget=budget, reach=lambda plan: 3000)
        return world, world.go()

    world, outcome = run(900.0)
    assert outcome.best.plan.names() == ("fill",)
    assert world.runner.once == {"fill": 40.0}
    _, short = run(60.0)
    assert verdicts(short)["fill"] == [Verdict.NOT_TRIED]
    assert any("its start takes about 40 s once" in trial.reason for trial in short.state.all_trials())


@pytest.mark.parametrize(("speed", "verdict"), [(1.08, Verdict.NO_GAIN), (1.6, Verdict.KEPT)])
def test_what_rounding_costs_is_taken_off_before_anything_is_proved(
    tmp_path: Path, speed: float, verdict: Verdict
) -> None:
    """Noise of 0.4 of the spread costs up to 16 % more steps."""

    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        return replace(behaviour, quality="noisy" if "rounding" in plan.names() else "identical", process_sd=0.002)

    strategies = [strategy("rounding", risk=Risk.NUMERIC, switchable=True)]
    quiet = NoiseModel("normal", block_sd=0.01)  # in which a gain of 8 % is clear
    world = World(tmp_path, *strategies, speed=product({"rounding": speed}), behave=behave, budget=1200.0, noise=quiet)
    outcome = world.go()
    assert verdicts(outcome)["rounding"] == [verdict]
    assert bool(outcome.state.comparisons) is (verdict is Verdict.KEPT), "no pair of processes is spent on the other"
    trial = next(trial for trial in outcome.state.trials if trial.strategy == "rounding")
    assert trial.quality.step_penalty.value == pytest.approx(1.16, abs=0.03)
