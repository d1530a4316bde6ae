"""How a setup is put on a script, at the sites where its objects are made and called; and training in little memory."""

from __future__ import annotations

import inspect
import linecache
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, default_collate

from autoopt.benchmark.affinity import bind
from autoopt.benchmark.compiling import compile_model
from autoopt.benchmark.contents import tensors
from autoopt.benchmark.cputime import memory
from autoopt.benchmark.distributed.replicate import compress
from autoopt.benchmark.flags import apply_flags
from autoopt.benchmark.loader import check_workers, collate_name, consistent, recollate, reorder
from autoopt.benchmark.optimizer import become, make_optimizer, users_factory
from autoopt.benchmark.saving import save_in_background, wait_until_saved
from autoopt.benchmark.seeding import disturb, kept_random_state, mix
from autoopt.errors import WorkloadError
from autoopt.records.protocol import TrialSpec
from autoopt.script.applicable import READ_BY, inapplicable, marks_steps
from autoopt.script.frames import maker_place, shown, user_place
from autoopt.script.frozen import KeepOutputs
from autoopt.script.hook.seeds import in_place_of
from autoopt.script.loaders import Order, Watcher, own_draws
from autoopt.script.session import Session
from autoopt.script.torch_hooks import TorchHooks
from autoopt.setup import Distributed, Precision, Setup, Transform, Wrap
from autoopt.simplify.costly import ANOMALIES, CALLS

_ALONE = re.compile(r"\s*[\w.]+\(\s*\)\s*(#.*)?")
LEFT = 0.1
"""Share of the host's memory that stays free."""
_Kept = tuple[bool, torch.Tensor]
"""Whether it is a copy on the host, and it."""


class UnblockedMoves(Watcher):
    """Where the script moves what its training loader gave, it is moved as by ``x.to(device, non_blocking=True)``.

    It is what the patch writes at those lines. Other tensors are left alone: a buffer of the script's own that is
    filled again while its copy is under way would arrive changed.
    """

    def __init__(self) -> None:
        self._given: dict[int, torch.Tensor] = {}

    def install(self) -> None:
        """Puts it around the two methods that move tensors."""
        for name in ("to", "cuda"):
            self._unblock(name, getattr(torch.Tensor, name))

    def _unblock(self, name: str, plain: Any) -> None:
        @in_place_of(torch.Tensor, name)
        def moved(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            said = "non_blocking" in kwargs or any(isinstance(value, bool) for value in args)
            if id(tensor) in self._given and not said:
                kwargs["non_blocking"] = True
            return plain(tensor, *args, **kwargs)

    def batch_given(self, loader: Any, batch: Any, training: bool, drawn: Sequence[Any] | None) -> None:
        if training:
            self._given = {id(tensor): tensor for _, tensor in tensors(batch)}


class MarkedSteps(Watcher):
    """Reports CUDA graphs when a step is over: gradients of its micro-batches are kept until then."""

    def root_found(self, model: nn.Module) -> None:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]

    def stepped(self, optimizer: Optimizer) -> None:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]


