"""Every strategy that is shipped, by what it declares, a new one by its line in ``BUILTIN``; and one's own."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autoopt.cli import main
from autoopt.records import Change, Estimate, Plan
from autoopt.records.facts import TensorFacts
from autoopt.registry import load_strategies
from autoopt.search.planner import predict
from autoopt.setup import Setup
from autoopt.simplify.pipeline import Pipeline
from autoopt.strategy import Case, Risk, Strategy
from autoopt.testing import StrategyTestCase
from autoopt.testing.method_cards import page, shipped
from autoopt.testing.strategies import example_of, sample_case, sample_facts, tiny_workload, train_few_steps
from autoopt_strategies.input import probes
from modules import module_of
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


def groups(most: int = 8) -> Iterator[list[str]]:
    """Names that may all stand together, few of them, so that each pair that is quick is in a group."""
    together, left = {frozenset(pair) for pair in QUICK}, {frozenset(pair): None for pair in QUICK}
    while left:
        group = sorted(next(iter(left)))
        while len(group) < most:
            able = [name for name in TRAINING if all(frozenset((name, one)) in together for one in group)]
            if not able:
                break
            group.append(max(able, key=lambda name: sum(frozenset((name, one)) in left for one in group)))
        for pair in itertools.combinations(group, 2):
            left.pop(frozenset(pair), None)
        yield group


def test_any_two_train_together() -> None:
    """Two steps of each group; the losses are finite."""
    seen = set[frozenset[str]]()
    for group in groups():
        losses = train_few_steps(tiny_workload(), fold(*group), steps=2)
        assert all(loss == loss and abs(loss) < 1e3 for loss in losses), group
        seen |= {frozenset(pair) for pair in itertools.combinations(group, 2)}
    assert {frozenset(pair) for pair in QUICK} <= seen


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
    case = replace(sample_case(loader=loader), pipeline=Graph(**speeds))
    asked = iter(REGISTRY["workers"].settings(case))
    assert [setting["num_workers"] for setting in asked] == tried


def test_a_dataset_that_its_script_changes_is_read_by_workers_that_start_anew() -> None:
    """Workers that stay read the first epoch's negative samples in all of them."""
    kept = {"kept": {"deterministic": True, "sample_seconds": 1e-3}}
    same = sample_case(inspected={"prepared_samples": kept})
    dataset = same.workload.dataset.model_copy(update={"changes": True})
    changing = replace(same, workload=same.workload.model_copy(update={"dataset": dataset}))
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
        promised(REGISTRY["compile"], replace(sample_case(), planned_steps=steps), {"mode": "default"})
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


# Predictions from what was tried on copies: the ratio goes into the graph.

RATIO = 0.6

TRIED: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "amp": ({"bfloat16_channels_last": RATIO, "bfloat16": 0.9}, {"dtype": "bfloat16"}, ("forward", "backward")),
    "channels_last": ({"ratio": RATIO}, {}, ("forward", "backward")),
    "matmul_precision": ({"medium": RATIO}, {"precision": "medium"}, ("forward", "backward")),
    "flash_attention": ({"ratio": RATIO}, {}, ("forward", "backward")),
    "native_operators": ({"ratio": RATIO}, {}, ("forward", "backward")),
    "fused_optimizer": ({"fused": RATIO, "foreach": 0.9}, {"implementation": "fused"}, ("optimizer",)),
}


def doubled(case: Case, ratio: float) -> Case:
    """The same with twice the batch measured."""
    round_ = case.pipeline.round
    known = round_.simulation.model_copy(update={"doubled": ratio})
    return replace(case, pipeline=Pipeline(round_.model_copy(update={"simulation": known})))


@pytest.mark.parametrize("name", TRIED)
def test_what_was_tried_is_what_is_predicted(name: str) -> None:
    inspected, setting, stages = TRIED[name]
    case = sample_case(inspected={name: inspected})
    found = predict(REGISTRY[name], case, setting)
    changed = {stage.name: stage.seconds * RATIO for stage in case.pipeline.stages if stage.name in stages}
    assert found == case.pipeline.gain(changed).as_kind("tried")
    assert predict(REGISTRY[name], sample_case(), setting) != found


@pytest.mark.parametrize("name", [name for name in TRIED if name != "fused_optimizer"])
def test_what_makes_it_slower_is_predicted_to_be_slower(name: str) -> None:
    inspected, setting, _ = TRIED[name]
    found = promised(REGISTRY[name], sample_case(inspected={name: dict.fromkeys(inspected, 1.5)}), setting)
    assert found.value < 1.0


