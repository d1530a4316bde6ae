"""Listening at torch's own torch hooks: classes and functions that every training goes through.

Only classes and modules are patched, never what a user may pickle or copy: the root model's calls are timed through
``_compiled_call_impl``, which a module leaves out when it is saved."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from autoopt.benchmark.contents import samples_of
from autoopt.errors import WorkloadError
from autoopt.script.frames import model_place
from autoopt.script.hook.seeds import in_place_of
from autoopt.script.loaders import LoaderHook, Roles, Watcher
from autoopt.script.session import Session

_MOST_UNHELD = 200
_MOST_ROOTLESS = 20
"""Calls of a model without an optimizer or a backward pass, and steps of one without such calls, after which a script
is refused."""
SETTLED = 3
"""Training steps after which every root model has been called, as a rule; from then on no other call is examined."""


def period_of(order: Sequence[int]) -> tuple[int, ...]:
    """The shortest sequence whose repetition is this order of steps; the last turn may be broken off.

    Args:
        order: which optimizer stepped, one after another.

    Returns:
        One turn; each optimizer once, in the order of their first steps, where the order does not repeat.
    """
    for length in range(1, len(order) // 2 + 1):  # two turns must be seen
        if all(order[index] == order[index - length] for index in range(length, len(order))):
            return tuple(order[:length])
    return tuple(dict.fromkeys(order))


def anchor_of(period: Sequence[int]) -> int | None:
    """The optimizer whose step ends a training step: the rarest in a turn, of equally rare ones the last.

    So a turn that is not always of the same length (a critic that is trained more often at first) still has one end.
    """
    if not period:
        return None
    least = min(period.count(each) for each in period)
    return next(each for each in reversed(period) if period.count(each) == least)


class Passes:
    """Backward passes between the steps of optimizers, by the line that asks for them."""

    def __init__(self) -> None:
        self._since: Counter[Hashable] = Counter()
        self._within = False
        self._added_up: list[int] = []

    def backward(self, line: Hashable, *, within_step: bool = False) -> None:
        """A pass; ``within_step``: an optimizer asks for it in its step, as often as it likes."""
        self._within = self._within or within_step
        if not within_step:
            self._since[line] += 1

    def stepped(self) -> None:
        """An optimizer has stepped; one that steps on the gradients of another's passes adds up none of its own."""
        added_up = max(self._since.values(), default=0) + self._within
        if added_up:
            self._added_up.append(added_up)
        self._since.clear()
        self._within = False

    @property
    def accumulation(self) -> float:
        """How often the same line has run for an optimizer's step, on the mean; losses of two lines are two terms."""
        return sum(self._added_up) / len(self._added_up) if self._added_up else 1


@dataclass(frozen=True)
class Listening:
    """What stands for a module's call. A copy of the module is called as it is, also one of a class that copies all of
    its attributes, as Lightning's does: else the copy's call would be that of the module it was made of."""

    call: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def __reduce__(self) -> Any:
        return type(None), ()


def is_compiled(module: nn.Module) -> bool:
    """Whether the script has compiled a module, around it or in its place."""
    in_place = getattr(module, "_compiled_call_impl", None)
    return type(module).__name__ == "OptimizedModule" or hasattr(in_place, "_torchdynamo_orig_callable")


