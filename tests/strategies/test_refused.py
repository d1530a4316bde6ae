"""What strategies say where they do not apply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoopt.records import Change, Plan, Site, Sites
from autoopt.registry import load_strategies
from autoopt.setup import Setup
from autoopt.strategy import Case
from autoopt.testing.strategies import example_case, example_settings, sample_case

REGISTRY = load_strategies()


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
    told("muon", "10% of the parameters", found={"matrices": [2], "share": 0.1}),
    told("muon", "Adam family", optimizer={"type": "SGD"}),
    told("muon", "needs build()", script("muon")),
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
