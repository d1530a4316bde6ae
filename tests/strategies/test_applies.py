"""Where strategies apply: each says why it does not, and what applies to a batch of any kind does not crash a trial."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from autoopt.benchmark.facts import inspected
from autoopt.benchmark.training import Training
from autoopt.benchmark.trial_context import TrialContext
from autoopt.records import Change, Plan, Site, Sites
from autoopt.records.protocol import TrialSpec
from autoopt.registry import load_strategies
from autoopt.setup import Setup
from autoopt.strategy import Case
from autoopt.testing.strategies import example_case, example_settings, sample_case
from autoopt.workload import Workload
from tests.strategies.stand_ins import promised

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import graphs

REGISTRY = load_strategies([])
ON_BATCHES = {"storage", "preparation", "collate", "pin", "copy"}
"""Stages of strategies that touch batches. What another precision does to a model's own lines is the model's affair."""


class Objects(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for number in range(16):
            draw = torch.Generator().manual_seed(number)
            x = torch.randn(8, 6, generator=draw)
            yield SimpleNamespace(inner=SimpleNamespace(x=x), y=(x.sum(1) > 0).long())


def of_graphs() -> Workload:
    loader = graphs.GraphLoader([graphs.graph(number) for number in range(800)], 8, True)
    return workload(graphs.Net(), loader, lambda model, batch: F.cross_entropy(model(batch), batch.y))


def of_objects() -> Workload:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    loader: DataLoader[Any] = DataLoader(Objects(), batch_size=None)
    return workload(model, loader, lambda model, batch: F.cross_entropy(model(batch.inner.x), batch.y))


def of_texts() -> Workload:
    model = nn.EmbeddingBag(64, 2)

    def loss(model: Any, batch: Any) -> torch.Tensor:
        texts, labels = batch
        return F.cross_entropy(model(torch.tensor([[ord(text[0]) % 64, len(text)] for text in texts])), labels)

    data: Any = [("ab" * (1 + number % 9), number % 2) for number in range(800)]
    return workload(model, DataLoader(data, 8, shuffle=True), loss)


def workload(model: nn.Module, loader: Any, loss: Any) -> Workload:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Workload(model=model, train_data=loader, loss=loss, optimizer=optimizer, max_steps=100)


def context(make: Callable[[], Workload]) -> TrialContext:
    return TrialContext(TrialSpec(workload=f"{__file__}:{make.__name__}", device="cpu"), REGISTRY)


@pytest.mark.parametrize(("make", "samples"), [(of_graphs, 8), (of_objects, 8), (of_texts, 8)])
def test_no_strategy_crashes_on_a_batch_that_it_does_not_know(make: Callable[[], Workload], samples: int) -> None:
    live = context(make)
    training = live.training
    for _ in range(3):
        training.step(training.next())
    assert training.samples == 3 * samples
    found = inspected(live, list(REGISTRY))
    assert not {name: said["error"] for name, said in found.items() if "error" in said}
    facts = live.facts.model_copy(update={"inspected": found})
    live.close()
    for device in ("cpu", "cuda:0"):
        case = replace(sample_case(device), workload=facts)
        for name in REGISTRY:
            strategy = REGISTRY[name]
            applies = strategy.applies(case)
            if not applies.ok or device != "cpu" or not strategy.stages & ON_BATCHES:
                continue
            setting = next(iter(strategy.settings(case)), None)
            if setting is None:
                continue
            changed = Training(make(), strategy.apply(case.setup, setting), device="cpu")
            try:
                for _ in range(2):
                    changed.step(changed.next())
            except Exception as error:
                raise AssertionError(f"{name} {setting}") from error
            finally:
                changed.close()


def test_what_cannot_be_put_on_a_device_is_said_with_its_type() -> None:
    facts = context(of_graphs).facts
    case = replace(sample_case("cuda:0"), workload=facts)
    settings = REGISTRY["pin_memory"].settings(case)
    assert list(settings) == [{"non_blocking": True, "prefetch": 1}], "what a Batch holds is not pinned"
    lost = replace(case, workload=facts.model_copy(update={"unmoved": "Molecule"}))
    reason = REGISTRY["pin_memory"].applies(lost).reason
    assert "what a Batch holds" in reason
    assert "a Molecule of the batch" in reason
    script = replace(case, sites=Sites(command=("train.py",), cwd="/"))
    assert "script's own lines" in REGISTRY["pin_memory"].applies(script).reason


def test_what_pinning_alone_saves_does_not_hide_what_copying_ahead_may() -> None:
    case = sample_case("cuda:0")
    pinned, ahead = REGISTRY["pin_memory"].settings(case)
    first, second = (promised(REGISTRY["pin_memory"], case, setting) for setting in (pinned, ahead))
    assert first.high == second.high


# What strategies say where they do not apply.


def told(name: str, reason: str, case: Case | None = None, device: str = "cpu", found: Any = None, **facts: Any) -> Any:
    """A row: the strategy, a case, in which its inspection has ``found`` this, and words of its reason."""
    case = case or sample_case(device, inspected={name: found or {}}, **facts)
    return pytest.param(name, case, reason, id=f"{name}: {reason}")


def on(device: str = "cpu", **environment: Any) -> Case:
    case = sample_case(device)
    return replace(case, environment=case.environment.model_copy(update=environment))


def set_up(setup: Setup, device: str = "cpu", **inspected: Any) -> Case:
    return replace(sample_case(device, inspected=inspected), setup=setup)


def planned(name: str, other: str) -> Case:
    return replace(example_case(REGISTRY[name]), plan=Plan(changes=(Change(strategy=other, setting={}),)))


def script(name: str) -> Case:
    return replace(example_case(REGISTRY[name]), sites=Sites(command=("train.py",), cwd="."))


def reading(planned: int = 100_000, **loader: Any) -> Case:
    """A script that adds up the gradients of four batches of 16."""
    site = Site(kind="loader_training", file="train.py", line=1, end_line=1)
    case = sample_case(batch_size=16, accumulation=4, loader=loader)
    return replace(case, sites=Sites(command=("train.py",), cwd=".", sites=(site,)), planned_steps=planned)


SLOW = sample_case().environment.peaks.model_copy(update={"matmul_bf16_flops_per_second": 4e13})
REFUSED = [
    told("accumulation", "one sample", batch_size=1),
    told("accumulation", "fits in one piece"),
    told("accumulation", "BatchNorm", accumulation=4, model={"has_batchnorm": True}),
    told("accumulation", "do not divide", reading(samples=50_000)),
    told("accumulation", "do not divide", reading(samples=None)),
    told("amp", "no faster", on(peaks=SLOW)),
    told("batched_transforms", "0.99", found={"prefix": 0, "operations": [{"op": "scale"}], "ratio": 0.99}),
    told("checkpoints", "how often"),
    told("compile", "compiler", on(compiler=None)),
    told("compile", "needs triton", on("cuda:0", packages={"numpy": "3.5.0"})),
    told("cuda_graphs", "the update of Adagrad cannot be recorded", device="cuda:0", optimizer={"type": "Adagrad"}),
    told("cuda_graphs", "shapes change", device="cuda:0", static_shapes=False),
    told("cuda_graphs", "scaler", set_up(Setup().with_precision(dtype="float16", loss_scaling=True), "cuda:0")),
    told("cuda_graphs", "compiled", set_up(Setup().with_compile(), "cuda:0")),
    told("flash_attention", "fastest back end already", device="cuda:0", found={"backends": {"cudnn": 0.99}}),
    told("fp8", "need an NVIDIA device"),
    told("fp8", "no fp8", device="cuda:0", found={"reason": "this device multiplies no fp8"}),
    told("freezing", "three layers", found={"layers": [["0.", 5], ["1.", 5]]}),
    told("garbage_collection", "0.0% of the time", found={"preparing": 1e-4, "computing": 0.0}),
    told("garbage_collection", "not known"),
    told("model_size", "a script as it is", script("model_size")),
    told("model_size", "pruning", planned("model_size", "pruning")),
    told("muon", "10% of the parameters", found={"besides": [2], "share": 0.1}),
    told("muon", "Adam family", optimizer={"type": "SGD"}),
    told("muon", "shared out", planned("muon", "sharding")),
    told("sharding", "whole matrices", planned("sharding", "muon")),
    told("quantization_aware", "autoopt latency --checkpoint"),
    told("rates_by_layer", "4 times as large", train_samples=64 * 16),
    told("rates_by_layer", "neither SGD", optimizer={"type": "Adagrad"}),
    told(
        "worker_threads", "one already", set_up(Setup().with_loader(num_workers=4), worker_threads={"parallelism": 1.0})
    ),
    told("worker_threads", "no loader workers", found={"parallelism": 4.0}),
]


@pytest.mark.parametrize(("name", "case", "reason"), REFUSED)
def test_a_strategy_says_why_it_does_not_apply(name: str, case: Case, reason: str) -> None:
    answer = REGISTRY[name].applies(case)
    assert not answer
    assert reason in answer.reason


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("compile", on("cuda:0", packages={"numpy": "3.5.0", "triton": "3.5.0"})),
        ("compile", sample_case("cuda:0")),  # nothing is known of its packages
        ("cuda_graphs", set_up(Setup().with_precision(dtype="bfloat16"), "cuda:0")),
    ],
)
def test_what_is_no_reason_against_it_leaves_it_applicable(name: str, case: Case) -> None:
    assert REGISTRY[name].applies(case)


@pytest.mark.parametrize(
    ("case", "pieces"),
    [
        (sample_case(batch_size=16, accumulation=4), [(64, 1), (32, 2)]),
        (reading(samples=160), [(32, 2)]),  # ten batches
        (reading(samples=170), []),
        (reading(samples=170, drop_last=True), [(32, 2)]),
        (reading(samples=128), [(64, 1), (32, 2)]),
        (reading(2, samples=130), [(64, 1), (32, 2)]),  # the run ends within its first epoch
    ],
)
def test_larger_pieces_end_an_epoch_as_it_ends(case: Case, pieces: list[tuple[int, int]]) -> None:
    found = example_settings(REGISTRY["accumulation"], case)
    assert [(setting["size"], setting["accumulation"]) for setting in found] == pieces