class Lean(Watcher):
    """Trains a script that does not fit into its device's memory all the same, so that it can be watched.

    What its backward passes need waits on the host from the first training call on, and its optimizers update one
    parameter after the other: the same steps, slowly, in the memory of weights, gradients and optimizer states.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: Any = None
        self._weights: set[int] = set()

    def root_found(self, model: nn.Module) -> None:
        self._weights |= {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        if self._kept is None:
            self._kept = torch.autograd.graph.saved_tensors_hooks(self._keep, self._given_back)
            self._kept.__enter__()  # until the process ends

    def optimizer_made(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            if "foreach" in group:
                group["foreach"] = False

    def _keep(self, tensor: torch.Tensor) -> _Kept:
        device = self._session.device
        movable = tensor.layout == torch.strided and tensor.device == device.torch
        if not movable or tensor.untyped_storage().data_ptr() in self._weights:  # which stay anyway
            return False, tensor
        whole, free = memory()
        if free - tensor.nbytes < LEFT * whole:
            return False, tensor  # an error of the device is caught, a kill by the kernel is not
        return True, device.to_host(tensor)

    def _given_back(self, kept: _Kept) -> torch.Tensor:
        moved, tensor = kept
        return tensor.to(self._session.device.torch, copy=True) if moved else tensor


def stands_alone(file: str, line: int) -> bool:
    """Whether a line is a call without arguments and nothing else, so that nobody asks what it returns."""
    return _ALONE.fullmatch(linecache.getline(file, line).rstrip("\n")) is not None


def leave_out(calls: Iterable[str]) -> None:
    """From here on these calls do nothing at their lines; everywhere else they do what they did. What would detect
    anomalies detects none there.

    Args:
        calls: such as ``train.py:9 gc.collect``; files as the script's sites name them.

    Raises:
        ValueError: a call that is none of those that may be left out.
    """
    owners = {name: (module, attribute) for module, attribute, name in CALLS if name != "print"}
    owners |= {name: ("torch.autograd", name.rpartition(".")[2]) for name in ANOMALIES}
    places: dict[str, set[tuple[str, int]]] = {}
    for text in calls:
        place, call = text.rsplit(" ", 1)
        file, line = place.rsplit(":", 1)
        if call not in owners:
            raise ValueError(f"{call} cannot be left out; {', '.join(sorted(owners))} can")
        places.setdefault(call, set()).add((file, int(line)))
    for call, lines in places.items():
        module, attribute = owners[call]
        owner = import_module(module)
        instead = partial(torch.autograd.set_detect_anomaly, False) if call in ANOMALIES else lambda: None
        _leave_out(owner, attribute, lines, instead)


def _leave_out(owner: Any, name: str, places: set[tuple[str, int]], instead: Callable[[], Any]) -> None:
    plain, numbers = getattr(owner, name), {line for _, line in places}

    @in_place_of(owner, name)
    def called(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if frame.f_lineno in numbers and (shown(frame.f_code.co_filename), frame.f_lineno) in places:
            return instead()
        return plain(*args, **kwargs)


class LowPrecision:
    """Training calls in another precision, the loss included, as ``with torch.autocast`` around both.

    Args:
        session: knows the device, once a model is called in training.
        dtype: such as ``bfloat16``.
    """

    def __init__(self, session: Session, dtype: str) -> None:
        self._session, self._dtype = session, getattr(torch, dtype)
        self._entered: Any = None

    def _autocast(self) -> Any:
        return torch.autocast(self._session.device.torch.type, dtype=self._dtype)

    def enter(self) -> None:
        """Before a forward pass."""
        if self._entered is None and self._session.timed:
            self._entered = self._autocast()
            self._entered.__enter__()

    def leave(self) -> None:
        """Before gradients are computed."""
        if self._entered is not None:
            self._entered.__exit__(None, None, None)
            self._entered = None

    def evaluated(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """An evaluation as a library's trainer makes it: in its own precision, what comes out of it in float32.

        Lightning takes losses under autocast, which does so in float32; accelerate, and so transformers, turns outputs.
        """
        with self._autocast():
            output = call(*args, **kwargs)
        low = (torch.bfloat16, torch.float16)
        return tree_map(lambda x: x.float() if isinstance(x, torch.Tensor) and x.dtype in low else x, output)


def low_precision(session: Session, precision: Precision) -> LowPrecision | None:
    """The precision of training calls; None where it is the script's own, or its lines say it."""
    if precision.dtype is None or precision.loss_scaling:
        return None
    return LowPrecision(session, precision.dtype)