@pytest.mark.parametrize("name", ["flash_attention", "native_operators"])
def test_what_is_slower_in_low_precision_is_predicted_so_in_either_order(name: str) -> None:
    """Attention that a CPU computes faster in float32 took two and a half times as long in bfloat16."""
    inspected = {name: {"ratio": 0.9, "ratio_low": 2.5}, "amp": {"bfloat16": RATIO}}
    case = sample_case(inspected=inspected)
    alone = promised(REGISTRY[name], case, {})
    low = replace(case, setup=REGISTRY["amp"].apply(case.setup, {"dtype": "bfloat16"}))
    assert promised(REGISTRY[name], low, {}).value < 1.0 < alone.value

    first = replace(case, plan=Plan(changes=(Change(strategy=name, setting={}),)))
    amp = {"dtype": "bfloat16"}
    assert promised(REGISTRY["amp"], first, amp).value < 1.0 < promised(REGISTRY["amp"], case, amp).value


def test_numbers_of_a_strategy_s_own_are_declared() -> None:
    """Neither confidence nor interval is claimed for what nobody measured; the pipeline's own what-if is simulated."""
    found = promised(REGISTRY["allocator"], sample_case("cuda:0"), {"expandable_segments": True})
    assert (found.kind, found.confidence) == ("declared", None)
    simulated = promised(REGISTRY["workers"], sample_case(), {"num_workers": 2})
    assert (simulated.kind, simulated.confidence) == ("simulated", None)


def test_a_batch_twice_as_large_costs_what_it_was_seen_to_cost() -> None:
    setting = {"size": 128, "learning_rate_factor": 1.4142, "warmup_steps": 0}
    assert promised(REGISTRY["batch_size"], sample_case(), setting), "by what launches cost, where none was seen"
    linear, shared = (promised(REGISTRY["batch_size"], doubled(sample_case(), ratio), setting) for ratio in (2.0, 1.2))
    assert linear.value < shared.value
    pieces = promised(REGISTRY["accumulation"], doubled(sample_case(), 1.2), {"size": 32, "accumulation": 2})
    assert pieces.value < 1.0


def test_a_sample_from_the_cache_costs_what_it_was_seen_to_cost() -> None:
    def predicted(hit: float) -> float:
        case = sample_case(inspected={"prepared_samples": {"kept": {"deterministic": True, "hit": hit}}})
        found = promised(REGISTRY["prepared_samples"], case, {"form": "samples", "where": "memory"})
        return found.value

    assert predicted(0.05) > predicted(0.5) > predicted(1.0)
    data = torch.utils.data.TensorDataset(torch.ones(20, 3))
    found = probes.kept(data)
    assert found["deterministic"]
    assert 0.0 < found["hit"] <= 1.0


def test_one_index_is_timed_at_the_size_of_the_batch() -> None:
    seen = []

    class Counting(torch.utils.data.TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            seen.append(index)
            return super().__getitem__(index)

    found = probes.batches(Counting(torch.ones(20, 3)), 5)
    assert found["index"] == "tensor"
    assert 0.0 < found["ratio"] <= 1.0
    assert [index for index in seen if isinstance(index, torch.Tensor)][-1].shape == (5,)


# A strategy of one's own: the guide followed to the letter, the example that it names, the reference of the API.

GUIDE = (ROOT / "docs" / "how-to" / "write-a-strategy.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference" / "strategy-api.md").read_text(encoding="utf-8")


class TestExample(StrategyTestCase):
    strategy = module_of(ROOT / "examples" / "custom_strategy.py").LabelSmoothing()

    def case(self) -> Any:
        labels = TensorFacts(path="[1]", shape=(64,), dtype="int64", bytes=512)
        return dataclasses.replace(sample_case(), workload=sample_facts(batch=(*sample_facts().batch, labels)))


def test_the_guide_works_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in re.findall(r"```python file=(\S+)\n(.*?)```", GUIDE, re.S):
        (tmp_path / name).write_text(text, encoding="utf-8")
    commands = re.findall(r"^\$ (.*)$", GUIDE, re.M)
    tests = next(command for command in commands if "pytest" in command)
    words = [sys.executable, *tests.removeprefix("python ").split(), "-p", "no:cacheprovider"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    listing = next(command for command in commands if command.startswith("autoopt strategies"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(listing.split()[1:]) == 0
    assert "larger_epsilon" in capsys.readouterr().out


def test_the_reference_lists_every_method_of_a_setup_with_its_arguments() -> None:
    rows = dict(re.findall(r"^\| `(with_\w+)\((.*?)\)` \|", REFERENCE, re.M))
    for name, method in inspect.getmembers(Setup, inspect.isfunction):
        if not name.startswith("with_"):
            continue
        assert name in rows, f"{name} is missing in docs/reference/strategy-api.md"
        named = [p.name for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY]
        if named:
            assert rows[name].replace("=", "").split(", ") == named
