"""Watching a script train: every site with the user's file and line."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import perf_counter
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.nn import parameter as torch_parameters
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from autoopt.benchmark.compiling import is_torchs, repeated_blocks
from autoopt.benchmark.facts import plain_options
from autoopt.benchmark.libraries import is_users
from autoopt.benchmark.loader import collate_name
from autoopt.records import JsonDict, Place, Site, SiteKind, Sites
from autoopt.script.applying import stands_alone
from autoopt.script.frames import (
    Found,
    constructs,
    editable_place,
    folder,
    maker_place,
    model_place,
    names_of,
    place_of,
    user_place,
    users_frames,
)
from autoopt.script.frozen import FrozenModules
from autoopt.script.hook.seeds import in_place_of, when_imported
from autoopt.script.loaders import Watcher
from autoopt.script.torch_hooks import Passes, TorchHooks, UpdatesByHand, is_compiled, period_of
from autoopt.simplify.costly import ANOMALIES, CALLS

_LOADER_OPTIONS = (
    "batch_size",
    "num_workers",
    "pin_memory",
    "prefetch_factor",
    "persistent_workers",
    "drop_last",
    "timeout",
)
SAMPLED = 0.01
"""Seconds between two samples of a thread: a second of an evaluation shows a share of it within some percent."""
WAITS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__")
TRAINERS = {
    "transformers.training_args": ("TrainingArguments", "__post_init__"),
    "lightning.pytorch.trainer.trainer": ("Trainer", "__init__"),
    "pytorch_lightning.trainer.trainer": ("Trainer", "__init__"),
    "accelerate.accelerator": ("Accelerator", "__init__"),
}
"""Classes whose arguments decide how a library's own loop trains, by module, and what of each runs as one is made."""


@dataclass
class Seen:
    """One site while it is watched; its other fields are those of the site."""

    kind: SiteKind
    found: Found
    call: str = ""
    name: str = ""
    options: JsonDict = field(default_factory=dict)
    used: list[Place] = field(default_factory=list)
    callers: list[tuple[Place, ...]] = field(default_factory=list)
    count: int = 0
    seconds: float = 0.0
    calls: list[int] = field(default_factory=list)
    takes: tuple[str, ...] | None = None


def taken_by(made: Any) -> tuple[str, ...] | None:
    """Names of the arguments that the class of an object takes; None of torch's own, and where it takes any."""
    if type(made).__module__.startswith("torch."):
        return None
    try:
        parameters = inspect.signature(type(made)).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters)


def loader_options(loader: Any) -> JsonDict:
    """Options of a live loader, as far as they can be written down."""
    options = {name: getattr(loader, name, None) for name in _LOADER_OPTIONS}
    options["shuffle"] = type(loader.sampler).__name__ == "RandomSampler"
    options["dataset"] = type(loader.dataset).__name__
    options["collate_fn"] = collate_name(loader.collate_fn)
    return options


def grouped(seen: list[Seen]) -> list[Seen]:
    """Loaders that the same call makes, of one kind, as one site."""
    groups: dict[Any, Seen] = {}
    for item in seen:
        key = (item.kind, item.found.place.file, item.found.place.line, item.found.end_column)
        first = groups.get(key)
        if first is None:
            groups[key] = replace(item)
            continue
        each = zip(item.used, item.callers, strict=True)
        further = [(place, by) for place, by in each if place not in first.used]
        first.calls, first.count = first.calls + item.calls, first.count + item.count
        first.used = first.used + [place for place, _ in further]
        first.callers = first.callers + [by for _, by in further]
    return list(groups.values())


def site_of(seen: Seen, steps: float) -> Site:
    """The site as it is reported.

    Args:
        steps: training steps in which it was watched.
    """
    counted = seen.kind in ("device_wait", "loss", "step", "loader_training", "forced")
    known = {name: value for name, value in vars(seen).items() if name not in ("found", "count", "seconds")}
    return Site(
        **seen.found.place.model_dump(),
        **known,
        direct=seen.found.direct,
        end_column=seen.found.end_column,
        per_step=seen.count / steps if counted else None,
        seconds_per_step=seen.seconds / steps if seen.kind == "forced" else None,
    )


