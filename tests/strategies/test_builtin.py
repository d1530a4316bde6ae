"""Every strategy that is shipped, by what it declares: a new one is tested by its line in ``BUILTIN``."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from autoopt.records import Change, Estimate, Plan
from autoopt.registry import load_strategies
from autoopt.setup import Setup
from autoopt.strategy import Risk, Strategy
from autoopt.testing import StrategyTestCase
from autoopt.testing.method_cards import page, shipped
from autoopt.testing.strategies import example_of, sample_case, sample_facts, tiny_workload, train_few_steps
from tests.strategies.stand_ins import promised

REGISTRY = load_strategies()
SHIPPED = shipped()
SETTINGS = {strategy.name: example_of(strategy).setting for strategy in SHIPPED}
TRAINING = [strategy.name for strategy in SHIPPED if example_of(strategy).trains]
ROOT = Path(__file__).parents[2]

for _strategy in SHIPPED:
    globals()[f"Test_{_strategy.name}"] = type(f"Test_{_strategy.name}", (StrategyTestCase,), {"strategy": _strategy})


@pytest.mark.parametrize("strategy", SHIPPED, ids=lambda strategy: strategy.name)
def test_it_declares_title_stages_example_and_recipe_in_one_file_that_names_the_facade_alone(
    strategy: Strategy,
) -> None:
    assert strategy.title
    assert strategy.stages
    assert strategy.example is not None
    assert strategy.recipe(SETTINGS[strategy.name]).pytorch
    assert strategy.risk is not Risk.EXACT or strategy.example.losses == 0.0, "it can be checked loss by loss"
    module = inspect.getmodule(type(strategy))
    assert module.__name__.rpartition(".")[2].startswith(strategy.name)
    source = inspect.getsource(module)
    assert set(re.findall(r"^\s*from (autoopt\.?\w*) import", source, re.M)) <= {"autoopt"}


@pytest.mark.parametrize("name", [name for name in TRAINING if example_of(REGISTRY[name]).losses is not None])
def test_its_losses_are_those_of_the_untouched_loop(name: str) -> None:
    untouched = train_few_steps(tiny_workload(), Setup(), steps=6)
    changed = train_few_steps(tiny_workload(), REGISTRY[name].apply(Setup(), SETTINGS[name]), steps=6)
    allowed = example_of(REGISTRY[name]).losses
    assert changed == (pytest.approx(untouched, rel=allowed) if allowed else untouched)


@pytest.mark.slow
def test_compile_gives_the_same_losses() -> None:
    untouched = train_few_steps(tiny_workload(), Setup())
    changed = train_few_steps(tiny_workload(), REGISTRY["compile"].apply(Setup(), SETTINGS["compile"]))
    assert changed == pytest.approx(untouched, rel=1e-3)


PAIRS = [pair for pair in itertools.combinations(SETTINGS, 2) if not REGISTRY.exclude(*pair)]
QUICK = [pair for pair in PAIRS if set(pair) <= set(TRAINING) - {"workers"}]


def fold(*names: str) -> Setup:
    plan = Plan(changes=tuple(Change(strategy=name, setting=SETTINGS[name]) for name in names))
    return REGISTRY.fold(REGISTRY.order(plan))


@pytest.mark.parametrize("first", SETTINGS)
def test_any_two_fold_into_one_setup(first: str) -> None:
    for pair in PAIRS:
        if pair[0] == first:
            assert fold(*pair) not in (Setup(), fold(pair[0]), fold(pair[1])) or "threads" in pair, pair


@pytest.mark.parametrize("first", TRAINING)
def test_any_two_train_together(first: str) -> None:
    """Three steps of each pair that is quick; the losses are finite."""
    for one, two in QUICK:
        if one == first:
            losses = train_few_steps(tiny_workload(), fold(one, two), steps=2)
            assert all(loss == loss and abs(loss) < 1e3 for loss in losses), (one, two)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler looks at it itself
@pytest.mark.filterwarnings("ignore:.* should not be instantiated")  # it does so itself, of autograd functions
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair not in QUICK], ids="+".join)
def test_any_two_train_together_the_slow_ones(pair: tuple[str, str]) -> None:
    if any(example_of(REGISTRY[name]).processes > 1 for name in pair):
        pytest.skip("one process cannot train what several are to: tests/distributed does")
    assert all(abs(loss) < 1e3 for loss in train_few_steps(tiny_workload(), fold(*pair), steps=2))


def test_workers_leave_cores_to_the_model_on_a_cpu() -> None:
    case = sample_case()
    (companion,) = REGISTRY["workers"].companions(case, {"num_workers": 6})
    assert companion == Change(strategy="threads", setting={"threads": 2})
    assert REGISTRY["workers"].companions(sample_case("cuda:0"), {"num_workers": 6}) == []


class Graph:
    """Predicts a speedup for each number of workers."""

    def __init__(self, **speeds: float) -> None:
        self.speeds = {int(name[1:]): speed for name, speed in speeds.items()}
        self.round = sample_case().pipeline.round  # type: ignore[union-attr]

    def gain(self, *given: Any, workers: int, **how: Any) -> Estimate:
        speed = self.speeds.get(workers, 0.5)
        return Estimate(value=speed, low=speed, high=speed, n=1, kind="simulated")

    def stage(self, name: str) -> None:
        return None


@pytest.mark.parametrize(
    ("now", "speeds", "tried"),
    [
        (8, {"w0": 2.0, "w1": 1.5}, [0, 4, 2]),
        (8, {"w0": 0.7, "w2": 2.0}, [2, 1]),
        (4, {"w0": 1.99, "w2": 2.0}, [0, 2, 1]),
        (0, {"w2": 1.5}, [2, 1]),
    ],
    ids=["none is fastest", "fewer are", "of two alike the fewer", "some, where there are none"],
)
def test_more_and_fewer_workers_are_tried_as_predicted(now: int, speeds: dict[str, float], tried: list[int]) -> None:
    loader = sample_facts().loader.model_copy(update={"num_workers": now, "persistent_workers": True})
    case = dataclasses.replace(sample_case(loader=loader), pipeline=Graph(**speeds))
    asked = iter(REGISTRY["workers"].settings(case))
    assert [setting["num_workers"] for setting in asked] == tried


def test_a_dataset_that_its_script_changes_is_read_by_workers_that_start_anew() -> None:
    """Workers that stay read the first epoch's negative samples in all of them."""
    kept = {"kept": {"deterministic": True, "sample_seconds": 1e-3}}
    same = sample_case(inspected={"prepared_samples": kept})
    dataset = same.workload.dataset.model_copy(update={"changes": True})
    changing = dataclasses.replace(same, workload=same.workload.model_copy(update={"dataset": dataset}))
    for case, stay in ((same, True), (changing, False)):
        asked = [*REGISTRY["workers"].settings(case)]
        assert asked
        assert all(setting["persistent_workers"] is stay for setting in asked)
        forms = {setting["form"] for setting in REGISTRY["prepared_samples"].settings(case)}
        assert bool(forms & {"samples", "rows"}) is stay


