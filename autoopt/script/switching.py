"""Changes that a running script takes on and puts off, in its main thread, while it stands at a step's end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from autoopt.benchmark.kept_state import KeptState
from autoopt.benchmark.memory_layout import laid_out
from autoopt.benchmark.optimizer import make_optimizer, users_factory
from autoopt.benchmark.switching import process_as, take_on, unswitchable
from autoopt.errors import WorkloadError
from autoopt.script.applying import Applying
from autoopt.script.process import Script
from autoopt.setup import Setup

PARTS = frozenset({"precision", "flags", "optimizer", "model"})
"""Parts of a setup that can be switched in a script, whose own lines compute the loss and move its batches."""


class ScriptSwitching:
    """See ``autoopt.benchmark.switching.Switching``; what a script counts and schedules by itself moves on.

    Args:
        script: which stands at a step's end.
        training: its ``ScriptTraining``.

    Raises:
        WorkloadError: there is no room to keep its state, or it trains in several processes.
    """

    def __init__(self, script: Script, training: Any) -> None:
        if training.group.size > 1:
            raise WorkloadError("processes that train together are not switched")
        self._script, self._training, self._setup = script, training, training.setup
        self._main = script.session.in_main
        self.kept_up = set[str]()
        self._kept = self._main(lambda: KeptState(training.model, training.optimizers, training.device.torch))

    @contextmanager
    def to(self, setup: Setup) -> Iterator[None]:
        """The script's steps under another setup, or under its own; its weights are then what they were.

        Raises:
            WorkloadError: the process cannot take it on.
        """
        reason = unswitchable(self._setup, setup, PARTS)
        if reason:
            raise WorkloadError(reason)
        stack = ExitStack()
        try:
            self._main(lambda: self._put_on(setup, stack))
            yield
        finally:
            self._main(lambda: self._put_back(stack))

    def _put_on(self, setup: Setup, stack: ExitStack) -> None:
        stack.enter_context(process_as(self._setup, setup))
        layouts, training = setup.model[len(self._setup.model) :], self._training
        stack.enter_context(laid_out(training.roots, training.optimizers, layouts))
        if setup.optimizer != self._setup.optimizer:
            for optimizer in self._training.optimizers:
                take_on(optimizer, self._made(optimizer, self._setup), self._made(optimizer, setup))
        if setup.precision.dtype != self._setup.precision.dtype:
            joints = self._script.joints
            stack.callback(setattr, joints, "around_forward", joints.around_forward)
            stack.callback(setattr, joints, "before_backward", joints.before_backward)
            Applying(joints, setup, self._script.command.sites, self._script.spec.seed).autocast()

    def _made(self, optimizer: Any, setup: Setup) -> Any:
        """The script's optimizer as a setup makes it, without state."""
        model = self._training.model
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        return make_optimizer(users_factory(optimizer, model, names), model, setup.optimizer)

    def _put_back(self, stack: ExitStack) -> None:
        stack.close()
        self._kept.put_back()
