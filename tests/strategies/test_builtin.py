"""Every built-in strategy, by one table: one that is missing in it fails."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoopt.records import Change, Plan
from autoopt.registry import load_strategies
from autoopt.search.planner import predict
from autoopt.setup import Setup
from autoopt.strategy import Case, Risk, Strategy
from autoopt.testing import StrategyTestCase
from autoopt.testing.strategies import sample_case, sample_facts, tiny_workload, train_few_steps
from autoopt_strategies import BUILTIN

sys.path.insert(0, str(Path(__file__).parent))
from strategy_settings import CALL, SETTINGS


@dataclasses.dataclass(frozen=True)
class Entry:
    """How a strategy is tested.

    Attributes:
        device: where it applies.
        facts: what the workload must be like for it to apply.
        inspected: what its ``inspect`` found.
        setup: what the incumbent is like.
        losses: how far the losses of the first steps may be from the untouched loop's, relatively; None: they differ.
        slow: takes long on a CPU.
        trains: can be trained with on a CPU.
    """

    device: str = "cpu"
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    inspected: dict[str, Any] = dataclasses.field(default_factory=dict)
    setup: Setup = dataclasses.field(default_factory=Setup)
    losses: float | None = 0.0
    slow: bool = False
    trains: bool = True


TABLE = {
    "workers": Entry(),
    "batch_fetch": Entry(inspected={"index": "tensor", "ratio": 0.2}),
    "cache": Entry(inspected={"deterministic": True, "sample_seconds": 1e-3}),
    "device_dataset": Entry(),
    "threaded_loading": Entry(),
    "pin_memory": Entry(device="cuda:0"),
    "device_prefetch": Entry(device="cuda:0"),
    "amp": Entry(losses=0.02),
    "matmul_precision": Entry(losses=0.02),
    "channels_last": Entry(losses=1e-4),
    "cudnn_benchmark": Entry(device="cuda:0"),
    "fused_optimizer": Entry(losses=1e-4),
    "compile": Entry(losses=1e-3, slow=True),
    "cuda_graphs": Entry(device="cuda:0"),
    "threads": Entry(losses=1e-4),
    "batch_size": Entry(losses=None),
    "accumulation": Entry(facts={"accumulation": 4}, losses=1e-4),
    "checkpointing": Entry(device="cuda:0", losses=1e-5),
    "flash_attention": Entry(inspected={"modules": ["blocks.*"], "calls": [CALL]}),
    "optimizer_in_backward": Entry(device="cuda:0", losses=1e-5),
    "expandable_segments": Entry(device="cuda:0", trains=False),
    "evaluation_cadence": Entry(facts={"evaluate_every": 100}),
    "checkpoint_cadence": Entry(setup=Setup().with_cadence(checkpoint_every=2)),
    "warmup_cosine": Entry(losses=None),
    "one_cycle": Entry(losses=None),
}
CARD = ("What it does:", "When it helps:", "When it does not:", "What it costs:", "Source:")
STAGES = {
    "storage", "preparation", "collate", "pin", "copy", "forward", "backward", "optimizer", "evaluate", "checkpoint",
    "host",
}  # fmt: skip
REGISTRY = load_strategies()


def case_of(name: str) -> Case:
    entry = TABLE[name]
    case = sample_case(entry.device, **entry.facts, inspected={name: entry.inspected})
    return dataclasses.replace(case, setup=entry.setup)


def test_every_strategy_stands_in_the_table() -> None:
    assert [strategy.name for strategy in BUILTIN] == list(REGISTRY)[: len(BUILTIN)]
    assert set(TABLE) == set(SETTINGS) == {strategy.name for strategy in BUILTIN}


def conformance(name: str) -> type:
    """The conformance test of one strategy."""
    entry = TABLE[name]
    body = {
        "strategy": REGISTRY[name],
        "setting": SETTINGS[name],
        "trains": entry.trains and not entry.slow,
        "case": lambda self: case_of(name),
    }
    return type(f"Test_{name}", (StrategyTestCase,), body)


for _strategy in BUILTIN:
    globals()[f"Test_{_strategy.name}"] = conformance(_strategy.name)


@pytest.mark.parametrize("strategy", BUILTIN, ids=lambda strategy: strategy.name)
def test_its_docstring_is_a_method_card(strategy: Strategy) -> None:
    card = inspect.getdoc(type(strategy)) or ""
    assert [part for part in CARD if part not in card] == []
    assert strategy.title
    assert strategy.stages <= STAGES
    assert strategy.after <= set(TABLE)


@pytest.mark.parametrize("strategy", BUILTIN, ids=lambda strategy: strategy.name)
def test_its_recipe_tells_the_pytorch_way(strategy: Strategy) -> None:
    assert strategy.recipe(SETTINGS[strategy.name]).pytorch


@pytest.mark.parametrize("strategy", BUILTIN, ids=lambda strategy: strategy.name)
def test_one_file_holds_it_and_names_the_facade_alone(strategy: Strategy) -> None:
    module = inspect.getmodule(type(strategy))
    assert module is not None
    assert module.__name__.rpartition(".")[2].startswith(strategy.name)
    source = inspect.getsource(module)
    assert set(re.findall(r"^\s*from (autoopt\.?\w*) import", source, re.M)) <= {"autoopt"}


@pytest.mark.parametrize("name", [name for name, entry in TABLE.items() if entry.losses is not None and entry.trains])
def test_its_losses_are_those_of_the_untouched_loop(name: str, request: pytest.FixtureRequest) -> None:
    entry = TABLE[name]
    if entry.slow:
        pytest.skip("compiles; see test_compile_gives_the_same_losses")
    untouched = train_few_steps(tiny_workload(), Setup(), steps=6)
    changed = train_few_steps(tiny_workload(), REGISTRY[name].apply(Setup(), SETTINGS[name]), steps=6)
    if entry.losses == 0.0:
        assert changed == untouched
    else:
        assert changed == pytest.approx(untouched, rel=entry.losses)


@pytest.mark.slow
def test_compile_gives_the_same_losses() -> None:
    untouched = train_few_steps(tiny_workload(), Setup())
    changed = train_few_steps(tiny_workload(), REGISTRY["compile"].apply(Setup(), SETTINGS["compile"]))
    assert changed == pytest.approx(untouched, rel=1e-3)


PAIRS = list(itertools.combinations(TABLE, 2))
QUICK = [pair for pair in PAIRS if not {"compile", "expandable_segments", "workers"} & set(pair)]


def fold(*names: str) -> Setup:
    plan = Plan(changes=tuple(Change(strategy=name, setting=SETTINGS[name]) for name in names))
    return REGISTRY.fold(REGISTRY.order(plan))


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_any_two_fold_into_one_setup(pair: tuple[str, str]) -> None:
    assert fold(*pair) not in (Setup(), fold(pair[0]), fold(pair[1])) or "threads" in pair or "device_dataset" in pair


@pytest.mark.parametrize("first", TABLE)
def test_any_two_train_together(first: str) -> None:
    """Three steps of each pair that is quick; the losses are finite."""
    for one, two in QUICK:
        if one == first:
            losses = train_few_steps(tiny_workload(), fold(one, two), steps=2)
            assert all(loss == loss and abs(loss) < 1e3 for loss in losses), (one, two)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler looks at it itself
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair not in QUICK], ids="+".join)
def test_any_two_train_together_the_slow_ones(pair: tuple[str, str]) -> None:
    if "expandable_segments" in pair:
        pytest.skip("it is set before torch is imported, and only CUDA reads it")
    assert all(abs(loss) < 1e3 for loss in train_few_steps(tiny_workload(), fold(*pair), steps=2))


def test_exact_ones_promise_what_can_be_checked_loss_by_loss() -> None:
    for strategy in BUILTIN:
        if strategy.risk is Risk.EXACT:
            assert TABLE[strategy.name].losses == 0.0, strategy.name


def test_listing_them_does_not_import_torch() -> None:
    code = "import sys; from autoopt.registry import load_strategies; load_strategies(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_workers_leave_cores_to_the_model_on_a_cpu() -> None:
    case = sample_case()
    (companion,) = REGISTRY["workers"].companions(case, {"num_workers": 6})
    assert companion == Change(strategy="threads", setting={"threads": 2})
    assert REGISTRY["workers"].companions(sample_case("cuda:0"), {"num_workers": 6}) == []


def test_compiling_cannot_pay_in_a_run_of_a_minute() -> None:
    short = dataclasses.replace(sample_case(), planned_steps=100)
    long = dataclasses.replace(sample_case(), planned_steps=1_000_000)
    compiling = REGISTRY["compile"]
    assert (predict(compiling, short, {"mode": "default"}) or 1).high < 1  # type: ignore[union-attr]
    assert (predict(compiling, long, {"mode": "default"}) or 1).value > 1  # type: ignore[union-attr]


def test_without_a_compiler_the_cpu_is_not_compiled_for() -> None:
    case = sample_case()
    bare = dataclasses.replace(case, environment=case.environment.model_copy(update={"compiler": None}))
    assert "compiler" in REGISTRY["compile"].applies(bare).reason


def test_the_learning_rate_follows_the_batch_by_the_optimizer_s_rule() -> None:
    sgd = sample_facts().optimizer.model_copy(update={"type": "SGD"})
    (first, *_) = REGISTRY["batch_size"].settings(sample_case(optimizer=sgd))
    assert (first["size"], first["learning_rate_factor"]) == (128, 2.0)
    (first, *_) = REGISTRY["batch_size"].settings(sample_case())
    assert first["learning_rate_factor"] == 1.4142
    assert first["warmup_steps"] == 2500


def test_a_device_that_multiplies_no_faster_gets_no_mixed_precision() -> None:
    case = sample_case()
    peaks = case.environment.peaks.model_copy(update={"matmul_bf16_flops_per_second": 4e13})
    slow = dataclasses.replace(case, environment=case.environment.model_copy(update={"peaks": peaks}))
    assert "no faster" in REGISTRY["amp"].applies(slow).reason


def test_data_too_large_for_memory_is_not_cached() -> None:
    case = sample_case(available_ram_bytes=1 << 29, inspected={"cache": {"deterministic": True}})
    assert "free memory" in REGISTRY["cache"].applies(case).reason


def test_the_page_of_strategies_names_them_all_in_their_order() -> None:
    page = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)$", page, re.M) == [strategy.name for strategy in BUILTIN]
