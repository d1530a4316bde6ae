"""Changes that a running process can take on and put off: another way to step, over the same weights.

What is switched is looked at between two of the process's own blocks, so that what makes one process faster than
another cancels. The process is thrown away afterwards: its place in the data has moved, and its allocator's cache
and its kernels are no longer those of a process that was never switched.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import Any

import torch

from autoopt.benchmark.flags import matmul_precision
from autoopt.benchmark.kept_state import KeptState
from autoopt.benchmark.losses import transformed_loss
from autoopt.benchmark.memory_layout import laid_out, layout_alone
from autoopt.benchmark.optimizer import make_optimizer
from autoopt.benchmark.training import Training
from autoopt.benchmark.transfer import mover
from autoopt.errors import WorkloadError
from autoopt.setup import Setup

PARTS = frozenset({"precision", "transfer", "flags", "loss", "optimizer", "model"})
"""Parts of a setup that can be switched; of the model how its tensors lie in memory alone. Not those of the loader (its
workers live), of the batch (another training), and of whole steps (a recorded graph has one way to step)."""
FLAGS = frozenset({"threads"})
"""Switches of the process among them. Not ``cudnn_benchmark``: torch looks up by its shape how a convolution is run, so
that one that was met before keeps what was chosen then. Not ``affinity``: threads that live keep their cores.
Not ``keep_freed_memory``: memory that was taken from the system stays."""

_OF_STEP = ("setup", "autocast", "loss", "scaler", "plain_step", "one_step", "steps", "samples")


def unswitchable(before: Setup, after: Setup, switched: frozenset[str] = PARTS) -> str:
    """Why a process of one setup cannot take on another; empty where it can.

    Args:
        switched: the parts that can be switched.
    """
    parts = sorted(field.name for field in fields(Setup) if getattr(before, field.name) != getattr(after, field.name))
    fixed = [part for part in parts if part not in switched]
    if fixed:
        return f"the {fixed[0]} of a running process cannot be switched"
    if before.compile is not None:
        return "what is compiled would be compiled again"
    if before.step:
        return "a step that is wrapped as a whole has no parts to be switched"
    if before.distributed.processes > 1:
        return "processes that train together are not switched"
    if before.optimizer != after.optimizer[: len(before.optimizer)]:
        return "what an optimizer would be without its change is not known"
    if before.model != after.model[: len(before.model)]:
        return "what a model would be without its change is not known"
    if not all(map(layout_alone, after.model[len(before.model) :])):
        return "the model of a running process cannot be switched, but for how its tensors lie in memory"
    return _flags(before, after) or _precision(before, after)


def _flags(before: Setup, after: Setup) -> str:
    for name in sorted({*before.flags, *after.flags}):
        if before.flags.get(name) == after.flags.get(name):
            continue
        if name not in FLAGS:
            return f"the flag {name} of a running process cannot be switched"
        if after.flags.get(name) is None:
            return f"what {name} would be without its flag is not known"
    return ""


def _precision(before: Setup, after: Setup) -> str:
    if before.precision.matmul is not None and after.precision.matmul is None:
        return "what the matmul precision would be without the change is not known"
    return ""


class Switching:
    """Puts setups on a live training, one at a time, and takes them off.

    Whatever is trained under a setup, failures and losses that are not finite included, leaves weights, buffers, the
    optimizer, the schedule, the scaler, the generators and the counts of steps as they were; the data have moved on.

    Args:
        training: assembled, and with steps behind it, so that there is a state of the optimizer.

    Attributes:
        kept_up: keys of plans that did not wait for batches in their last block.

    Raises:
        WorkloadError: there is no room to keep its state beside it.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._setup = training.setup
        self._kept = KeptState(training.model, [training.optimizer], training.device.torch)
        self._schedule = training.schedule.state_dict()
        self._scaler = training.scaler.state_dict() if training.scaler is not None else None
        self._own = {name: getattr(training, name) for name in _OF_STEP}
        self.kept_up = set[str]()

    @contextmanager
    def to(self, setup: Setup) -> Iterator[Training]:
        """The training under another setup, or under its own; afterwards it is as it was.

        Raises:
            WorkloadError: the process cannot take it on.
        """
        reason = unswitchable(self._setup, setup)
        if reason:
            raise WorkloadError(reason)
        training, layouts = self._training, setup.model[len(self._setup.model) :]
        with process_as(self._setup, setup):
            try:
                with laid_out([training.model], [training.optimizer], layouts):
                    self._put_on(setup)
                    yield training
            finally:
                self._put_back()

    def _put_on(self, setup: Setup) -> None:
        training, now = self._training, self._setup
        if setup.transfer != now.transfer:
            self._move_by(setup)
        if setup.optimizer != now.optimizer:
            take_on(training.optimizer, *(self._optimizer(each) for each in (now, setup)))
        if setup.loss != now.loss:
            training.loss = transformed_loss(training.workload.loss, setup.loss, training.device.torch)
        if setup != now:
            training.step_as(setup)

    def _optimizer(self, setup: Setup) -> Any:
        """An optimizer of a setup, without state."""
        return make_optimizer(self._training.factory, self._training.model, setup.optimizer)

    def _move_by(self, setup: Setup) -> None:
        device, how = self._training.device.torch, setup.transfer
        move = mover(device, non_blocking=how.non_blocking)
        self._training.batch_iterator.move_by(move, how.prefetch, device)

    def _put_back(self) -> None:
        training = self._training
        if training.setup.transfer != self._setup.transfer:
            self._move_by(self._setup)
        for name, value in self._own.items():
            setattr(training, name, value)
        if self._scaler is not None and training.scaler is not None:
            training.scaler.load_state_dict(self._scaler)
        training.schedule.load_state_dict(self._schedule)
        self._kept.put_back()  # last: a scheduler that loads its state sets learning rates


