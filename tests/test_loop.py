"""The whole loop in simulated time: trials are fakes whose true speed is known, everything else is real."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from autoopt.errors import Interrupted
from autoopt.events import Event
from autoopt.records import Change, JsonDict, Operator, Peaks, Plan, StopReason, Trial, Verdict
from autoopt.records.messages import Block
from autoopt.search.ablate import held_together
from autoopt.search.accept.evidence import FEWEST_SEEDS
from autoopt.search.outcome import Outcome
from autoopt.search.verify import FRESH_SEEDS
from autoopt.setup import Setup
from autoopt.simplify.stage_timings import InputTimings, StageTimings, Timing
from autoopt.strategy import MOST_SETTINGS, Applies, Case, Risk, Strategy
from autoopt.testing.fakes import Behaviour, FakeArm, NoiseModel
from simulated import STEPS, TARGET, World, product, strategy, verdicts


def test_gains_are_stacked_ablated_and_verified(tmp_path: Path) -> None:
    speeds = {"quick": 1.5, "useless": 1.0, "slow": 0.7, "also_quick": 1.3}
    world = World(tmp_path, *(strategy(name) for name in speeds), speed=product(speeds))
    outcome = world.go()
    assert set(outcome.best.plan.names()) == {"quick", "also_quick"}
    assert outcome.speedup.end_to_end_verified
    ratio = outcome.speedup.throughput
    assert ratio.low <= 1.95 <= ratio.high
    found = verdicts(outcome)
    assert found["slow"][0] in (Verdict.HARMFUL, Verdict.NO_GAIN)
    assert Verdict.KEPT not in found["useless"]
    rows = {row.strategy: row for row in outcome.ablation}
    assert set(rows) == {"quick", "also_quick"}
    assert rows["quick"].without.low <= 1.5 <= rows["quick"].without.high
    assert outcome.stop.reason is StopReason.EXHAUSTED
    assert world.clock() <= world.budget
    assert sorted(trial.id for trial in outcome.state.all_trials()) == list(
        range(1, len(outcome.state.all_trials()) + 1)
    )


def kept_trials(outcome) -> dict:
    return {trial.strategy: trial for trial in outcome.state.trials if trial.verdict is Verdict.KEPT}


def test_every_kept_change_is_measured_again_by_fresh_processes(tmp_path: Path) -> None:
    """A trial's own figure is what the change was kept for; the last one kept is no exception."""
    speeds = {"quick": 1.5, "also_quick": 1.3}
    noise = NoiseModel("normal")
    world = World(tmp_path, *(strategy(name) for name in speeds), speed=product(speeds), noise=noise)
    outcome = world.go()
    rows = {row.strategy: row for row in outcome.ablation}
    own = [found.estimate for found in outcome.state.comparisons.values()]
    for name, trial in kept_trials(outcome).items():
        assert rows[name].without is not None
        assert rows[name].without not in own
        if not trial.companions:
            again = [row.model_copy(update={"without": trial.measured_again}) for row in outcome.ablation]
            assert rows[name].without == held_together(again)[0].without


def test_a_single_kept_change_is_measured_again_by_the_verification(tmp_path: Path) -> None:
    world = World(tmp_path, strategy("quick"), speed=product({"quick": 1.5}), noise=NoiseModel("normal"))
    outcome = world.go()
    (trial,) = kept_trials(outcome).values()
    again = outcome.speedup.throughput
    assert trial.measured_again != trial.throughput
    assert (trial.measured_again.value, trial.measured_again.high) == pytest.approx((again.value, again.high))
    (row,) = outcome.ablation
    assert row.without.value == trial.measured_again.value


def test_a_candidate_that_compiles_again_is_doubted_as_a_baseline_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = FakeArm.block

    def block(self: FakeArm, *arguments: Any) -> Block:
        found = plain(self, *arguments)
        return found.model_copy(update={"recompilations": 1}) if "compiled" in self.plan.names() else found

    monkeypatch.setattr(FakeArm, "block", block)
    outcome = World(tmp_path / "again", strategy("compiled"), speed=product({"compiled": 1.5})).go()
    kept = next(trial for trial in outcome.state.trials if trial.verdict is Verdict.KEPT)
    assert "torch.compile compiled again" in kept.reason
    assert any(f"trial {kept.id}: torch.compile compiled again" in text for text in outcome.state.warnings)
    calm = World(tmp_path / "calm", strategy("calm"), speed=product({"calm": 1.5})).go()
    assert not any("compiled again" in text for text in calm.state.warnings)


class Broken(Strategy):
    """Every method raises, or returns nonsense."""

    name = "nonsense"
    risk = Risk.EXACT
    where: ClassVar[str] = ""

    def __getattribute__(self, name: str) -> Any:
        if name in ("applies", "predict", "settings", "companions", "apply") and name == type(self).where:
            raise RuntimeError(f"{name} is broken")
        return super().__getattribute__(name)

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_flags(nonsense=True)


