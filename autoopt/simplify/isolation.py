"""Measuring in isolation: what a step changes is put back, and what cannot be put back runs in a forked child."""

from __future__ import annotations

import copy
import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from autoopt.benchmark.live import LiveTraining
from autoopt.benchmark.seeding import random_state, set_random_state
from autoopt.records import JsonDict


class ChildFailed(Exception):  # noqa: N818
    """The forked measurement raised, died or took too long; the message says which."""


def can_fork() -> bool:
    return "fork" in multiprocessing.get_all_start_methods()


def in_child(measure: Callable[[], JsonDict], timeout: float) -> JsonDict:
    """Runs ``measure`` in a forked child with one compute thread and hands back its document.

    Raises:
        ChildFailed: it raised, died, or took longer than ``timeout`` seconds; it is gone then.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(measure, theirs), daemon=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads, as a DataLoader does it
        process.start()
    theirs.close()
    try:
        return _answer(ours, timeout)
    finally:
        ours.close()
        process.join(2.0)
        if process.is_alive():
            process.kill()
            process.join()


def _answer(connection: Connection, timeout: float) -> JsonDict:
    if not connection.poll(timeout):
        raise ChildFailed(f"took longer than {timeout:.0f} s")
    try:
        kind, value = connection.recv()
    except EOFError:
        raise ChildFailed("its process died") from None
    if kind == "error":
        raise ChildFailed(value)
    return dict(value)


def _child(measure: Callable[[], JsonDict], connection: Connection) -> None:
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork; a loader's worker does the same
    try:
        answer: tuple[str, Any] = ("answer", measure())
    except Exception as error:
        answer = ("error", f"{type(error).__name__}: {error}".split("\n")[0])
    connection.send(answer)
    connection.close()


@contextmanager
def restored(training: LiveTraining) -> Iterator[None]:
    """Everything that a training step changes is put back when the block ends, however it ends.

    Weights, buffers, gradients, the states of optimizer, scaler and schedule, modes, threads, random numbers; the
    training's clock forgets what was measured meanwhile.
    """
    saved = _Saved(training)
    try:
        yield
    finally:
        saved.put_back()


class _Saved:
    def __init__(self, training: LiveTraining) -> None:
        self.training = training
        model, optimizer = training.model, training.optimizer
        aside = _aside(training)
        self.tensors = [(tensor, aside(tensor)) for tensor in _tensors(model)]
        self.gradients = [(p, None if p.grad is None else aside(p.grad)) for p in model.parameters()]
        self.modes = [(module, module.training) for module in model.modules()]
        self.optimizer = _optimizer_state(optimizer, aside)
        self.scaler = copy.deepcopy(training.scaler.state_dict()) if training.scaler else None
        self.schedule = copy.deepcopy(training.schedule.state_dict())
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.threads = torch.get_num_threads()
        self.random = random_state()

    def put_back(self) -> None:
        training = self.training
        with torch.no_grad():
            for tensor, value in self.tensors:
                tensor.copy_(value)
        for parameter, gradient in self.gradients:
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        for module, mode in self.modes:
            module.training = mode
        training.optimizer.load_state_dict(self.optimizer)
        training.schedule.load_state_dict(self.schedule)
        for group, rate in zip(training.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate
        if training.scaler is not None and self.scaler is not None:
            training.scaler.load_state_dict(self.scaler)
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        set_random_state(self.random)
        training.clock.start()


def _aside(training: LiveTraining) -> Callable[[torch.Tensor], torch.Tensor]:
    """Where copies are kept: on the device while it has twice the room for them, else on the host."""
    if training.device.kind != "cuda":
        return lambda tensor: tensor.detach().clone()
    state = [leaf for leaf in tree_leaves(training.optimizer.state_dict()) if isinstance(leaf, torch.Tensor)]
    gradients = [p.grad for p in training.model.parameters() if p.grad is not None]
    size = sum(t.numel() * t.element_size() for t in [*_tensors(training.model), *gradients, *state])
    if 2 * size < torch.cuda.mem_get_info(training.device.torch)[0]:
        return lambda tensor: tensor.detach().clone()
    return lambda tensor: tensor.detach().to("cpu", copy=True)


def _optimizer_state(optimizer: torch.optim.Optimizer, aside: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The optimizer's state with its tensors set aside, everything else copied."""
    leaves, structure = tree_flatten(optimizer.state_dict())
    kept = [aside(leaf) if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf) for leaf in leaves]
    return tree_unflatten(kept, structure)


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