def parts_of(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that a model's own methods call, those in lists and dicts included."""
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from parts_of(child)
        else:
            yield child


class UpdatesByHand(Optimizer):
    """Stands for the lines of a script that update weights by themselves: its step is the end of theirs."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(list(parameters), {})

    def step(self, closure: Any = None) -> Any:
        """Changes nothing: they have."""


class TorchHooks:
    """All torch hooks of one process.

    Args:
        period: the optimizers that take turns in a training step, by the order in which they are made; where it is
            empty, each one's step ends one.

    Attributes:
        roles: which loaders serve the training.
        loaders: where loaders are made and read.
        roots: models in training, in the order in which they were first called.
        optimizers: in the order in which they were made.
        within_step: an optimizer's step with a closure is under way.
        trains_in_eval: whether models train in evaluation mode; else one that is called so with gradients on counts as
            training once an optimizer has stepped and no other model was called.
        precision: entered as a root's training call begins, left before gradients are computed.
        evaluating: makes a root's call outside of training, in place of the call itself.
        saving: saves a checkpoint in place of ``torch.save``, which it gets first.
    """

    def __init__(self, session: Session, *, period: tuple[int, ...] = ()) -> None:
        self.session = session
        self.watchers: list[Watcher] = []
        self._period, self._anchor = period, anchor_of(period)
        self._later: list[Optimizer] = []
        self._settled = SETTLED
        self._looking: Any = None
        self.roots: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.roles = Roles(lambda: self.trains_in_eval or not self.roots or any(root.training for root in self.roots))
        self.loaders = LoaderHook(session, self.roles, self.watchers)
        self.precision: Any = None
        self.evaluating: Callable[..., Any] | None = None
        self.saving: Callable[..., Any] | None = None
        self.trains_in_eval = False
        self._in_eval: list[nn.Module] = []
        self._unheld = self._rootless = self._unheld_passes = 0
        self._unheld_models: list[nn.Module] = []
        self._updates: UpdatesByHand | None = None
        self._update_ends = False  # with whatever comes next
        self._scale: Any = None  # of a loss whose gradients have not been computed yet
        self._in_scaler = self._nested = self._saves_now = False
        self._closures = False
        self.within_step = False
        self._before_step: Any = None
        self._within = False
        self._own = 0

    def install(self) -> None:
        """Puts the listeners in place. Called once, when torch has been imported."""
        self.loaders.install()
        self._modules()
        self._backwards()
        self._optimizers()
        self._scaler(torch.amp.GradScaler)
        self._saves()

    # models

    def _modules(self) -> None:
        plain, hooks = nn.Module.__call__, self

        @in_place_of(nn.Module, "__call__")
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # torch.compile(model) compiles this function in place of its own
                return plain(self, *args, **kwargs)
            # what is called within is no root: it is not examined
            nn.Module.__call__ = plain  # type: ignore[method-assign]
            try:
                hooks._outermost(self, args, kwargs)
                return plain(self, *args, **kwargs)
            finally:
                if hooks.session.steps < hooks._settled:
                    nn.Module.__call__ = call  # type: ignore[method-assign]

        self._looking = call

    def _outermost(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A module is called from outside of any other: a root where an optimizer holds some of its parameters."""
        if any(module is root for root in self.roots) or self.session.standing:
            return
        if self.optimizers and not self._trained_by(module):
            for watcher in self.watchers:
                watcher.frozen_called(module, args, kwargs)
        if not torch.is_grad_enabled():
            if not module.training:
                self.roles.evaluated()
                if not self.roots and self._trained_by(module):  # one that has not been trained yet
                    for watcher in self.watchers:
                        watcher.evaluated_first(module)
            return
        if not self._is_held(module):
            return
        if module.training or self.trains_in_eval:
            self._root(module)
            return
        self.roles.evaluated()
        if not any(module is other for other in self._in_eval):
            self._in_eval.append(module)

    def _is_held(self, module: nn.Module) -> bool:
        if not self.optimizers and any(p.requires_grad for p in module.parameters()):
            self._unheld += 1
            if all(module is not known for known in self._unheld_models):
                self._unheld_models.append(module)
            if self._unheld > _MOST_UNHELD:
                raise WorkloadError(
                    f"a model was called {_MOST_UNHELD} times in training, and neither was an optimizer of torch made "
                    "nor backward() called: the end of a step cannot be seen",
                    hint="let a torch.optim.Optimizer make the updates, or describe the run with build()",
                )
        return self._trained_by(module)

    def _trained_by(self, module: nn.Module) -> bool:
        """Whether an optimizer holds some of a module's parameters."""
        wanted = {id(p) for p in module.parameters() if p.requires_grad}
        return any(id(p) in wanted for each in self.optimizers for group in each.param_groups for p in group["params"])

    def _root(self, module: nn.Module) -> None:
        if not self.session.timed:
            self.session.train_on(next(p for p in module.parameters() if p.requires_grad).device)
        self.roots.append(module)
        if self.session.device.tensors is not None:
            self.session.device.tensors.add(list(module.parameters()))
        with self.session.stands():  # what is made for it is not the script's
            for watcher in self.watchers:
                watcher.root_found(module)
        within = module.module if isinstance(module, DistributedDataParallel) else None
        if within is not None and module._compiled_call_impl is None:  # compiled code is not to see the listening
            self._time(within)  # it is evaluated by itself, as a rule
        compiled = any(map(is_compiled, module.modules()))
        self._time(module)
        if module.training and not compiled:
            for part in parts_of(within or module):
                if part._compiled_call_impl is None:
                    self._listen_to_part(part, module)

    def _time(self, module: nn.Module) -> None:
        inner: Any = module._compiled_call_impl or module._call_impl
        session, hooks, always = self.session, self, not module.training

        def call(*args: Any, **kwargs: Any) -> Any:
            if hooks._within or session.standing:  # a root within a root, or autoopt's own call
                return inner(*args, **kwargs)
            hooks._updated()
            training = torch.is_grad_enabled() and (module.training or always)
            if training:
                hooks._trains(args, kwargs)
            for watcher in hooks.watchers:
                watcher.forward(module, args, kwargs, training)
            if not training:
                return hooks._evaluates(module, inner, args, kwargs)
            output = hooks._alone(inner, *args, **kwargs)
            session.mark("forward")
            for watcher in hooks.watchers:
                watcher.forward_done(module, output)
            return output

        module._compiled_call_impl = Listening(call)

    def _listen_to_part(self, part: nn.Module, root: nn.Module) -> None:
        """A model that is evaluated by a method of its own, such as ``encode``, is not called: its parts are."""
        inner: Any = part._call_impl
        session, hooks = self.session, self

        def call(*args: Any, **kwargs: Any) -> Any:
            if root.training or hooks._within or session.standing:
                return inner(*args, **kwargs)
            for watcher in hooks.watchers:
                watcher.forward(root, args, kwargs, False)
            return hooks._evaluates(root, inner, args, kwargs)

        part._compiled_call_impl = Listening(call)

    def _trains(self, args: Any, kwargs: Any) -> None:
        roles = self.roles
        self.loaders.trains()
        samples = roles.trained()
        if roles.known:
            self.session.count(samples)
        else:  # a batch of no loader; what the calls before one backward pass get is one
            self._own = max(self._own, samples_of(args) or samples_of(kwargs) or 0)
        if self.within_step:
            self.session.mark("optimizer")
        self.session.forward_begin(prepared=not self.loaders.given and not roles.known)
        if self.precision is not None:
            self.precision.enter()

    def _count_own(self) -> None:
        self.session.count(self._own)
        self._own = 0

    def _evaluates(self, module: nn.Module, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.roles.evaluated()
        if self.roles.known or not module.training:
            self.session.aside("evaluate")
            under_way = self.session.evaluating
            if under_way is not None:
                under_way.called()
                if under_way.calls == 1:  # how it calls the model, by its first call
                    under_way.gradients, under_way.training_mode = torch.is_grad_enabled(), module.training
                    if (found := model_place()) is not None:
                        under_way.file, under_way.line = found.place.file, found.place.line
                self.loaders.evaluates()
        else:  # without a loader: what it is called for in training mode is trained on, such as a policy's moves
            self.session.train_again()
        call = inner if self.evaluating is None else partial(self.evaluating, inner)
        return self._alone(call, *args, **kwargs)

    def _alone(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A call in which neither the models nor their parts are listened to."""
        self._within = True
        try:
            return call(*args, **kwargs)
        finally:
            self._within = False

    # gradients

    def _backwards(self) -> None:
        plain, hooks, session = torch.autograd.backward, self, self.session

        @in_place_of(torch.autograd, "backward")
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if hooks._own and not hooks.within_step:  # a closure's passes are all on the same batch
                hooks._count_own()
            if session.standing:
                return plain(tensors, *args, **kwargs)
            if hooks.precision is not None:
                hooks.precision.leave()
            root = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
            for watcher in hooks.watchers:
                watcher.backward(root)
            session.mark("forward")
            done = plain(tensors, *args, **kwargs)
            session.mark("backward")
            if root is not None and root.numel() == 1:
                if hooks._scale is not None:  # it counts as it was before a scaler had it
                    scale, hooks._scale = hooks._scale, None
                    root = root.detach() / scale.to(root.device)
                session.loss(root)
            if not hooks.optimizers:
                hooks._updates_itself()
            hooks._update_ends = hooks._updates is not None
            return done

    def _updates_itself(self) -> None:
        """A backward pass, and no optimizer: after some, lines of the script's own make use of the gradients."""
        self._unheld_passes += bool(self._unheld_models)
        if self._unheld_passes < SETTLED:
            return
        parameters = {p: None for model in self._unheld_models for p in model.parameters() if p.grad is not None}
        if parameters:
            self._updates, self.session.between_steps = UpdatesByHand(parameters), self._updated
            plain, hooks = nn.Module.zero_grad, self

            @in_place_of(nn.Module, "zero_grad")
            def zero_grad(self: nn.Module, *args: Any, **kwargs: Any) -> None:
                hooks._updated()
                plain(self, *args, **kwargs)

    def _updated(self) -> None:
        """Something else begins: the lines that update weights have ended."""
        if self._update_ends and self._updates is not None and not self.session.standing:
            self._update_ends = False
            self._updates.step()

    # optimizers

    def _optimizers(self) -> None:
        made, hooks = Optimizer.__init__, self

        @in_place_of(Optimizer, "__init__")
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            if hooks.session.standing:
                return
            hooks.optimizers.append(self)
            hooks._step_once(type(self))
            if hooks._before_step is None:  # reads the first few steps of each; and all, where one takes a closure
                hooks._before_step = register_optimizer_step_pre_hook(hooks._optimizer_steps)
            for watcher in hooks.watchers:
                watcher.optimizer_made(self)

        register_optimizer_step_post_hook(self._optimizer_stepped)

    def _step_once(self, kind: Any) -> None:
        """A class whose step calls that of the class below, both of which torch listens to, steps once."""
        own = [each for each in kind.__mro__ if "step" in each.__dict__ and each is not Optimizer]
        plain = kind.step
        if len(own) < 2 or hasattr(plain, "steps_once"):
            return
        hooks = self

        @in_place_of(kind, "step")
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if hooks._in_scaler or hooks._nested:
                return plain(self, *args, **kwargs)
            hooks._nested = True
            try:
                result = plain(self, *args, **kwargs)
            finally:
                hooks._nested = False
            hooks._optimizer_stepped(self, (), {})
            return result

        kind.step.steps_once = True

    def _optimizer_steps(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.within_step = bool(args or kwargs)  # a closure, which calls the models within the step
        self._closures = self._closures or self.within_step

    def _optimizer_stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._nested:
            return
        if self._own:
            self._count_own()
        self.within_step = False
        if self._before_step is not None and self.session.steps >= SETTLED and not self._closures:
            self._before_step.remove()
            self._before_step = None
        if not self._in_scaler:
            self._after_step(optimizer)

    def _scaler(self, scaler: Any) -> None:
        plain, scales, hooks = scaler.step, scaler.scale, self

        @in_place_of(scaler, "scale")
        def scale(self: Any, outputs: Any) -> Any:
            scaled = scales(self, outputs)
            hooks._scale = self._scale if self.is_enabled() else None
            return scaled

        @in_place_of(scaler, "step")
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            # a step that is skipped for gradients that are not finite counts: its work was done
            hooks._in_scaler = True
            try:
                result = plain(self, optimizer, *args, **kwargs)
            finally:
                hooks._in_scaler = False
            hooks._after_step(getattr(optimizer, "optimizer", optimizer))
            return result

    def _after_step(self, optimizer: Optimizer) -> None:
        if self.session.standing:
            return
        for watcher in self.watchers:
            watcher.stepped(optimizer)
        if self.roots:
            if self._ends(optimizer):
                self.roles.step_ended()
                self.loaders.given = False
                self.session.step_end()
            return
        # no model was seen in training: there is one in evaluation mode, or none at all
        held = [module for module in self._in_eval if self._is_held(module)]
        self.trains_in_eval = bool(held)
        for module in held:
            self._root(module)
        self._rootless += 1
        if self._rootless > _MOST_ROOTLESS:
            raise WorkloadError(
                f"the optimizer has stepped {_MOST_ROOTLESS} times, and no model that holds its parameters was called "
                "with gradients on",
                hint="call the model itself, as in model(x), rather than one of its methods, or describe the run with "
                "build()",
            )

    def _ends(self, optimizer: Optimizer) -> bool:
        """Whether a training step ends with this optimizer's.

        Of several that take turns one does (the anchor). One that was not among them is of a later loop, where the
        anchor may never step again.
        """
        if self._anchor is None or self._anchor >= len(self.optimizers):
            return True
        if optimizer is self.optimizers[self._anchor]:
            return True
        if any(optimizer is self.optimizers[each] for each in self._period if each < len(self.optimizers)):
            return False
        if all(optimizer is not known for known in self._later):  # its models are looked for as the first ones were
            self._later.append(optimizer)
            self._settled = self.session.steps + 1 + SETTLED
            nn.Module.__call__ = self._looking  # type: ignore[method-assign]
        return True

    # checkpoints

    def _saves(self) -> None:
        plain, hooks, session = torch.save, self, self.session

        @in_place_of(torch, "save")
        def save(*args: Any, **kwargs: Any) -> Any:
            aside = hooks._saves_now or threading.current_thread() is not threading.main_thread()
            if session.standing or aside:
                return plain(*args, **kwargs)
            hooks._updated()
            hooks._saves_now = True
            begun = session.aside("checkpoint")
            for watcher in hooks.watchers:
                watcher.saved(*args)
            began = perf_counter()
            try:
                return hooks.saving(plain, *args, **kwargs) if hooks.saving else plain(*args, **kwargs)
            finally:
                hooks._saves_now = False
                if begun:
                    session.train_again()
                elif session.evaluating is not None:
                    session.saved(perf_counter() - began)