@pytest.mark.parametrize("where", ["applies", "predict", "settings", "companions", "apply"])
def test_a_plugin_that_raises_is_a_result(tmp_path: Path, where: str) -> None:
    broken = type("Broken", (Broken,), {"where": where})()
    outcome = World(tmp_path, broken, strategy("good"), speed=product({"good": 1.5, "nonsense": 1.0})).go()
    assert outcome.best.plan.names() == ("good",)
    (verdict,) = set(verdicts(outcome)["nonsense"])
    assert verdict is Verdict.FAILED


def test_the_users_stop_ends_the_search_and_still_verifies(tmp_path: Path) -> None:
    def applies(self: Strategy, case: Case) -> Applies:
        return Applies.yes() if "good" in case.plan.names() else Applies.no("needs good")

    kept: list[bool] = []
    both, speed = (strategy("good"), strategy("better", applies=applies)), product({"good": 1.5, "better": 1.5})
    world = World(tmp_path, *both, speed=speed, stopping=lambda: bool(kept))
    world.context.announce.subscribe(lambda event: kept.append(True) if type(event).__name__ == "Kept" else None)
    outcome = world.go()
    assert outcome.stop.reason is StopReason.INTERRUPTED
    assert outcome.best.plan.names() == ("good",)
    assert outcome.speedup.end_to_end_verified


def test_broken_off_at_once_nothing_unverified_is_best(tmp_path: Path) -> None:
    world = World(tmp_path, strategy("good"), speed=product({"good": 1.5}))

    def stop(event: Event) -> None:
        if type(event).__name__ == "Kept":
            raise Interrupted("stop")

    world.context.announce = stop  # type: ignore[assignment]
    with pytest.raises(Interrupted):
        world.go()
    partial = world.loop.partial()
    assert partial.best.plan == Plan()
    assert partial.stop.reason is StopReason.INTERRUPTED


