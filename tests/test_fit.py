"""Memory in the loop, in simulated time: workloads that do not fit, and settings that only just do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoopt.errors import TrialFailed, WorkloadError
from autoopt.records import JsonDict, Plan, Verdict
from autoopt.search.outcome import Outcome
from autoopt.setup import Setup
from autoopt.strategy import Case, Risk, Strategy
from autoopt.testing.fakes import Behaviour
from simulated import World, product, strategy, verdicts

LIMIT = 1000


def saver(name: str, *rungs: tuple[float, JsonDict], **attributes: Any) -> Strategy:
    """A strategy that takes less memory: settings with their costs, the least first."""
    made: Any = type(strategy(name, risk=Risk.NUMERIC, settings=tuple(setting for _, setting in rungs)))

    class Saver(made):  # type: ignore[misc]
        def memory_savings(self, case: Case) -> Any:
            return () if attributes.get("excluded_by") in case.plan.names() else rungs

        def memory_saved(self, case: Case) -> float | None:
            return attributes.get("saved")

        def apply(self, setup: Setup, setting: JsonDict) -> Setup:
            return setup.with_batch(**attributes["batch"]) if "batch" in attributes else super().apply(setup, setting)

    return Saver()  # type: ignore[no-any-return]


CUT = saver("cut", (0.05, {"pieces": 2}), (0.1, {"pieces": 4}), (0.15, {"pieces": 8}))
AGAIN = saver("again", (0.3, {}))
MADE = (CUT, AGAIN, strategy("quick"))


def cut_size(plan: Plan) -> int:
    """1,600 bytes, of which half is divided by ``cut`` and 300 are saved by ``again``."""
    pieces = (plan.setting("cut") or {"pieces": 1})["pieces"]
    return 800 + 800 // pieces - (300 if "again" in plan.names() else 0)


def world(path: Path, *strategies: Strategy, sizes: Callable[[Plan], int] = cut_size, **arguments: Any) -> World:
    speeds = {"cut": 0.9, "again": 0.7, "quick": 1.5, "greedy": 1.5, "alone": 1.0, "smaller": 1.0}

    def behave(plan: Plan, known: Behaviour) -> Behaviour:
        return Behaviour(step_seconds=known.step_seconds, memory_bytes=sizes(plan))

    return World(path, *strategies, speed=product(speeds), behave=behave, memory=LIMIT, **arguments)


def test_a_workload_that_does_not_fit_is_compared_with_the_least_costly_plan_that_does(tmp_path: Path) -> None:
    made = world(tmp_path, *MADE)
    outcome = made.go()
    (reference,) = outcome.baseline.plan.changes
    assert (reference.strategy, reference.setting) == ("cut", {"pieces": 8})  # the 1,000 bytes of 4 leave no room
    assert outcome.best.plan.names() == ("cut", "quick")
    ratio = outcome.speedup.throughput
    assert ratio.low <= 1.5 <= ratio.high
    assert outcome.speedup.end_to_end_verified
    assert [row.strategy for row in outcome.ablation] == ["quick"]
    (told,) = [text for text in outcome.state.warnings if "does not fit in memory" in text]
    assert "out_of_memory: 1600 bytes wanted" in told
    assert "cut (pieces=8)" in told
    assert "none over a training that cannot run" in told
    assert Plan() not in [plan for plan, _ in made.runner.trained]


def test_nothing_helps_beyond_fitting_and_the_best_is_what_fits(tmp_path: Path) -> None:
    outcome = world(tmp_path, CUT).go()
    assert outcome.best == outcome.baseline
    assert outcome.best.plan.names() == ("cut",)
    assert outcome.speedup.throughput == outcome.state.noise.aa_ratio


def tried_to_fit(made: World) -> list[tuple[str, ...]]:
    """Plans that were looked at until one was the reference, in order, each once."""
    plans = [plan.names() for plan, label in made.runner.machine.started if label in ("ready", "probe_losses")]
    return list(dict.fromkeys(plans))


GAPS = saver("alone", (0.0, {}), saved=0.05 * LIMIT)


@pytest.mark.parametrize(
    ("strategies", "sizes", "reference", "tried"),
    [
        # one is not enough, and no smaller pieces than must be; pairs come before another precision
        ((CUT, AGAIN), lambda plan: cut_size(plan) + 200, {"cut": {"pieces": 4}, "again": {}}, []),
        ((CUT, AGAIN, saver("smaller", (1.0, {}))), lambda plan: cut_size(plan) + 400, None,
         [("cut",), ("again",), ("cut", "again")]),
        # each trial costs a start: gaps between tensors are hardly ever what is missing, however cheap to close
        ((GAPS, CUT), cut_size, None, [("cut",), ("alone",)]),
        # what only just fits, where there is no other
        ((CUT, AGAIN), lambda plan: 980 if plan.names() == ("again",) else 1600, {"again": {}}, []),
    ],
)  # fmt: skip
def test_what_is_tried_until_something_fits(
    tmp_path: Path, strategies: Any, sizes: Any, reference: dict[str, JsonDict] | None, tried: list[tuple[str, ...]]
) -> None:
    made = world(tmp_path, *strategies, sizes=sizes)
    outcome = made.go()
    assert tried_to_fit(made)[: len(tried)] == tried
    assert reference in (None, {change.strategy: change.setting for change in outcome.baseline.plan.changes})
    just = "only just: ", "98% of the memory"
    assert any(all(word in text for word in just) for text in outcome.state.warnings) is (reference == {"again": {}})


def test_where_nothing_fits_the_error_lists_what_was_tried_and_why_not_the_rest(tmp_path: Path) -> None:
    alone = saver("alone", (0.02, {}), excluded_by="cut")
    made = world(tmp_path, CUT, alone, AGAIN, sizes=lambda plan: 5000)
    made.context.choice = type(made.context.choice)(skip=("again",))
    with pytest.raises(WorkloadError, match="nothing that was tried makes it fit") as raised:
        made.go()
    lines = raised.value.detail.splitlines()
    assert lines[0] == "as it is: out_of_memory: 5000 bytes wanted, 1000 there are"
    assert any(line.startswith("cut (pieces=8): out_of_memory") for line in lines)
    assert any(line.startswith("alone: out_of_memory") for line in lines)
    assert "again: not tried: left out by --skip" in lines
    assert not any("cut" in line and "alone" in line for line in lines)  # they exclude one another


def test_a_plan_with_another_batch_is_no_reference(tmp_path: Path) -> None:
    smaller = saver("smaller", (0.0, {}), batch={"size": 16})
    with pytest.raises(WorkloadError, match="nothing that was tried"):
        world(tmp_path, smaller, sizes=lambda plan: 500 if plan.changes else 1600).go()


def test_a_failure_that_is_none_of_memory_is_the_users_error_at_once(tmp_path: Path) -> None:
    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        return Behaviour(fails=TrialFailed("error", "boom"), fails_at=15)

    made = World(tmp_path, CUT, speed=product({"cut": 1.0}), behave=behave)
    with pytest.raises(WorkloadError, match="baseline failed.*boom"):
        made.go()
    assert not made.loop.state.trials


def test_one_that_fails_later_gives_way_to_the_next(tmp_path: Path) -> None:
    """Limits that only a whole training meets: two plans seem to fit and do not, the third is taken."""
    made = world(tmp_path, CUT, AGAIN, sizes=lambda plan: 600)
    train = made.runner.train
    failed: list[Plan] = []

    def training(plan: Plan, **arguments: Any) -> Any:
        if plan.setting("cut") == {"pieces": 2} or not plan.changes:
            failed.append(plan)
            raise TrialFailed("out_of_memory", "an evaluation", where="evaluate")
        return train(plan, **arguments)

    made.runner.train = training  # type: ignore[method-assign]
    outcome = made.go()
    assert outcome.baseline.plan.setting("cut") == {"pieces": 4}
    assert len(failed) == 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, list[bytes]]:
    """A run from start to end, and the lines of its journal."""
    folder = tmp_path_factory.mktemp("whole")
    outcome = world(folder, *MADE).go()
    return outcome, (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("lines", [4, 6, 8, 11, 14])
def test_a_resumed_run_has_the_same_reference(tmp_path: Path, whole: tuple[Outcome, list[bytes]], lines: int) -> None:
    found, journal = whole
    (tmp_path / "journal.jsonl").write_bytes(b"".join(journal[:lines]))
    resumed = world(tmp_path, *MADE, resume=True).go()
    assert resumed.baseline.plan == found.baseline.plan
    assert resumed.best.plan == found.best.plan
    assert ended(journal) == ended((tmp_path / "journal.jsonl").read_bytes().splitlines())


def ended(lines: list[bytes]) -> int:
    """How often a plan was tried for its size, to its end."""
    records = [json.loads(line)["record"] for line in lines]
    fits = {record["step"] for record in records if record.get("kind") == "fit"}
    return sum(record["type"] in ("end", "failed") and record["step"] in fits for record in records)


def test_a_gain_that_leaves_no_room_is_refused(tmp_path: Path) -> None:
    def sizes(plan: Plan) -> int:
        return 960 if "greedy" in plan.names() else 400

    outcome = world(tmp_path, strategy("greedy"), strategy("quick"), sizes=sizes).go()
    assert verdicts(outcome)["greedy"][0] is Verdict.HARMFUL
    trial = next(trial for trial in outcome.state.trials if trial.strategy == "greedy")
    assert trial.reason.startswith("memory: ")
    assert "96% of the memory there is; 5% must stay free" in trial.reason
    assert outcome.best.plan.names() == ("quick",)


def test_one_that_is_no_fuller_than_its_baseline_is_not(tmp_path: Path) -> None:
    outcome = world(tmp_path, strategy("quick"), sizes=lambda plan: 970).go()
    assert outcome.best.plan.names() == ("quick",)


def test_two_that_are_known_not_to_fit_together_are_not_started_together(tmp_path: Path) -> None:
    """The A/A control finds it out; nothing after it starts a process that must fail."""
    made = world(tmp_path, strategy("quick"), strategy("alone"), sizes=lambda plan: 600)
    refused: list[int] = []
    check = made.runner.machine.check_memory

    def checked(new: Any) -> None:
        try:
            check(new)
        except TrialFailed:
            refused.append(len(made.runner.machine.started))
            raise

    made.runner.machine.check_memory = checked  # type: ignore[method-assign]
    assert made.go().best.plan.names() == ("quick",)
    assert len(refused) == 1


def test_room_for_the_largest_batch_is_asked_for_in_the_verification(tmp_path: Path) -> None:
    """Ordinary batches leave room; the largest, which a long run meets, would not."""

    def sizes(plan: Plan) -> int:
        return 700 if "greedy" in plan.names() else 400

    made = world(tmp_path, strategy("greedy"), sizes=sizes)
    made.runner.largest = 1.4
    outcome = made.go()
    assert verdicts(outcome)["greedy"][0] is Verdict.HARMFUL
    assert outcome.best.plan == Plan()
    assert any("on the largest batch" in text for text in outcome.state.warnings)
