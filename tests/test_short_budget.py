"""A short budget, in simulated time: what is looked at, proved, trained or given up in the time there is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autoopt.errors import TrialFailed
from autoopt.records import JsonDict, Plan, Speedup, Verdict
from autoopt.search import verify
from autoopt.search.budget_allocation import TimeLimits
from autoopt.search.outcome import Outcome
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.search.verify import FRESH_SEEDS
from autoopt.setup import Setup
from autoopt.strategy import Applies, Case, Risk, Strategy
from autoopt.testing.fakes import Behaviour, FakeArm, NoiseModel
from benchmarks.search.cases import CASES, SimulatedCase
from benchmarks.search.minutes import simulated
from simulated import World, product, strategy, verdicts


def steps(folder: Path) -> list[str]:
    """Kinds of the journal's steps, in order."""
    records = [json.loads(line)["record"] for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [record["kind"] for record in records if record["type"] == "start"]


def test_the_first_training_takes_turns_with_that_of_the_plan_that_was_found(tmp_path: Path) -> None:
    world = World(tmp_path, strategy("quick"), speed=product({"quick": 1.5}), budget=240.0)
    outcome = world.go()
    assert outcome.best.plan.names() == ("quick",)
    kinds = steps(tmp_path)
    assert "training" not in kinds, "the baseline was not trained alone"
    assert kinds.index("look") < kinds.index("trial") < kinds.index("trainings")
    assert [(len(plan.changes), seed) for plan, seed in world.runner.trained[:2]] == [(0, 0), (1, 0)]
    assert outcome.speedup.end_to_end_verified
    assert world.clock() <= 240.0


def test_a_long_budget_trains_the_baseline_first(tmp_path: Path) -> None:
    World(tmp_path, strategy("quick"), speed=product({"quick": 1.5}), budget=1800.0).go()
    kinds = steps(tmp_path)
    assert kinds.index("training") < kinds.index("look")


def test_a_baseline_that_nothing_beats_is_trained_all_the_same(tmp_path: Path) -> None:
    world = World(tmp_path, strategy("slow"), speed=product({"slow": 0.7}), budget=240.0)
    outcome = world.go()
    assert outcome.best.plan == Plan()
    assert outcome.baseline.time_to_target_seconds is not None


def test_a_change_of_training_is_not_refused_by_a_guess_at_its_trainings(tmp_path: Path) -> None:
    """The planned run takes 50 s, the way to the target five: that shows once the baseline was trained."""
    world = World(
        tmp_path,
        strategy("schedule", risk=Risk.TRAINING),
        speed=product({"schedule": 1.6}),
        reach=lambda plan: 100,
        budget=180.0,
    )
    outcome = world.go()
    assert "training" in steps(tmp_path)
    seeds = [seed for plan, seed in world.runner.trained if "schedule" in plan.names()]
    assert {1, 2} <= set(seeds)
    assert outcome.best.plan.names() == ("schedule",)
    assert any(seed >= FRESH_SEEDS for seed in seeds), "what was selected by its trainings has fresh ones"
    assert world.clock() <= 180.0


def test_a_large_gain_of_slow_steps_is_proved_although_its_quality_takes_a_training(tmp_path: Path) -> None:
    """The target is out of reach, steps take a quarter of a second: the training leaves the proof its time."""
    case = SimulatedCase("transformer", {"amp": 2.5, "matmul": 1.5}, step_seconds=0.25, start_seconds=3.0, steps=4000)
    kept = 0
    for seed in range(6):
        world = simulated(case, 190.0, seed, tmp_path / str(seed))
        outcome = world.go()
        kept += "amp" in outcome.best.plan.names()
        assert world.clock() <= 200.0
    assert kept >= 5


def test_ninety_seconds_are_enough_for_a_large_gain(tmp_path: Path) -> None:
    """Looks end where the proof of the best of them would no longer fit."""
    names = [f"useless_{number}" for number in range(8)]
    strategies = [strategy("large"), *(strategy(name) for name in names)]
    world = World(tmp_path, *strategies, speed=lambda plan: 1.8 if "large" in plan.names() else 1.0, budget=90.0)
    world.runner.obeys_limits = True
    outcome = world.go()
    assert outcome.best.plan.names() == ("large",)
    assert world.clock() <= 90.0


def test_what_stands_out_is_proved_in_the_time_of_a_verification_that_has_none(tmp_path: Path) -> None:
    """A change of rounding, whose probes come first: what is left holds its proof, and no training in turns besides."""
    gains, step = {"attention": 1.9, "other": 1.0}, 0.12
    case = SimulatedCase("rounding", gains, numeric=frozenset({"attention"}), step_seconds=step)
    world = simulated(case, 90.0, 0, tmp_path)
    outcome = world.go()
    assert outcome.best.plan.names() == ("attention",)
    assert world.clock() <= 90.0


def test_what_is_left_of_a_stack_is_not_compared_beyond_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two changes were proved together, and the verification takes one of them out at the budget's end."""
    checked: list[tuple[str, ...]] = []

    def check(context: RunContext, state: SearchState, end: float, doubted: bool) -> tuple[verify.Verification, str]:
        checked.append(tuple(state.incumbent.names()))
        return verify.Verification(speedup=Speedup()), "its losses are others"

    monkeypatch.setattr(verify, "_check", check)
    world = World(
        tmp_path,
        strategy("risky", risk=Risk.NUMERIC),
        strategy("fine"),
        speed=product({"risky": 1.5, "fine": 1.4}),
        behave=lambda plan, behaviour: replace(behaviour, startup_seconds=8.0),
        budget=200.0,
    )
    outcome = world.go()
    assert checked == [("risky", "fine")], "what was left was not measured once more"
    assert outcome.best.plan == Plan()
    assert Verdict.KEPT not in [verdict for found in verdicts(outcome).values() for verdict in found]
    assert any(
        "fine was removed as well: confirmed only together with risky" in note for note in outcome.state.warnings
    )


def test_time_that_is_left_narrows_the_headline_by_more_seeds(tmp_path: Path) -> None:
    """Two trainings of each leave an interval that is wider than wanted; a short budget has no time for a third."""
    seeds = {}
    for name, budget in (("short", 240.0), ("long", 3000.0)):
        (tmp_path / name).mkdir()
        world = World(tmp_path / name, strategy("quick"), speed=product({"quick": 1.5}), budget=budget)
        outcome = world.go()
        assert world.clock() <= budget
        seeds[name] = {seed for plan, seed in world.runner.trained if seed >= verify.FRESH_SEEDS and plan.changes}
        assert outcome.speedup.end_to_end_verified
    assert len(seeds["long"]) > verify.SEEDS >= len(seeds["short"])


def test_what_may_be_no_gain_is_proved_after_everything_had_its_look(tmp_path: Path) -> None:
    names = [f"useless_{number}" for number in range(9)]
    strategies = [*(strategy(name) for name in names), strategy("last")]
    world = World(tmp_path, *strategies, speed=lambda plan: 1.8 if "last" in plan.names() else 1.0, budget=200.0)
    outcome = world.go()
    assert outcome.best.plan.names() == ("last",)
    assert [c.candidate.plan.names() for c in outcome.state.comparisons.values()] == [("last",)]


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
    assert outcome.state.control is not None
    assert len(outcome.state.control.comparison.pairs) == 2
    assert outcome.best.plan.names() == ("quick",)


def test_where_nothing_was_kept_what_promises_is_proved_in_the_time_of_a_verification(tmp_path: Path) -> None:
    gains = {"layout": 1.18, "other": 1.0}
    case = SimulatedCase("slow", gains, numeric=frozenset({"layout"}), step_seconds=0.35, switchable=frozenset())
    world = simulated(case, 180.0, 1, tmp_path)
    outcome = world.go()
    assert outcome.best.plan.names() == ("layout",)
    assert world.clock() <= 180.0


def test_what_its_strategy_would_not_try_beside_another_is_not_stacked_with_it(tmp_path: Path) -> None:
    """Shorter matrix products beside autocast: each good alone, the second kept though no use beside it."""
    amp = strategy("amp", risk=Risk.NUMERIC)

    class Products(Strategy):
        name = "products"
        risk = Risk.NUMERIC

        def applies(self, case: Case) -> Applies:
            return Applies.no("shorter already") if case.plan.setting("amp") is not None else Applies.yes()

        def apply(self, setup: Setup, setting: JsonDict) -> Setup:
            return setup.with_flags(products=True)

    def speed(plan: Plan) -> float:
        names = plan.names()
        return 1.6 if "amp" in names else 1.4 if "products" in names else 1.0

    world = World(tmp_path, amp, Products(), speed=speed, budget=600.0)
    assert world.go().best.plan.names() == ("amp",)
    assert not any({"amp", "products"} <= set(plan.names()) for plan, _ in world.runner.machine.started)


def test_what_outlasts_its_look_is_not_looked_at_in_another_setting(tmp_path: Path) -> None:
    settings: tuple[JsonDict, ...] = ({"mode": "one"}, {"mode": "two"}, {"mode": "three"})

    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        return replace(
            behaviour,
            fails=TrialFailed("timeout", "no answer within 20 s (warm_up)") if "slow" in plan.names() else None,
        )

    speeds = {"slow": 1.5, "sure": 1.4}
    strategies = [strategy("slow", settings=settings), strategy("sure")]
    outcome = World(tmp_path, *strategies, speed=product(speeds), behave=behave, budget=240.0).go()
    assert [trial.verdict for trial in outcome.state.trials if trial.strategy == "slow"] == [Verdict.FAILED]
    assert outcome.best.plan.names() == ("sure",)


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


@pytest.mark.parametrize(
    ("once", "share", "ready"), [(0.0, 50.0, 15.0), (10.0, 50.0, 35.0), (60.0, 50.0, 50.0), (60.0, 5.0, 15.0)]
)
def test_limits_follow_what_a_start_takes_once(once: float, share: float, ready: float) -> None:
    assert TimeLimits(start=15.0, ready=15.0, share=share).paying(once).ready == ready


def test_what_promises_most_is_looked_at_before_a_visit_that_leaves_it_no_time(tmp_path: Path) -> None:
    """Two minutes hold a few looks: what a running process can take on is cheap to see, and promises little here."""
    outcome = simulated(CASES["attention"], 120.0, 0, tmp_path).go()
    assert "attention" in outcome.best.plan.names()


@pytest.mark.parametrize("name", ["slow text", "slow images"])
def test_slow_steps_leave_time_to_prove_the_largest_gain(name: str, tmp_path: Path) -> None:
    world = simulated(CASES[name], 240.0, 2, tmp_path)
    outcome = world.go()
    assert "amp" in outcome.best.plan.names()
    records = [json.loads(line)["record"] for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert next(record["at"] for record in records if record.get("kind") == "look") < 60.0
    assert world.clock() <= 240.0


def test_what_pays_once_other_stages_are_shorter_is_looked_at_on_top_of_what_shortens_them(tmp_path: Path) -> None:
    """Samples take a fifth of a step: to feed it otherwise shows little in the noise, until computing takes half."""

    def speed(plan: Plan) -> float:
        computing, making = (0.7 if "compute" in plan.names() else 1.5), (0.2 if "feed" in plan.names() else 0.4)
        return 1.9 / (computing + making)

    strategies = [strategy("feed", stages=("preparation",)), strategy("compute", stages=("forward", "backward"))]
    world = World(tmp_path, *strategies, speed=speed, noise=NoiseModel("normal"), budget=150.0)
    outcome = world.go()
    assert set(outcome.best.plan.names()) == {"feed", "compute"}
    (kept,) = [trial for trial in outcome.state.trials if trial.verdict is Verdict.KEPT]
    assert {change.strategy for change in kept.companions} | {kept.strategy} == {"feed", "compute"}


# Quality on a short budget, in simulated time: what is proved, trained or given up in the time there is.


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

    strategies = [strategy("rounding", risk=Risk.NUMERIC, switchable=True)]
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