SPEEDS = {"quick": 1.5, "useless": 1.0}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Outcome, list[bytes]]:
    """A run from start to end, what it found, and the lines of its journal."""
    folder = tmp_path_factory.mktemp("whole")
    world = World(folder, *map(strategy, SPEEDS), speed=product(SPEEDS), budget=900.0)
    outcome = world.go()
    return world, outcome, (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("lines", [4, 8, 12, 16])
def test_a_resumed_run_measures_only_what_is_missing_and_ends_alike(
    tmp_path: Path, whole: tuple[World, Outcome, list[bytes]], lines: int
) -> None:
    first, found, journal = whole
    (tmp_path / "journal.jsonl").write_bytes(b"".join(journal[:lines]))
    second = World(tmp_path, *map(strategy, SPEEDS), speed=product(SPEEDS), resume=True, budget=900.0)
    assert second.go().best.plan == found.best.plan
    again = (tmp_path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    assert again[:lines] == journal[:lines]
    assert len(again) > lines
    known = [json.loads(line)["record"] for line in journal[:lines]]
    measured = {record["step"] for record in known if record["type"] == "end"}
    trainings = {record["step"] for record in known if record["type"] == "start" and record["kind"] == "training"}
    again_trained, at_first = (
        # seeds beyond the second narrow the headline, and how many do depends on the noise that was met
        [seed for _, seed in world.runner.trained if seed < FRESH_SEEDS + FEWEST_SEEDS]
        for world in (second, first)
    )
    assert len(again_trained) == len(at_first) - len(measured & trainings)


def test_a_target_out_of_reach_is_replaced_by_what_the_baseline_reached(tmp_path: Path) -> None:
    outcome = World(tmp_path, strategy("good"), speed=product({"good": 1.5}), reach=lambda plan: None).go()
    assert outcome.state.objective.target_source == "baseline"
    assert outcome.state.objective.target < TARGET
    assert any("was not reached within its share" in text for text in outcome.state.warnings)


def test_no_change_of_training_is_tried_where_the_users_target_is_out_of_the_budgets_reach(tmp_path: Path) -> None:
    world = World(
        tmp_path,
        strategy("good", companions=lambda self, case, setting: (Change(strategy="warm_up"),)),
        strategy("warm_up", risk=Risk.TRAINING),
        speed=product({"good": 1.5, "warm_up": 1.0}),
        reach=lambda plan: None,
    )
    world.runner.facts = world.runner.facts.model_copy(update={"max_steps": 10 * STEPS})
    outcome = world.go()
    (found,) = [trial for trial in outcome.state.all_trials() if trial.strategy == "warm_up"]
    assert found.verdict is Verdict.NOT_TRIED
    assert "does not reach accuracy 0.9 in" in found.reason
    # 10,000 steps of 0.05 s in 15 % of the budget
    assert "--budget 56m would do" in found.reason
    assert all("warm_up" not in plan.names() for plan, _ in world.runner.trained)
    assert all(not trial.companions for trial in outcome.state.trials)


# What is asked of one strategy, and what it is answered.


class Asking(Strategy):
    """Asks for each setting twice, for as long as it is answered, and keeps the answers."""

    name = "asking"

    def __init__(self) -> None:
        self.answers: list[Trial | None] = []

    def settings(self, case: Case) -> Generator[dict[str, Any], Trial | None, None]:
        for number in itertools.count():
            self.answers.append((yield {"number": number // 2}))

    def apply(self, setup: Setup, setting: dict[str, Any]) -> Setup:
        return setup.with_flags(asking=setting["number"])


def test_a_strategy_that_asks_without_end_is_stopped_and_told_of_each_trial(tmp_path: Path) -> None:
    """Every other setting it has asked for before: that is not tried again, and answered with None."""
    asking = Asking()
    outcome = World(tmp_path, asking, speed=product({"asking": 0.75}), budget=36000.0).go()
    tried = [trial for trial in outcome.state.trials if trial.strategy == "asking"]
    assert [trial.setting["number"] for trial in tried] == list(range(MOST_SETTINGS // 2))
    assert len(asking.answers) == MOST_SETTINGS
    assert asking.answers[::2] == tried
    assert asking.answers[1::2] == [None] * (MOST_SETTINGS // 2)
    assert set(verdicts(outcome)["asking"]) <= {Verdict.HARMFUL, Verdict.NO_GAIN}


def test_no_more_of_a_list_is_tried_either(tmp_path: Path) -> None:
    settings = tuple({"number": number} for number in range(MOST_SETTINGS + 5))
    listed = strategy("listed", settings=settings)
    outcome = World(tmp_path, listed, speed=product({"listed": 0.8}), budget=36000.0).go()
    assert [trial.setting for trial in outcome.state.trials] == list(settings[:MOST_SETTINGS])


# The whole loop in simulated time on a workload whose ceiling is known.

PEAK = 1e11
CEILING = 0.0375
"""Seconds of a step at the peak; the baseline takes 0.05."""


def timing(seconds: float) -> Timing:
    return Timing(seconds=seconds, cpu_seconds=seconds, wait_seconds=0.0)


def survey_of(behaviour: Behaviour) -> JsonDict:
    """All of the step is forward and backward, whose arithmetic takes ``CEILING`` at the peak."""
    step = behaviour.step_seconds
    products = Operator(name="aten::mm", seconds=step, flops=PEAK * CEILING, bytes=1e6, calls=9, kind="matmul")
    return StageTimings(
        device="cpu", cores=2, threads=2, workers=0, batch_size=32, batch_bytes=1000, operators=(products,),
        inputs=InputTimings(sample=timing(1e-9), collate=timing(1e-9)), forward=timing(step / 3),
        backward=timing(2 * step / 3), optimizer=timing(1e-6), compute=timing(step), host=timing(0.0),
        operators_forward_share=1 / 3,
    ).model_dump()  # fmt: skip


def at_peak(directory: Path, *strategies: Strategy, **how: Any) -> World:
    made = World(directory, *strategies, **how)
    made.runner.survey = survey_of
    made.runner.peaks = Peaks(matmul_fp32_flops_per_second=PEAK, memory_bytes_per_second=1e12).model_dump()
    return made


SHARP = strategy("sharp", stages={"forward", "backward"})


@pytest.mark.parametrize("reached", [True, False])
def test_the_search_ends_at_the_ceiling(tmp_path: Path, reached: bool) -> None:
    speeds = {"quick": 0.05 / CEILING / 1.01 if reached else 1.0, "sharp": 1.0}
    outcome = at_peak(tmp_path, strategy("quick"), SHARP, speed=product(speeds), budget=900.0).go()
    if not reached:
        assert outcome.stop.reason is StopReason.EXHAUSTED
        return
    assert outcome.stop.reason is StopReason.AT_THE_CEILING
    told = re.search(r"a step takes ([0-9.]+) ms, its ceiling here is ([0-9.]+) ms", outcome.stop.detail)
    assert float(told[2]) == pytest.approx(min(1e3 * CEILING, float(told[1])), rel=1e-3), "no step is below its ceiling"
    assert outcome.state.rounds[0].bottleneck == "backward"
    assert outcome.state.rounds[-1].bottleneck is None
    assert verdicts(outcome)["quick"] == [Verdict.KEPT]


def test_at_the_ceiling_the_time_that_was_short_for_the_rest_is_not_the_reason(tmp_path: Path) -> None:
    """Strategies that predict nothing are tried all the same; whether all came to their turn does not matter."""
    names = [f"unknown_{number}" for number in range(16)]
    outcome = at_peak(
        tmp_path, *map(strategy, names), speed=product(dict.fromkeys(names, 1.0)), budget=100.0,
        behave=lambda plan, behaviour: Behaviour(step_seconds=1.05 * CEILING),
    ).go()  # fmt: skip
    assert outcome.state.rounds[0].bottleneck is None
    assert [Verdict.NOT_TRIED] in verdicts(outcome).values()
    assert outcome.stop.reason is StopReason.AT_THE_CEILING


def test_at_the_ceiling_what_cannot_pay_is_not_tried_and_the_report_says_why(tmp_path: Path) -> None:
    made = at_peak(tmp_path, SHARP, speed=product({"sharp": 1.0}))
    made.runner.survey = lambda _: survey_of(Behaviour(step_seconds=CEILING * 1.005))
    (trial,) = made.go().state.all_trials()
    assert trial.verdict is Verdict.NOT_TRIED
    assert trial.reason.startswith("cannot pay: at the very best 1.02")
