"""Short steps: the loop adds little to them, and books what a loop by hand would."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, default_collate

from autoopt.benchmark.contents import sizes_of
from autoopt.benchmark.live import run_until
from autoopt.benchmark.losses import LossRecorder
from autoopt.benchmark.training import Training
from autoopt.benchmark.warmup import run_block
from autoopt.errors import WorkloadError
from autoopt.records import JsonDict
from autoopt.records.protocol import TrialSpec
from autoopt.setup import Setup
from autoopt.trial.parent import Launcher
from tests.benchmark.small_training import data, losses, net, operators, workload

ROOT = Path(__file__).parents[2]
PYTHON_CALLS = 21
"""To read a batch and count its samples, to mark the ends of stages, to record the loss: about 10 us together."""
C_CALLS = 30
"""Of these calls: readings of the time, lists that grow, types that are asked for."""


def sampled(training: Training, every: int = 1000) -> Training:
    training.clock.every = every
    training.clock.start()
    return training


def trained_until(training: Training, steps: int) -> None:
    run_until(training, lambda done, _: done >= steps)


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


def of_a_step(loop: Callable[[Training, int], None], count: Callable[[Callable[[], None]], Counter[str]]) -> Any:
    """What a loop makes in one more step of the same epoch, a tenth of what it makes in ten."""

    def counted(steps: int) -> Counter[str]:
        training = Training(workload(train_data=DataLoader(data(400), 8, shuffle=True)), device="cpu")
        trained_until(training, 5)
        training.batch_iterator.close()
        sampled(training)
        return count(lambda: loop(training, steps))

    few, many = counted(5), counted(15)
    return {kind: more / 10 for kind in many if (more := many[kind] - few[kind])}


def calls_of_both(live: Any) -> JsonDict:
    return {loop.__name__: of_a_step(loop, calls) for loop in (by_hand, trained_until)}


def test_a_step_makes_no_more_calls_beside_one_by_hand_than_were_counted(launcher: Launcher, tmp_path: Path) -> None:
    # in a process of its own: hooks that other tests leave in this one are called in each step
    tiny = ROOT / "tests" / "workloads" / "tiny.py"
    spec = TrialSpec(workload=f"{tiny}:build", search_path=(str(ROOT),))
    with launcher.start(spec, log=tmp_path / "log", timeout=60.0) as trial:
        found = trial.call(f"{__name__}:calls_of_both", timeout=60.0)
    bare, ours = found["by_hand"], found["trained_until"]
    # whole calls: what a run makes once (a collection of garbage, a finalizer) is a fraction of a step's
    assert int(ours["call"] - bare["call"]) <= PYTHON_CALLS
    assert int(ours["c_call"] - bare["c_call"]) <= C_CALLS


def test_a_step_calls_no_operator_of_torch_beside_those_by_hand() -> None:
    assert of_a_step(by_hand, operators) == of_a_step(trained_until, operators)


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
    lap, recorder = run_until(training, lambda done, _: done >= 20)
    _, more = run_until(training, lambda done, _: done >= 13)
    assert (*recorder.losses(), *more.losses()) == tuple(one_by_one)
    assert (training.steps, training.samples) == (33, 33 * 8)
    assert len(lap.steps) == 20
    assert sum(lap.stages.values()) == pytest.approx(lap.seconds)
    assert 0.0 < sum(lap.steps) <= lap.seconds


def without_the_first(items: list[Any]) -> Any:
    return default_collate(items[1:])


@pytest.mark.parametrize("every", [1, 4])
def test_a_collate_function_that_leaves_samples_out_is_believed_over_the_loader(every: int) -> None:
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


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_losses_are_those_of_their_steps(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    weight = torch.ones(shape, requires_grad=True, dtype=dtype)
    recorder = LossRecorder(on_cpu=True)
    for step in range(10):
        recorder.add(weight * (float("nan") if step == 7 else step))
    assert len(recorder) == 10
    assert recorder.losses() == tuple(None if step == 7 else float(step) for step in range(10))


def test_losses_elsewhere_are_copies() -> None:
    recorder, place = LossRecorder(on_cpu=False), torch.zeros(())
    for step in range(3):
        recorder.add(place.fill_(step))
    assert recorder.losses() == (0.0, 1.0, 2.0)


def test_the_loss_of_a_step_is_detached() -> None:
    for setup in (Setup(), Setup().with_step(lambda step: lambda batches: step(batches))):
        training = Training(workload(), setup, device="cpu")
        assert not training.step(training.next()).requires_grad


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_samples_are_those_of_the_batches(drop_last: bool, accumulation: int) -> None:
    loader = DataLoader(data(37), 8, shuffle=True, drop_last=drop_last)
    training = Training(workload(train_data=loader, accumulation=accumulation, max_steps=100), device="cpu")
    training.clock.every = 100  # of these steps the first alone is split
    training.clock.start()
    seen = 0
    for _ in range(30):
        group = training.next()
        seen += sum(len(batch[0]) for batch in group)
        training.step(group)
    assert training.samples == seen


def test_a_group_that_is_trained_twice_counts_twice() -> None:
    training = Training(workload(), device="cpu")
    group = training.next()
    training.step(group)
    training.step(group)
    training.step([group[0], group[0]])
    assert training.samples == 8 + 8 + 16


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from data(20)


def test_only_a_plain_loader_tells_its_sizes() -> None:
    sizes = sizes_of(DataLoader(data(37), 8))
    assert sizes is not None
    assert [sizes(batch) for batch in (0, 3, 4)] == [8, 8, 5]
    assert sizes_of(DataLoader(Stream(), 8)) is None
    assert sizes_of(DataLoader(data(37), batch_size=None)) is None

    class Own(BatchSampler):
        pass

    own = Own(SequentialSampler(data(37)), 8, drop_last=False)
    assert sizes_of(DataLoader(data(37), batch_sampler=own)) is None
    training = Training(
        workload(model=nn.Sequential(nn.Linear(6, 3)), train_data=DataLoader(Stream(), 8)), device="cpu"
    )
    losses(training, 3)
    assert training.samples == 20


def test_tools_that_wrap_the_parts_of_a_step_see_each_step() -> None:
    training = Training(workload(), device="cpu")
    calls: list[str] = []
    backward, group = training.plain_step.backward, training.batch_iterator.group
    training.plain_step.backward = lambda loss: (calls.append("backward"), backward(loss))[1]
    training.batch_iterator.group = lambda: (calls.append("data"), group())[1]  # type: ignore[method-assign]
    run_block(training, lambda steps, _: steps >= 10)
    assert calls.count("backward") == 10
    assert calls.count("data") == 10


def test_the_stages_of_a_step_alone_are_those_of_the_step() -> None:
    setup, model = Setup().with_batch(size=4, accumulation=2), net(dropout=0.0)
    whole, apart = (
        Training(workload(model=copy.deepcopy(model), clip_grad_norm=0.5), setup, device="cpu") for _ in range(2)
    )
    expected = whole.step(whole.next())
    micro_batches = apart.next()
    total = 0.0
    for batch in micro_batches:
        loss = apart.forward(batch) / 2
        apart.backward(loss)
        total += loss.item()
    apart.update()
    assert total == pytest.approx(expected.item())
    for one, two in zip(whole.model.parameters(), apart.model.parameters(), strict=True):
        assert torch.equal(one, two)
        assert two.grad is None
    assert apart.steps == apart.samples == 0


def test_a_whole_step_on_a_held_batch_moves_weights_and_counts_nothing() -> None:
    training = Training(workload(), Setup().with_batch(learning_rate_factor=2.0, warmup_steps=5), device="cpu")
    held, before = training.next(), [p.clone() for p in training.model.parameters()]
    for _ in range(3):
        assert torch.isfinite(training.whole_step(held))
    assert not all(torch.equal(p, q) for p, q in zip(before, training.model.parameters(), strict=True))
    assert (training.steps, training.schedule.steps) == (0, 0)


def test_a_batch_iterator_goes_on_after_it_was_closed_and_raises_where_an_epoch_is_empty() -> None:
    training = Training(workload(), device="cpu")
    losses(training, 2)
    training.close()
    losses(training, 2)
    empty = Training(workload(train_data=DataLoader(data(4), 8, drop_last=True)), device="cpu")
    with pytest.raises(WorkloadError, match="gave no batch in epoch 0"):
        empty.next()
