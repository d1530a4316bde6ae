"""A workload is right, or one clear error says what is wrong with it and shows what works."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import autoopt
from autoopt.errors import WorkloadError
from autoopt.loading import validation
from autoopt.loading.validation import EXAMPLE, build, check


def data(samples: int = 64) -> TensorDataset:
    return TensorDataset(torch.randn(samples, 8), torch.randint(2, (samples,)))


def workload(**changes: Any) -> autoopt.Workload:
    fields: dict[str, Any] = {
        "model": nn.Linear(8, 2),
        "train_data": data(),
        "batch_size": 16,
        "loss": nn.CrossEntropyLoss(),
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "max_epochs": 1,
    }
    return autoopt.Workload(**{**fields, **changes})


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(10))


def test_the_example_in_the_messages_works() -> None:
    scope: dict[str, Any] = {}
    exec(EXAMPLE, scope)
    assert check(scope["build"]()).batch_size == 16


def test_a_good_workload_comes_back() -> None:
    model = nn.Linear(8, 2)
    for changes in (
        {},
        {"train_data": [(torch.randn(8), 0)] * 8},
        {"model": nn.Sequential(nn.LazyLinear(4), nn.ReLU())},
        {"model": model, "optimizer": torch.optim.Adam(model.parameters())},
    ):
        good = workload(**changes)
        assert check(good) is good
    assert build(lambda: good) is good


def nothing(*_: Any) -> None:
    return None


OTHER = nn.Linear(3, 3)

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": nn.Linear}, "model is the class Linear"),
    ({"model": "resnet"}, "model is of type str"),
    ({"model": None}, "model is None"),
    ({"model": nn.ReLU()}, "no parameter that requires a gradient"),
    ({"train_data": None}, "train_data is None"),
    ({"train_data": 3}, "train_data is of type int"),
    ({"train_data": torch.randn(4, 8)}, "train_data is of type torch.Tensor"),
    ({"train_data": TensorDataset}, "train_data is the class TensorDataset"),
    ({"train_data": data(0)}, "train_data is an empty TensorDataset"),
    ({"train_data": DataLoader(data(3), 4, drop_last=True), "batch_size": None}, "a DataLoader without a batch"),
    ({"train_data": DataLoader(data())}, "a DataLoader and batch_size=16"),
    ({"batch_size": None}, "batch_size is missing"),
    ({"batch_size": 0}, "batch_size is 0"),
    ({"batch_size": 1.5}, "batch_size is 1.5"),
    ({"batch_size": True}, "batch_size is True"),
    ({"loss": None}, "loss is None"),
    ({"loss": nn.CrossEntropyLoss}, "loss is the class CrossEntropyLoss"),
    ({"loss": lambda model: 0}, "cannot be called as loss(model, batch)"),
    ({"optimizer": None}, "optimizer is None"),
    ({"optimizer": torch.optim.SGD}, "optimizer is the class SGD"),
    ({"optimizer": lambda: None}, "cannot be called as optimizer(params)"),
    ({"optimizer": torch.optim.SGD(OTHER.parameters(), lr=0.1)}, "holds 2 parameters that are not the model's"),
    ({"scheduler": 3}, "scheduler is of type int"),
    ({"scheduler": lambda optimizer: None}, "cannot be called as scheduler(optimizer, total_steps)"),
    ({"scheduler_interval": "batch"}, "scheduler_interval is 'batch'"),
    ({"evaluate": 3, "valid_data": data()}, "evaluate is of type int"),
    ({"evaluate": lambda model: {}, "valid_data": data()}, "cannot be called as evaluate(model, batches)"),
    ({"evaluate": nothing}, "evaluate is given and valid_data is not"),
    ({"evaluate": nothing, "valid_data": data(0)}, "valid_data is an empty TensorDataset"),
    ({"target": 0.9}, "target is of type float"),
    ({"target": autoopt.Target("accuracy", at_least=0.9)}, "target 'accuracy' is given and evaluate is not"),
    ({"target": autoopt.Target("", at_least=0.9)}, "target.metric is ''"),
    ({"target": autoopt.Target("a", at_least=0.9, at_most=0.9)}, "target has at_least=0.9 and at_most=0.9"),
    ({"target": autoopt.Target("a", at_least=float("nan"))}, "target.at_least is nan"),
    ({"target": autoopt.Target("a", mode="best")}, "target.mode is 'best'"),  # type: ignore[arg-type]
    ({"target": autoopt.Target("a", at_most=1, mode="max")}, "contradicts"),
    ({"max_epochs": None}, "neither max_epochs nor max_steps is given"),
    ({"max_steps": 5}, "both max_epochs and max_steps are given"),
    ({"max_epochs": 0}, "max_epochs is 0"),
    ({"max_epochs": float("inf")}, "max_epochs is inf"),
    ({"max_epochs": None, "max_steps": 1.5}, "max_steps is 1.5"),
    ({"max_epochs": None, "max_steps": 0}, "max_steps is 0"),
    ({"train_data": Endless()}, "train_data does not know its length"),
    ({"evaluate_every": 0}, "evaluate_every is 0"),
    ({"accumulation": 0}, "accumulation is 0"),
    ({"accumulation": None}, "accumulation is None"),
    ({"clip_grad_norm": -1.0}, "clip_grad_norm is -1.0"),
    ({"setup": {}}, "setup is of type dict"),
]


@pytest.mark.parametrize(("changes", "said"), WRONG, ids=[said for _, said in WRONG])
def test_one_clear_error(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        check(workload(**changes))
    assert said in caught.value.message
    assert "wanted:" in caught.value.message
    assert EXAMPLE in caught.value.detail
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("returned", [None, 3, nn.Linear(1, 1), (1, 2), {}])
def test_a_wrong_return_value(returned: Any) -> None:
    with pytest.raises(WorkloadError, match="an autoopt.Workload"):
        build(lambda: returned)
    with pytest.raises(WorkloadError, match=r"names something of type int"):
        build(3)


def test_a_build_that_needs_arguments() -> None:
    with pytest.raises(WorkloadError, match="needs arguments"):
        build(lambda path: workload())
    assert build(lambda path="x": workload())


def test_a_build_that_raises_shows_the_users_traceback() -> None:
    def build_it() -> None:
        raise KeyError("no such split")

    with pytest.raises(WorkloadError, match=r"build_it\(\) raised KeyError: 'no such split'") as caught:
        build(build_it)
    assert "in build_it" in caught.value.detail
    assert "autoopt/validation.py" not in caught.value.detail


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), SystemExit(2),
                                   RuntimeError("CUDA error: device-side assert"), KeyboardInterrupt(),
                                   WorkloadError("an error of our own")])  # fmt: skip
def test_what_is_not_the_codes_fault_is_left_as_it_is(error: BaseException) -> None:
    def build_it() -> None:
        raise error

    with pytest.raises(type(error), match=f"^{error}$"):
        build(build_it)


@pytest.mark.parametrize("root", ["lightning.pytorch.core.module", "pytorch_lightning.core", "transformers.trainer"])
def test_objects_of_other_libraries_are_handed_to_the_adapters(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "Trainer" if root.startswith("transformers") else "LightningModule"
    base = type(name, (), {"__module__": root})
    made = type("Mine", (base,), {})()
    monkeypatch.setattr(validation, "adapt", lambda given: workload(name="adapted"))
    assert check(made).name == "adapted"
    assert build(lambda: (object(), made)).name == "adapted"


@given(
    st.sampled_from([field.name for field in dataclasses.fields(autoopt.Workload)]),
    st.one_of(st.none(), st.integers(-2, 2), st.floats(), st.text(max_size=3), st.booleans(), st.just(object()),
              st.just(nothing), st.just([]), st.just({}), st.just(nn.Linear)),
)  # fmt: skip
def test_any_value_in_any_field_is_taken_or_refused(name: str, value: Any) -> None:
    try:
        check(workload(**{name: value}))
    except WorkloadError as error:
        assert error.message.startswith("workload: ")