def test_samples_that_are_prepared_are_tried_without_workers() -> None:
    loader = sample_facts().loader.model_copy(update={"num_workers": 4})
    strategy, none = REGISTRY["prepared_samples"], Change(strategy="workers", setting={"num_workers": 0})
    for form in ("samples", "batches"):
        assert strategy.companions(sample_case(loader=loader), {"form": form}) == [none]
        assert strategy.companions(sample_case(), {"form": form}) == []


def test_compiling_cannot_pay_in_a_run_of_a_minute() -> None:
    short, long = (
        promised(REGISTRY["compile"], dataclasses.replace(sample_case(), planned_steps=steps), {"mode": "default"})
        for steps in (100, 1_000_000)
    )
    assert short.high < 1
    assert long.value > 1


def test_the_learning_rate_follows_the_batch_by_the_optimizer_s_rule() -> None:
    sgd = sample_facts().optimizer.model_copy(update={"type": "SGD"})
    (first, *_) = REGISTRY["batch_size"].settings(sample_case(optimizer=sgd))
    assert (first["size"], first["learning_rate_factor"]) == (128, 2.0)
    (first, *_) = REGISTRY["batch_size"].settings(sample_case())
    assert first["learning_rate_factor"] == 1.4142
    assert first["warmup_steps"] == 2500


def test_the_page_of_strategies_is_made_of_their_cards() -> None:
    written = (ROOT / "docs" / "reference" / "strategies.md").read_text(encoding="utf-8")
    assert written == page(SHIPPED), "docs/reference/strategies.md is stale: run `make docs`"