def _place_in(thread: int) -> Place | None:
    """The user's line at which a thread stands; that which calls the model, where one is under way."""
    frame = sys._current_frames().get(thread)
    found = model_place(frame) if frame is not None else None
    return found.place if found is not None else None


class Observer(Watcher):
    """Collects sites from the torch hooks of a process; installs what is only listened to while watching."""

    def __init__(self, hooks: TorchHooks) -> None:
        self.hooks = hooks
        self.seeded = False
        self._sites: dict[Any, Seen] = {}
        # by identity: what users make may have a hash of its own, or none yet
        self._made: MutableMapping[Any, Seen] = WeakIdKeyDictionary()
        self._modules: MutableMapping[Any, Found] = WeakIdKeyDictionary()
        self._calls: Counter[Any] = Counter()
        self._latest: MutableMapping[Any, dict[Any, Seen]] = WeakIdKeyDictionary()  # of a dataset, by the call
        self._loaders: list[tuple[weakref.ref[Any], Seen]] = []
        self._order: list[int] = []
        self._passes = Passes()
        self._frozen = FrozenModules(hooks)
        self._waited: dict[tuple[CodeType, int], Seen | None] = {}
        self._late = False  # parameters were given their shapes by a first call

    def install(self) -> None:
        """Listens where only a watched run does. Its cost is no part of any measurement."""
        self.hooks.watchers += [self, self._frozen]
        self._around(nn.Module, "__init__", self._module_made)
        for kind in (LRScheduler, ReduceLROnPlateau):
            self._around(kind, "__init__", functools.partial(self._object, "scheduler"))
        self._around(torch.amp.GradScaler, "__init__", functools.partial(self._object, "scaler"))
        self._around(torch.autocast, "__enter__", self._autocast)
        self._around(torch, "compile", functools.partial(self._compiles, "torch.compile"), keywords=True)
        self._around(nn.Module, "compile", functools.partial(self._compiles, "Module.compile"), keywords=True)
        self._around(torch, "manual_seed", self._seed)
        lazy: Any = torch_parameters  # its declarations leave the mixin out
        self._around(lazy.UninitializedTensorMixin, "materialize", lambda *_: setattr(self, "_late", True))
        for module in TRAINERS:
            when_imported(module, functools.partial(self._trainers, module))
        for owner, attribute, name in CALLS:
            self._timed(sys.modules[owner], attribute, name)
        for name in ANOMALIES:
            kind = getattr(torch.autograd, name.rpartition(".")[2])
            self._around(kind, "__init__", functools.partial(self._anomalies, name), keywords=True)
        for name in WAITS:
            self._around(torch.Tensor, name, functools.partial(self._waits, name))
        threading.Thread(target=self._sample, args=(threading.get_ident(),), name="evaluations", daemon=True).start()

    def _sample(self, thread: int) -> None:
        """Notes at which of the user's lines a thread stands while it evaluates, as long as the process lives."""
        never = threading.Event()
        while not never.wait(SAMPLED):
            under_way = self.hooks.session.evaluating
            # no frame is held between two samples: its tensors would live on with it
            place = _place_in(thread) if under_way is not None else None
            if under_way is not None and place is not None:
                under_way.sampled[place.file, place.line] += 1

    def _around(self, owner: Any, name: str, tell: Callable[..., None], *, keywords: bool = False) -> None:
        plain = getattr(owner, name)

        @in_place_of(owner, name)
        def listening(*args: Any, **kwargs: Any) -> Any:
            if not self.hooks.session.standing:
                tell(*args, **(kwargs if keywords else {}))
            return plain(*args, **kwargs)

    def _timed(self, owner: Any, attribute: str, name: str) -> None:
        """Seconds of a call that is no part of training, by the user's own line."""
        plain, session = getattr(owner, attribute), self.hooks.session

        @in_place_of(owner, attribute)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = perf_counter()
            result = plain(*args, **kwargs)
            passed, frame = perf_counter() - began, sys._getframe(1)
            if session.steps > 0 and not session.standing and is_users(frame.f_code.co_filename):
                seen = self._note("forced", user_place(), name)
                if seen is not None:
                    seen.seconds += passed
                    if seen.count == 1:
                        seen.options = {"alone": stands_alone(frame.f_code.co_filename, frame.f_lineno)}
            return result

    def _anomalies(self, name: str, made: Any, mode: bool = True, **_: Any) -> None:
        if mode:
            self._note("forced", user_place(), name)

    # what is reported

    def loader_made(self, loader: Any) -> None:
        found = maker_place(loader)
        if found is None:
            return
        if not found.direct:  # a library may put it, with its options, in the place of the user's own of the same data
            unread = [(reference(), seen) for reference, seen in self._loaders if seen.found.direct and not seen.count]
            rebuilt = [seen for other, seen in unread if other is not None and other.dataset is loader.dataset]
            if rebuilt:
                self._made[loader] = rebuilt[-1]
                return
        call = (found.place.file, found.place.line, found.end_column)
        seen = Seen("loader_training", found, call=type(loader).__name__, name=type(loader.dataset).__name__)
        seen.calls, seen.takes = [self._calls[call]], taken_by(loader)
        self._calls[call] += 1
        with suppress(TypeError):  # a list as a dataset, to which nothing can refer weakly
            before = self._latest.setdefault(loader.dataset, {})
            if call in before and before[call].count:  # made again when that was read, as by each epoch
                seen.calls = []
            before[call] = seen
        self._made[loader] = seen
        self._loaders.append((weakref.ref(loader), seen))

    def loader_opened(self, loader: Any) -> None:
        found = user_place()
        if found is not None:  # a loop's header; its body belongs to it as the interpreter has it
            place = found.place.model_copy(update={"end_line": found.place.line})
            self._use(self._made.get(loader), Found(place, found.direct))

    def batch_given(self, loader: Any, batch: Any, training: bool, drawn: Sequence[Any] | None) -> None:
        seen = self._made.get(loader)
        if seen is not None:
            seen.count += 1
            seen.options = loader_options(loader)
            role = self.hooks.roles.of(loader)
            seen.kind = "loader_training" if (training if role is None else role) else "loader_validation"

    def optimizer_made(self, optimizer: Optimizer) -> None:
        found = maker_place(optimizer)
        if found is not None and not isinstance(optimizer, UpdatesByHand):
            seen = Seen("optimizer", found, call=type(optimizer).__name__, name=type(optimizer).__name__)
            seen.options, seen.takes = plain_options(optimizer.defaults), taken_by(optimizer)
            self._made[optimizer] = seen
            self._sites["optimizer", len(self._sites)] = seen

    def root_found(self, model: nn.Module) -> None:
        inner = getattr(model, "_orig_mod", None) or model
        found = self._modules.get(inner)
        if found is not None:
            seen = Seen("model", found, call=type(inner).__name__, name=type(inner).__name__)
            parameters = list(inner.parameters())
            late = self._late or any(is_lazy(p) for p in parameters)
            seen.options = {
                "parameters": sum(p.numel() for p in parameters if not is_lazy(p)),
                "device": parameters[0].device.type,
                **({"lazy": True} if late else {}),
                **({"torchs": True} if is_torchs(inner) else {}),
            }
            blocks = [inner.get_submodule(name) for name in repeated_blocks(inner)]
            if any(is_torchs(block) for block in blocks):
                seen.options["torchs_blocks"] = True
            if not model.training:
                seen.options["mode"] = "eval"
            if any(map(is_compiled, model.modules())):
                seen.options["compiled"] = True
            if inner is not model:
                seen.options["wrapped_by"] = type(model).__name__
            seen.options["held_as"] = names_of(model, inner)
            self._made[model] = seen
            self._sites["model", len(self._sites)] = seen

    def evaluated_first(self, model: nn.Module) -> None:
        self._note("evaluation", user_place(), type(model).__name__)

    def forward(self, model: nn.Module, args: Any, kwargs: Any, training: bool) -> None:
        found = user_place()
        if training:
            self._use(self._made.get(model), found, tuple(map(place_of, users_frames(sys._getframe())))[1:])
            if not self.hooks.roles.known:
                self._note("batch_without_loader", found, type(model).__name__)
        else:
            self._note("evaluation", found, type(model).__name__)

    def backward(self, loss: Any) -> None:
        found = user_place()
        self._passes.backward(found, within_step=self.hooks.within_step)
        self._note("loss", found, "backward")

    def stepped(self, optimizer: Optimizer) -> None:
        index = next((i for i, known in enumerate(self.hooks.optimizers) if known is optimizer), None)
        if index is not None:
            self._order.append(index)
            self._passes.stepped()
        if not isinstance(optimizer, UpdatesByHand):  # whose step is no line of the script
            found = user_place()
            self._use(self._made.get(optimizer), found)
            self._note("step", found, "step")

    def saved(self, *_: Any) -> None:
        self._note("checkpoint", user_place(), "torch.save")

    def sites(self, command: tuple[str, ...]) -> Sites:
        """The sites that were seen so far."""
        period = period_of(self._order)
        for reference, item in self._loaders:  # what was read last may be known for what it is by now
            role = self.hooks.roles.of(reference())
            if role is not None:
                item.kind = "loader_training" if role else "loader_validation"
        whole = max(len(self._order) / max(len(period), 1), 1)
        seen = [*grouped([item for _, item in self._loaders if item.count]), *self._sites.values()]
        optimizers = set(self._order)
        made = [self._made.get(each) for each in self.hooks.optimizers]
        unused = {id(item) for index, item in enumerate(made) if index not in optimizers}
        sites = tuple(site_of(item, whole) for item in seen if id(item) not in unused)
        sites += tuple(self._frozen.sites())
        return Sites(
            command=command,
            cwd=folder(),
            sites=sites,
            steps=self.hooks.session.steps,
            period=period,
            accumulation=self._passes.accumulation,
            seeded=self.seeded,
            unit="samples" if self.hooks.session.counts else "steps",
        )

    # the rest

    def _module_made(self, module: Any, *_: Any) -> None:
        frame = sys._getframe(2)
        while frame.f_back is not None and constructs(frame, module):
            frame = frame.f_back
        found = editable_place(frame)
        if found is not None:
            self._modules[module] = found

    def _object(self, kind: SiteKind, made: Any, *_: Any) -> None:
        self._note(kind, user_place(), type(made).__name__)

    def _autocast(self, context: Any, *_: Any) -> None:
        options: JsonDict = {
            "device": str(getattr(context, "device", "")),
            "dtype": str(getattr(context, "fast_dtype", "")).removeprefix("torch."),
            "enabled": bool(getattr(context, "_enabled", True)),
        }
        self._note("autocast", user_place(), "autocast", options)

    def _compiles(self, call: str, *_: Any, **options: Any) -> None:
        found = plain_options({name: options[name] for name in ("mode", "dynamic") if name in options})
        self._note("compile", user_place(), call, found)

    def _waits(self, name: str, tensor: Any, *_: Any) -> None:
        if self.hooks.session.steps == 0 or not isinstance(tensor, torch.Tensor):
            return
        frame = sys._getframe(2)  # from here up: the function that listens, and who called it
        key = (frame.f_code, frame.f_lasti)
        if key in self._waited:  # some scripts ask for thousands of values a step
            seen = self._waited[key]
            if seen is not None:
                seen.count += 1
            return
        found = user_place() if is_users(frame.f_code.co_filename) else None
        self._waited[key] = self._note("device_wait", found, name, {"device": tensor.device.type})

    def _seed(self, *_: Any) -> None:
        self.seeded = self.seeded or user_place() is not None

    def _trainers(self, module: str) -> None:
        """Notes where the user gives a library's trainer its arguments."""
        name, method = TRAINERS[module]
        owner = getattr(sys.modules[module], name, None)
        if owner is not None:
            self._around(owner, method, self._trainer)

    def _trainer(self, made: Any, *_: Any) -> None:
        found, name = user_place(), type(made).__name__
        if found is not None and (found.direct or name != "Accelerator"):  # transformers' Trainer makes one for itself
            # whether the call stands on these lines itself shows when it is looked for there
            self._note("trainer", Found(found.place, direct=True), name)

    def _note(self, kind: SiteKind, found: Found | None, call: str, options: JsonDict | None = None) -> Seen | None:
        if found is None:
            return None
        key = (kind, found.place.file, found.place.line, call)
        seen = self._sites.get(key)
        if seen is None:
            seen = self._sites[key] = Seen(kind, found, call=call, name=call)
        seen.count += 1
        seen.options = seen.options if options is None else options
        return seen

    def _use(self, seen: Seen | None, found: Found | None, through: tuple[Place, ...] = ()) -> None:
        if seen is not None and found is not None and found.place not in seen.used:
            seen.used.append(found.place)
            seen.callers.append(through)
