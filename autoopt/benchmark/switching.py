"""Changes that a running process can take on and put off: another way to step, over the same weights.

What is switched is examined between two of the process's own blocks, so that what makes one process faster than
another cancels. The process is thrown away afterwards: its place in the data has moved, and its allocator's cache
and its kernels are no longer those of a process that was never switched."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from autoopt.benchmark.cputime import memory
from autoopt.benchmark.flags import matmul_precision
from autoopt.benchmark.live import LiveTraining
from autoopt.benchmark.optimizer import become
from autoopt.benchmark.seeding import random_state, set_random_state
from autoopt.errors import WorkloadError
from autoopt.setup import Setup, Transform

ROOM = 4
"""Times the bytes of the state that must be free for it to stay: what runs next to it needs room, too."""
PARTS = frozenset({"precision", "transfer", "flags", "loss", "optimizer", "model"})
"""Parts of a setup that can be switched; of the model how its tensors lie in memory alone. Not those of the loader (its
workers live), of the batch (another training), and of whole steps (a recorded graph has one way to step)."""
SCRIPT_PARTS = PARTS - {"transfer", "loss"}
"""Those of a script, whose own lines compute the loss and move its batches."""
FLAGS = frozenset({"threads"})
"""Switches of the process among them. Not ``cudnn_benchmark``: torch looks up by its shape how a convolution is run, so
that one that was met before keeps what was chosen then. Not ``affinity``: threads that live keep their cores.
Not ``keep_freed_memory``: memory that was taken from the system stays."""


class KeptState:
    """Weights, buffers, optimizers and random generators as they are now.

    Args:
        optimizers: over them; what is in their groups besides is kept, too.
        room: times its bytes that must be free: on the device, else in the host's memory.

    Raises:
        WorkloadError: there is no room for it.
    """

    def __init__(self, model: nn.Module, optimizers: Iterable[Any], device: torch.device, room: int = ROOM) -> None:
        self._optimizers = list[tuple[Any, dict[str, Any], list[dict[str, Any]], dict[Any, dict[str, Any]]]]()
        held: list[Any] = [*model.parameters(), *model.buffers()]
        for optimizer in optimizers:
            groups = [dict(group) for group in optimizer.param_groups]
            states = {parameter: dict(state) for parameter, state in optimizer.state.items()}
            self._optimizers.append((optimizer, dict(optimizer.__dict__), groups, states))
            held += [value for group in groups for value in (*group["params"], *group.values())]
            held += [value for state in states.values() for value in state.values()]
        tensors = {id(t): t for t in held if isinstance(t, torch.Tensor)}
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        where = device
        if device.type != "cuda" or room * size >= torch.cuda.mem_get_info(device)[0]:
            where = torch.device("cpu")
            if room * size >= memory()[1]:
                raise WorkloadError(
                    f"there is no room to keep {size / 2**20:.0f} MiB more for a copy of the training's state"
                )
        with torch.no_grad():
            self._tensors = [(t, t.detach().to(where, copy=True)) for t in tensors.values()]
        self._random = random_state()

    def put_back(self) -> None:
        """Everything as it was, gradients gone."""
        with torch.no_grad():
            for tensor, value in self._tensors:
                tensor.copy_(value)
        for optimizer, attributes, groups, states in self._optimizers:
            for group, kept in zip(attributes["param_groups"], groups, strict=True):
                group.clear()
                group.update(kept)
                for parameter in group["params"]:
                    parameter.grad = None
            optimizer.__dict__.clear()
            optimizer.__dict__.update(attributes)
            optimizer.state.clear()
            for parameter, state in states.items():
                optimizer.state[parameter] = dict(state)
        set_random_state(self._random)


def layout_alone(transform: Transform) -> bool:
    """Whether a transform says of itself that it moves tensors, and replaces neither modules nor parameters."""
    return bool(getattr(transform, "layout_alone", False))


@contextmanager
def laid_out(roots: Iterable[nn.Module], optimizers: Iterable[Any], transforms: Sequence[Transform]) -> Iterator[None]:
    """Models under transforms of their layout, the optimizers' state next to it, and then the very tensors they had.

    What is trained in the meantime stays in the tensors of the other layout, which are dropped.

    Args:
        transforms: each ``fn(model) -> model``; empty: nothing is touched.

    Raises:
        WorkloadError: one of them replaces a module or a parameter, which nobody could take off again.
    """
    if not transforms:
        yield
        return
    roots = list(roots)
    parameters = [(p, p.data, p.grad) for root in roots for p in root.parameters()]
    buffers = [(module, dict(module._buffers)) for root in roots for module in root.modules()]
    states = [(state, dict(state)) for optimizer in optimizers for state in optimizer.state.values()]
    try:
        for root, transform in itertools.product(roots, transforms):
            before = [*map(id, root.modules()), *map(id, root.parameters())]
            same = transform(root) is root
            if not same or [*map(id, root.modules()), *map(id, root.parameters())] != before:
                raise WorkloadError(
                    f"{transform!r} does more than lay tensors out: a running process cannot take it off"
                )
        for optimizer in optimizers:  # its state in its parameters' layout, as it is where a process has started so
            for parameter, state in optimizer.state.items():
                for name, value in state.items():
                    if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                        like = torch.empty_like(parameter, dtype=value.dtype, device=value.device)
                        state[name] = like.copy_(value)
        for parameter, _, _ in parameters:
            parameter.grad = None
        yield
    finally:
        for parameter, data, gradient in parameters:
            parameter.grad = None  # it lies as the data do
            parameter.data, parameter.grad = data, gradient
        for module, kept in buffers:
            module._buffers.update(kept)
        for state, kept in states:
            state.update(kept)


def unswitchable(before: Setup, after: Setup, switched: frozenset[str] = PARTS) -> str:
    """Why a process of one setup cannot take on another; empty where it can."""
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
    for name in sorted({*before.flags, *after.flags}):
        if before.flags.get(name) == after.flags.get(name):
            continue
        if name not in FLAGS:
            return f"the flag {name} of a running process cannot be switched"
        if after.flags.get(name) is None:
            return f"what {name} would be without its flag is not known"
    if before.precision.matmul is not None and after.precision.matmul is None:
        return "what the matmul precision would be without the change is not known"
    return ""


class Switching:
    """Puts setups on a live training, one at a time, and takes them off.

    Whatever is trained under a setup, failures and losses that are not finite included, leaves weights, buffers, the
    optimizers, the generators, and of a ``build()`` the schedule, the scaler and the counts of steps as they were; the
    data have moved on, and so has what a script counts and schedules by itself.

    Args:
        training: with steps behind it, so that there is a state of the optimizer.

    Attributes:
        kept_up: keys of plans that did not wait for batches in their last block.

    Raises:
        WorkloadError: there is no room to keep its state next to it, or it trains in several processes.
    """

    def __init__(self, training: LiveTraining) -> None:
        if training.group.size > 1:
            raise WorkloadError("processes that train together are not switched")
        self._training, self._setup = training, training.setup
        self._place = training.place()
        self._kept = training.do(lambda: KeptState(training.model, training.optimizers, training.device.torch))
        self.kept_up = set[str]()

    @contextmanager
    def to(self, setup: Setup) -> Iterator[LiveTraining]:
        """The training under another setup, or under its own; afterwards it is as it was.

        Raises:
            WorkloadError: the process cannot take it on.
        """
        training, now, stack = self._training, self._setup, ExitStack()
        reason = unswitchable(now, setup, training.switches)
        if reason:
            raise WorkloadError(reason)

        def put_on() -> None:
            stack.enter_context(process_as(now, setup))
            stack.enter_context(laid_out(training.roots, training.optimizers, setup.model[len(now.model) :]))
            if setup.optimizer != now.optimizer:
                for optimizer in training.optimizers:
                    take_on(optimizer, *(training.fresh_optimizer(optimizer, each) for each in (now, setup)))
            stack.enter_context(training.stepping_as(setup))

        def put_back() -> None:
            stack.close()
            self._place()
            self._kept.put_back()  # last: a scheduler that loads its state sets learning rates

        try:
            training.do(put_on)
            yield training
        finally:
            training.do(put_back)


@contextmanager
def process_as(before: Setup, after: Setup) -> Iterator[None]:
    """Switches of the process as another setup has them, then as they were: threads, products, garbage collection."""
    threshold, frozen, enabled = gc.get_threshold(), gc.get_freeze_count(), gc.isenabled()
    threads, matmul = after.flags.get("threads"), after.precision.matmul
    present = torch.get_num_threads()
    try:
        if threads != before.flags.get("threads"):
            torch.set_num_threads(int(threads or present))
        with matmul_precision(matmul if matmul != before.precision.matmul else None):
            yield
    finally:
        if threads != before.flags.get("threads"):
            torch.set_num_threads(present)
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
    become(optimizer, after)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other or (type(one) is type(other) and torch.equal(one, other))
    return bool(one == other)
