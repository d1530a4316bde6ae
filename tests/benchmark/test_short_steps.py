"""Short steps: the loop leaves much out and is right: losses read otherwise, samples told by the loader."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, default_collate

from autoopt.benchmark.contents import Sizes, sizes_of
from autoopt.benchmark.losses import LossRecorder
from autoopt.benchmark.training import Training
from autoopt.benchmark.warmup import run_block
from autoopt.errors import WorkloadError
from autoopt.setup import Setup

sys.path.insert(0, str(Path(__file__).parent))

from small_training import data, losses, net, workload


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


def test_a_block_of_sampled_steps_has_the_losses_of_steps_by_hand() -> None:
    by_hand = losses(Training(workload(max_steps=100), device="cpu"), 60)
    training = Training(workload(max_steps=100), device="cpu")
    training.clock.every = 7
    block = run_block(training, lambda steps, _: steps >= 60)
    assert block.losses == pytest.approx(by_hand)
    assert block.samples == 60 * 8


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


def without_the_first(items: list[Any]) -> Any:
    return default_collate(items[1:])


def test_a_collate_function_that_leaves_samples_out_is_believed_over_the_loader() -> None:
    loader = DataLoader(data(40), 8, collate_fn=without_the_first)
    training = Training(workload(train_data=loader, max_steps=100), device="cpu")
    training.clock.every = 5
    losses(training, 50)
    assert training.samples == 50 * 7


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from data(20)


def test_only_a_plain_loader_tells_its_sizes() -> None:
    assert sizes_of(DataLoader(data(37), 8)) == Sizes(8, 4, 5)
    assert [Sizes(8, 4, 5).of(batch) for batch in (0, 3, 4)] == [8, 8, 5]
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


@pytest.mark.parametrize("by_stages", [False, True])
def test_tools_that_wrap_the_parts_of_a_step_see_each_step(by_stages: bool) -> None:
    training = Training(workload(), device="cpu")
    calls: list[str] = []
    backward, group = training.plain_step.backward, training.batch_iterator.group
    training.plain_step.backward = lambda loss: (calls.append("backward"), backward(loss))[1]
    training.batch_iterator.group = lambda: (calls.append("data"), group())[1]  # type: ignore[method-assign]
    if by_stages:
        training.step_by_stages()
    run_block(training, lambda steps, _: steps >= 10)
    assert calls.count("backward") == 10
    assert calls.count("data") == (10 if by_stages else 0)


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