@contextmanager
def process_as(before: Setup, after: Setup) -> Iterator[None]:
    """Switches of the process as another setup has them, then as they were: threads, products, garbage collection."""
    with ExitStack() as stack:
        stack.enter_context(_kept_collection())
        threads = after.flags.get("threads")
        if threads != before.flags.get("threads"):
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(int(threads or torch.get_num_threads()))
        if after.precision.matmul != before.precision.matmul:
            stack.enter_context(matmul_precision(after.precision.matmul))
        yield


@contextmanager
def _kept_collection() -> Iterator[None]:
    """Python's collector afterwards as it was before."""
    threshold, frozen, enabled = gc.get_threshold(), gc.get_freeze_count(), gc.isenabled()
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        (gc.enable if enabled else gc.disable)()
        if not frozen and gc.get_freeze_count():
            gc.unfreeze()


def take_on(optimizer: Any, before: Any, after: Any) -> None:
    """Makes an optimizer step as another one, in place, since a schedule holds on to it.

    What a schedule has set since (learning rate, momentum) stays; the state becomes what the other one would load.

    Args:
        before, after: as its setup made it and as the other setup makes it, both over its parameters and without state.

    Raises:
        WorkloadError: the other one is of another class, or groups the parameters otherwise.
    """
    if type(after) is not type(optimizer):
        raise WorkloadError(f"a running {type(optimizer).__name__} cannot become a {type(after).__name__}")
    groups = list(zip(optimizer.param_groups, before.param_groups, after.param_groups, strict=False))
    if any([*map(id, own["params"])] != [*map(id, new["params"])] for own, _, new in groups) or len(groups) != len(
        after.param_groups
    ):
        raise WorkloadError(f"this {type(optimizer).__name__} groups the parameters otherwise")
    for own, old, new in groups:
        own.update({name: value for name, value in new.items() if name != "params" and not _equal(value, old[name])})
    state = optimizer.state_dict()["state"]
    after.load_state_dict({"state": state, "param_groups": after.state_dict()["param_groups"]})
    kept = {"param_groups": optimizer.param_groups}
    if "step" in optimizer.__dict__:  # a schedule counts its calls
        kept["step"] = optimizer.__dict__["step"]
    optimizer.__dict__.update({**after.__dict__, **kept})


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other or (type(one) is type(other) and torch.equal(one, other))
    return bool(one == other)
