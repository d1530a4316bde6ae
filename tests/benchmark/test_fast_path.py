"""Steps in one frame: the same training and the same book of it, and no more calls beside a step than were counted."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, default_collate

from autoopt.benchmark.training import Training
from autoopt.errors import WorkloadError
from autoopt.setup import Setup

sys.path.insert(0, str(Path(__file__).parent))

from small_training import data, losses, workload

PYTHON_CALLS = 2
"""The step's own frame, and whether it is enough."""
C_CALLS = 7
"""Two readings of the time, three lists that grow, the loss read, and whether the step has one micro-batch."""


def sampled(training: Training, every: int = 1000) -> Training:
    training.clock.every = every
    training.clock.start()
    return training


def trained_until(training: Training, steps: int) -> None:
    training.run_until(lambda done, _: done >= steps)


def by_hand(training: Training, steps: int) -> None:
    model, optimizer, loss_of = training.model, training.optimizer, training.workload.loss
    done = 0
    while True:
        for batch in training.loader.loader:
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done += 1
            if done >= steps:
                return


def calls(run: Callable[[], None]) -> Counter[str]:
    found: Counter[str] = Counter()
    before = sys.getprofile()
    sys.setprofile(lambda _, event, __: found.update([event]))
    try:
        run()
    finally:
        sys.setprofile(before)
    return found


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators(run: Callable[[], None]) -> int:
    mode = Operators()
    with mode:
        run()
    return mode.count


def of_a_step(count: Callable[[int], Any]) -> Any:
    """Calls of one more step of the same epoch, a tenth of those of ten."""
    few, many = count(5), count(15)
    return (many - few) / 10 if isinstance(few, int) else {kind: (many[kind] - few[kind]) / 10 for kind in many}


def test_a_step_makes_no_more_calls_beside_one_by_hand_than_were_counted() -> None:
    found = {}
    for name, loop in (("bare", by_hand), ("ours", trained_until)):

        def count(steps: int, loop: Any = loop) -> Counter[str]:
            training = Training(workload(train_data=DataLoader(data(400), 8, shuffle=True)), device="cpu")
            trained_until(training, 5)
            training.batch_iterator.close()
            sampled(training)
            return calls(lambda: loop(training, steps))

        found[name] = of_a_step(count)
    # whole calls: what a run makes once (a collection of garbage, a finalizer) is a fraction of a step's
    assert int(found["ours"]["call"] - found["bare"]["call"]) <= PYTHON_CALLS
    assert int(found["ours"]["c_call"] - found["bare"]["c_call"]) <= C_CALLS


def test_a_step_calls_no_operator_of_torch_beside_those_by_hand() -> None:
    found = []
    for loop in (by_hand, trained_until):

        def count(steps: int, loop: Any = loop) -> int:
            training = Training(workload(train_data=DataLoader(data(400), 8, shuffle=True)), device="cpu")
            trained_until(training, 5)
            training.batch_iterator.close()
            sampled(training)
            return operators(lambda: loop(training, steps))

        found.append(of_a_step(count))
    assert found[0] == found[1]


@pytest.mark.parametrize("every", [1, 3, 1000])
@pytest.mark.parametrize(
    "setup",
    [
        Setup(),
        Setup().with_precision(dtype="bfloat16"),
        Setup().with_step(lambda step: lambda batches: step(batches)),
        Setup().with_batch(learning_rate_factor=2.0, warmup_steps=20),
    ],
    ids=["plain", "autocast", "wrapped", "warm-up"],
)
def test_losses_are_those_of_steps_one_by_one(setup: Setup, every: int) -> None:
    def scheduler(optimizer: Any, total_steps: int) -> Any:
        return ExponentialLR(optimizer, 0.99)

    def fresh() -> Training:
        return Training(workload(max_steps=100, scheduler=scheduler), setup, device="cpu")

    one_by_one = losses(fresh(), 33)
    training = sampled(fresh(), every)
    lap, recorder = training.run_until(lambda done, _: done >= 20)
    _, more = training.run_until(lambda done, _: done >= 13)
    assert (*recorder.losses(), *more.losses()) == tuple(one_by_one)
    assert (training.steps, training.samples) == (33, 33 * 8)
    assert len(lap.steps) == 20
    assert sum(lap.stages.values()) == pytest.approx(lap.seconds)
    assert sum(lap.steps) == pytest.approx(lap.seconds, rel=0.2)


def test_a_run_goes_on_from_within_an_epoch_that_was_trained_on_the_fast_path() -> None:
    first = Training(workload(max_steps=100), device="cpu")
    trained_until(first, 8)
    state = copy.deepcopy(first.state_dict())
    following = losses(first, 10)
    second = Training(workload(max_steps=100), device="cpu")
    second.load_state_dict(state)
    assert losses(second, 10) == following


def without_the_first(items: list[Any]) -> Any:
    return default_collate(items[1:])


@pytest.mark.parametrize("every", [1, 4])
def test_samples_are_looked_up_once_the_loader_was_found_wrong(every: int) -> None:
    loader = DataLoader(data(40), 8, collate_fn=without_the_first)
    training = sampled(Training(workload(train_data=loader, max_steps=100), device="cpu"), every)
    trained_until(training, 23)
    assert training.samples == 23 * 7


def test_a_step_that_fails_leaves_the_book_right() -> None:
    training = sampled(Training(workload(max_steps=100), device="cpu"))
    trained_until(training, 1)
    sampled(training)
    step, tried = training.one_step, []

    def fails_once(batches: list[Any]) -> Any:
        tried.append(1)
        if len(tried) == 3:
            raise RuntimeError("as it happens")
        return step(batches)

    training.one_step = fails_once
    with pytest.raises(RuntimeError, match="as it happens"):
        trained_until(training, 10)
    assert training.steps == 3
    assert training.batch_iterator.batch == 4
    trained_until(training, 10)
    assert (training.steps, training.samples) == (13, 13 * 8)


def test_an_epoch_without_a_batch_is_an_error() -> None:
    training = Training(workload(train_data=DataLoader(data(4), 8, drop_last=True)), device="cpu")
    with pytest.raises(WorkloadError, match="gave no batch in epoch 0"):
        trained_until(training, 3)


def test_whole_epochs_are_trained_on_the_fast_path() -> None:
    training = sampled(Training(workload(max_steps=1000), device="cpu"))
    training.advance = training.next = None  # type: ignore[assignment, method-assign]
    trained_until(training, 5)
    trained_until(training, 17)
    assert training.steps == 22
    assert torch.isfinite(next(training.model.parameters())).all()
