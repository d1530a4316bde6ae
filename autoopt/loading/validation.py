"""Validation of a workload, one clear error each: what was given, what is wanted, an example that works."""

from __future__ import annotations

import contextlib
import inspect
import math
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from autoopt.adapters import adapt, adapter_of
from autoopt.errors import AutooptError, WorkloadError
from autoopt.loading.importing import user_traceback
from autoopt.setup import Setup
from autoopt.workload import Target, Workload

EXAMPLE = """\
import torch, autoopt

def build():
    return autoopt.Workload(
        model=torch.nn.Linear(8, 2),
        train_data=torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(2, (64,))),
        batch_size=16,
        loss=torch.nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        max_epochs=1,
    )"""


def build(factory: Any) -> Workload:
    """Calls the user's ``build`` and checks what it returns.

    Args:
        factory: a function without required parameters, or the workload itself.

    Raises:
        WorkloadError: it raised (the user's own traceback in ``detail``), or returned no workload.
    """
    if isinstance(factory, Workload) or adapter_of(factory) is not None:
        return check(factory)
    if not callable(factory):
        raise _wrong(
            f"the import string names something {_kind(factory)}", "a function that returns an autoopt.Workload"
        )
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        name = getattr(factory, "__name__", "build")
        raise _wrong(
            f"{name}{inspect.signature(factory)} needs arguments ({error})", "a function without any"
        ) from None
    except ValueError:
        pass  # a builtin without a signature: calling it reports
    try:
        made = factory()
    except (AutooptError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        gave_out = any(sign in str(error).lower() for sign in ("memory", "cuda error", "no space left"))
        if gave_out and isinstance(error, (RuntimeError, OSError)):
            raise  # another verdict than an error in the user's code
        raise WorkloadError(
            f"{getattr(factory, '__name__', 'build')}() raised {type(error).__name__}: {error}",
            hint="the user's own traceback:",
            detail=user_traceback(error),
        ) from error
    return check(made)


def check(made: Any) -> Workload:
    """Validates a workload; objects of Lightning and transformers become one first.

    Raises:
        WorkloadError: one clear error for the first thing that is wrong.
    """
    made = adapt(made) or made
    if not isinstance(made, Workload):
        hint = "return it from build()" if made is None else ""
        raise _wrong(
            f"build() returned {'None' if made is None else 'something ' + _kind(made)}", "an autoopt.Workload", hint
        )
    _check_model(made)
    _check_train_data(made)
    _check_loss(made)
    _check_optimizer(made)
    _check_scheduler(made)
    _check_evaluation(made)
    _check_length(made)
    if not isinstance(made.setup, Setup):
        raise _wrong(f"setup is {_kind(made.setup)}", "an autoopt.Setup, such as autoopt.Setup().with_precision(...)")
    return made


def _check_model(workload: Workload) -> None:
    model = workload.model
    _check_no_class("model", model)
    if not isinstance(model, nn.Module):
        raise _wrong(f"model is {_kind(model)}", "a torch.nn.Module, such as model=Net()")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        return  # lazy modules get their shapes in the first step
    if not any(p.requires_grad for p in model.parameters()):
        raise _wrong(
            f"model {type(model).__name__} has no parameter that requires a gradient", "something that can be trained"
        )


def _check_train_data(workload: Workload) -> None:
    data, size = workload.train_data, workload.batch_size
    _check_data("train_data", data)
    _check_count("batch_size", size, optional=True)
    if isinstance(data, DataLoader) and size is not None:
        raise _wrong(
            f"train_data is a DataLoader and batch_size={size} is given too",
            "one of them: a DataLoader brings its own batch size",
            "leave batch_size out, or give the Dataset",
        )
    if not isinstance(data, DataLoader) and size is None:
        raise _wrong("train_data is a Dataset and batch_size is missing", "samples per step, such as batch_size=64")


def _check_data(name: str, data: Any) -> None:
    if isinstance(data, DataLoader):
        dataset = data.dataset
    else:
        dataset = data
        _check_no_class(name, data)
        map_style = hasattr(data, "__getitem__") and hasattr(data, "__len__")
        if isinstance(data, (dict, str, torch.Tensor)) or not (isinstance(data, IterableDataset) or map_style):
            raise _wrong(
                f"{name} is {_kind(data)}",
                "a torch.utils.data.Dataset (with __getitem__ and __len__, or an IterableDataset) or a DataLoader",
                f"{name}=TensorDataset(inputs, labels)" if isinstance(data, torch.Tensor) else "",
            )
    length = length_of(data)
    if length == 0:
        samples = length_of(dataset)
        why = f"a DataLoader without a batch ({samples} samples)" if samples else f"an empty {type(dataset).__name__}"
        raise _wrong(
            f"{name} is {why}", "at least one batch of samples", "check the path or the filter it is read with"
        )


def length_of(data: Any) -> int | None:
    """How many there are, of whatever reports."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def _check_loss(workload: Workload) -> None:
    _check_no_class("loss", workload.loss)
    wanted = "loss(model, batch) -> scalar tensor, or a criterion for (input, label) batches"
    example = "loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])"
    _check_function("loss", workload.loss, 2, "loss(model, batch)", wanted, example)


def _check_optimizer(workload: Workload) -> None:
    optimizer = workload.optimizer
    if isinstance(optimizer, torch.optim.Optimizer):
        known = {id(p) for p in workload.model.parameters()}
        stray = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
        if stray:
            raise _wrong(
                f"optimizer {type(optimizer).__name__} holds {len(stray)} parameters that are not the model's "
                f"(the first has shape {tuple(stray[0].shape)})",
                "an optimizer over this model's parameters",
                "make it from the same model, or give optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3)",
            )
        return
    made = "optimizer=lambda params: {}(params, lr=1e-3)"
    _check_no_class("optimizer", optimizer, "a function of the parameters, or an instance", made)
    wanted = "optimizer(params) -> torch.optim.Optimizer, or an Optimizer over the model's parameters"
    _check_function("optimizer", optimizer, 1, "optimizer(params)", wanted, made.format("torch.optim.AdamW"))


def _check_scheduler(workload: Workload) -> None:
    scheduler = workload.scheduler
    if workload.scheduler_interval not in ("step", "epoch"):
        raise _wrong(f"scheduler_interval is {workload.scheduler_interval!r}", '"step" or "epoch"')
    if scheduler is None:
        return
    example = "scheduler=lambda optimizer, total_steps: OneCycleLR(optimizer, max_lr=1e-2, total_steps=total_steps)"
    form = "scheduler(optimizer, total_steps)"
    _check_function("scheduler", scheduler, 2, form, f"a function {form} that makes one", example)


def _check_evaluation(workload: Workload) -> None:
    evaluate, target = workload.evaluate, workload.target
    if target is not None and not isinstance(target, Target):
        raise _wrong(
            f"target is {_kind(target)}", 'an autoopt.Target, such as autoopt.Target("accuracy", at_least=0.9)'
        )
    if evaluate is not None:
        form = "evaluate(model, batches)"
        _check_function("evaluate", evaluate, 2, form, f'{form} -> {{"accuracy": value}}')
        if workload.valid_data is None:
            raise _wrong("evaluate is given and valid_data is not", "a Dataset or a DataLoader to evaluate on")
    if workload.valid_data is not None:
        _check_data("valid_data", workload.valid_data)
    if target is not None:
        _check_target(target)
        if evaluate is None:
            raise _wrong(
                f"target {target.metric!r} is given and evaluate is not",
                f'evaluate(model, batches) -> {{"{target.metric}": value}}, and valid_data',
            )
    for name in ("evaluate_every", "accumulation"):
        _check_count(name, getattr(workload, name), optional=name == "evaluate_every")
    clip = workload.clip_grad_norm
    if clip is not None and not (_number(clip) and clip > 0):
        raise _wrong(f"clip_grad_norm is {clip!r}", "a number above 0, such as clip_grad_norm=1.0")


def _check_target(target: Target) -> None:
    example = 'autoopt.Target("accuracy", at_least=0.93)'
    if not isinstance(target.metric, str) or not target.metric:
        raise _wrong(f"target.metric is {target.metric!r}", "a key of what evaluate returns", example)
    if target.at_least is not None and target.at_most is not None:
        raise _wrong(f"target has at_least={target.at_least} and at_most={target.at_most}", "one of them", example)
    for name in ("at_least", "at_most"):
        value = getattr(target, name)
        if value is not None and not (_number(value) and math.isfinite(value)):
            raise _wrong(f"target.{name} is {value!r}", "a finite number", example)
    if target.mode not in (None, "max", "min"):
        raise _wrong(f"target.mode is {target.mode!r}", '"max" or "min"', example)
    if target.value is not None and target.mode is not None and target.mode != target.direction:
        raise _wrong(f"target.mode={target.mode!r} contradicts its value", "the mode follows from at_least or at_most")


def _check_length(workload: Workload) -> None:
    epochs, steps = workload.max_epochs, workload.max_steps
    if (epochs is None) == (steps is None):
        given = "neither max_epochs nor max_steps is" if epochs is None else "both max_epochs and max_steps are"
        raise _wrong(f"{given} given", "one of them: the length of the run that you plan", "max_epochs=20")
    if epochs is not None:
        if not (_number(epochs) and math.isfinite(epochs) and epochs > 0):
            raise _wrong(f"max_epochs is {epochs!r}", "a number above 0, such as max_epochs=20")
        if length_of(workload.train_data) is None:
            raise _wrong("max_epochs is given and train_data does not know its length", "max_steps", "max_steps=10_000")
    _check_count("max_steps", steps, optional=True)


def _check_count(name: str, value: Any, *, optional: bool) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong(f"{name} is {value!r}", "a whole number of 1 or more")


def _check_no_class(name: str, value: Any, wanted: str = "an instance", example: str = "") -> None:
    """``example``: with a place for the name of the class."""
    if inspect.isclass(value):
        raise _wrong(
            f"{name} is the class {value.__name__}", wanted, (example or f"{name}={{}}(...)").format(value.__name__)
        )


def _check_function(name: str, value: Any, count: int, form: str, wanted: str, example: str = "") -> None:
    """Checks that it can be called with so many positional arguments, as ``form`` shows; a made scheduler cannot."""
    if not callable(value) or isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        raise _wrong(f"{name} is {_kind(value)}", wanted, example)
    with contextlib.suppress(TypeError, ValueError):  # a builtin without a signature: the first call reports
        signature = inspect.signature(value)
        try:
            signature.bind(*[None] * count)
        except TypeError:
            raise _wrong(f"{name}{signature} cannot be called as {form}", form, example) from None


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    kind = type(value)
    home = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"of type {home}{kind.__qualname__}"


def _wrong(given: str, wanted: str, example: str = "") -> WorkloadError:
    hint = f"such as {example}" if example.startswith(("loss=", "optimizer=", "scheduler=", "max_")) else example
    return WorkloadError(
        f"workload: {given}; wanted: {wanted}", hint=hint, detail=f"The shortest that works:\n\n{EXAMPLE}"
    )