class Applying(Watcher):
    """A setup on its way into a script; it is the first to be notified.

    Args:
        spec: of the trial; the sites of its script are None while it is watched for the first time.
        setup: what the plan changes; the empty one changes nothing.
        compared: the script's data are to be the same under every setup; else what it draws itself stands, as it does
            with the setup in its own lines.
    """

    def __init__(self, hooks: TorchHooks, spec: TrialSpec, setup: Setup, *, compared: bool) -> None:
        assert spec.script is not None, "the trial of a script"
        self.hooks, self.setup, self.sites, self._compared = hooks, setup, spec.script.sites, compared
        self._seed, self._disturbed, self._patched = spec.seed, spec.disturbed, bool(spec.script.patched)
        self._calls: Counter[tuple[str, int, int | None]] = Counter()
        self._orders = 0
        self._updated: list[Optimizer] = []
        self._makes_training = False
        self._around = tuple[Transform, ...]()

    def install(self) -> None:
        """Once torch has been imported.

        Raises:
            WorkloadError: the setup cannot be put on this script.
        """
        sites = self.sites
        reason = inapplicable(self.setup, sites, patched=self._patched) if sites is not None else None
        if reason is not None:
            raise WorkloadError(reason)
        apply_flags(self.setup)
        leave_out(self.setup.flags.get("leave_out", ()))
        if self.setup.flags.get("save_in_background"):
            self._save_in_background(frozenset(self.setup.flags["save_in_background"]))
        if self.sites is not None and self._compared:
            own_draws(self._seed)
        self.hooks.loaders.merged = self._merged
        self.hooks.watchers.insert(0, self)
        if self.setup.flags.get("kept_outputs"):
            self.hooks.watchers.append(KeepOutputs(self.hooks, self.setup.flags["kept_outputs"]))
        if self.setup.transfer.non_blocking:
            moves = UnblockedMoves()
            moves.install()
            self.hooks.watchers.append(moves)
        if self.sites is not None and marks_steps(self.setup, self.sites):
            self.hooks.watchers.append(MarkedSteps())
        made, how = DistributedDataParallel.__init__, self.setup.distributed
        if how != Distributed():  # the script's own wrapper is made with the setup's arguments
            names = list(inspect.signature(made).parameters)[1:]

            @in_place_of(DistributedDataParallel, "__init__")
            def init(wrapper: Any, *args: Any, **kwargs: Any) -> None:
                made(wrapper, **{**dict(zip(names, args, strict=False)), **kwargs, **how.arguments})
                if how.compression == "bfloat16":
                    compress(wrapper)

        self.hooks.precision = low_precision(self.hooks.session, self.setup.precision)
        if self.setup.precision.dtype is not None and self.sites is not None and self.sites.of("trainer"):
            self.hooks.evaluating = LowPrecision(self.hooks.session, self.setup.precision.dtype).evaluated

    # loaders

    def _merged(
        self, loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a loader that is made: the setup's options for the training's, or for the validation's."""
        role = self._role(loader)
        self._keep_cores()
        self._makes_training = role == "training"
        self._around = self.setup.collate if self._makes_training else ()
        if role is None:
            return args, kwargs
        names = list(inspect.signature(DataLoader.__init__).parameters)[1:]
        options = {**dict(zip(names, args, strict=False)), **kwargs}
        if role == "validation":
            options = self._of_validation(options)
        else:
            if self.setup.batch.size is not None and self.setup.batch.accumulation is None:  # else its lines say it
                options["batch_size"] = self.setup.batch.size
            with kept_random_state():  # a cache may read every sample
                for transform in self.setup.dataset:
                    options["dataset"] = transform(options["dataset"])
            if self.setup.loader:
                changed = "num_workers" in self.setup.loader
                options = consistent({**options, **self.setup.loader})
                check_workers(options["dataset"], options, options.get("num_workers", 0), changed=changed)
        if options.get("generator") is None and self._compared:
            # torch's global generator is drawn from at moments that depend on the workers: each loader gets its own
            self._orders += 1
            seed = mix(self._seed, torch.initial_seed(), "order", self._orders)
            options["generator"] = Order().manual_seed(seed)
        return (), options

    def _of_validation(self, options: dict[str, Any]) -> dict[str, Any]:
        """As a patch has it: a dataset of the training's class is read as the training reads it, and what makes its
        batches is changed alike."""
        changed = dict[str, Any]()
        sites = self.sites.of("loader_training") if self.sites is not None else ()
        alike = [site for site in sites if site.options.get("dataset") == type(options["dataset"]).__name__]
        collate = collate_name(options.get("collate_fn") or default_collate)
        if any(site.options.get("collate_fn") == collate for site in alike):
            self._around = tuple(each for each in self.setup.collate if isinstance(each, Wrap) and each.evaluation)
        if self.setup.dataset and alike:
            replaced = "collate_fn" in self.setup.loader and options.get("collate_fn")
            own_batches = bool(replaced or self.setup.collate)
            transforms = [each for each in self.setup.dataset if not (own_batches and isinstance(each, Wrap))]
            wrapped = any(isinstance(each, Wrap) for each in transforms)
            with kept_random_state():
                for transform in transforms:
                    options["dataset"] = transform(options["dataset"])
            changed = {name: self.setup.loader[name] for name in READ_BY if wrapped and name in self.setup.loader}
            if transforms and self.setup.loader.get("num_workers") == 0:
                changed["num_workers"] = 0
        own = dict(self.setup.evaluation)
        if "dataset" in own:
            with kept_random_state():
                options["dataset"] = own.pop("dataset")(options["dataset"])
        changed |= own
        return consistent({**options, **changed}) if changed else options

    def loader_made(self, loader: Any) -> None:
        """Changes it: the order of the training's samples, what makes batches of them."""
        if self._makes_training:
            for order in self.setup.sampler:
                reorder(loader, order)
        for around in self._around:
            recollate(loader, around)

    def _role(self, loader: Any) -> Literal["training", "validation"] | None:
        """Whose loader the call makes that makes this one now; None where that was not seen."""
        found = maker_place(loader)
        if found is None or self.sites is None:
            return None
        place = (found.place.file, found.place.line, found.end_column)
        call = self._calls[place]
        self._calls[place] += 1
        own, others = (
            [
                site
                for site in self.sites.of(kind)  # one of earlier records may not know where its call ends
                if (site.file, site.line) == place[:2] and site.end_column in (None, found.end_column)
            ]
            for kind in ("loader_training", "loader_validation")
        )
        if own and (not others or any(call in site.calls for site in own)):
            return "training"
        return "validation" if others else None

    # checkpoints

    def _save_in_background(self, lines: frozenset[str]) -> None:
        """What these lines save is written while training goes on; what is loaded waits for it."""
        load = torch.load

        def save(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            found = user_place()
            listed = found is not None and f"{found.place.file}:{found.place.line}" in lines
            return (save_in_background if listed else plain)(*args, **kwargs)

        @in_place_of(torch, "load")
        def loaded(*args: Any, **kwargs: Any) -> Any:
            wait_until_saved()
            return load(*args, **kwargs)

        self.hooks.saving = save

    # the model and its optimizer

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """Whatever follows the learning rate from here on follows the scaled one."""
        factor = self.setup.batch.learning_rate_factor
        for options in (optimizer.defaults, *optimizer.param_groups):
            if factor != 1.0 and options.get("lr") is not None:
                options["lr"] = options["lr"] * factor

    def root_found(self, model: nn.Module) -> None:
        """Before the first training call of a model: its transforms, the optimizer's, and compilation."""
        setup = self.setup
        self._keep_cores()
        if self._disturbed:
            disturb(model, self._disturbed, self._seed, len(self.hooks.roots))
        before = {id(parameter): name for name, parameter in model.named_parameters()}
        for transform in setup.model:
            if transform(model) is not model:
                raise WorkloadError(f"{transform!r} replaces the model, which a script holds on to: it needs build()")
        own = {id(parameter) for parameter in model.parameters()} | set(before)
        for optimizer in list(self.hooks.optimizers) if setup.optimizer else ():
            held = [p for group in optimizer.param_groups for p in group["params"]]
            others = [p for p in held if id(p) not in own]  # of models that are called later, which it updates, too
            if len(others) == len(held) or any(optimizer is known for known in self._updated):
                continue
            self._updated.append(optimizer)
            made = make_optimizer(users_factory(optimizer, model, before, others), model, setup.optimizer)
            if type(made) is not type(optimizer):
                raise WorkloadError(
                    f"it replaces {type(optimizer).__name__} by {type(made).__name__}, which a script holds on to: "
                    "it needs build()"
                )
            for group, new in zip(optimizer.param_groups, made.param_groups, strict=True):
                group.update(new)
            become(optimizer, made)  # in place: schedulers hold on to it
        if setup.compile is not None:
            compile_model(model, setup.compile)

    def _keep_cores(self) -> None:
        """Gives the plan's cores again: later imports may have bound the process, and lines after them hold."""
        if self.setup.flags.get("affinity") is not None:
            bind(self.setup.flags["affinity"])
