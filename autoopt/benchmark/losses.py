"""The loss as ``loss(model, batch)``, and the losses of a run of steps, recorded at next to no cost."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autoopt.errors import WorkloadError

Loss = Callable[[Any, Any], torch.Tensor]

_MODEL_NAMES = {"model", "module", "net", "network", "m"}
_OUTPUT_NAMES = {
    *("input", "inputs", "output", "outputs", "out", "logit", "logits", "scores"),
    *("pred", "preds", "prediction", "predictions", "y_pred", "y_hat", "yhat"),
}
_PRODUCTS = ("AddmmBackward", "MmBackward", "LinearBackward")
_LAYOUT = {
    f"{name}Backward"
    for name in (
        *("NllLoss", "NllLoss2D", "LogSoftmax", "View", "UnsafeView", "Reshape", "ReshapeAlias", "Clone", "ToCopy"),
        *("Transpose", "Permute", "Slice", "Select", "Squeeze", "Unsqueeze"),
    )
}
"""Between a head and its loss: what leaves each row of logits whole, and the loss itself."""
Recorded = torch.Tensor | float


def is_criterion(loss: Any) -> bool:
    """Whether a loss compares an output with a label, rather than taking model and batch.

    Known from the names and annotations of its parameters; an ``nn.Module`` and a function of
    ``torch.nn.functional`` are criteria, anything else that does not say so is a closure.
    """
    function = loss.forward if isinstance(loss, nn.Module) else loss
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if str(getattr(inner, "__module__", "")).startswith(("torch.nn.functional", "torch._C._nn")):
        return True
    try:
        first = next(iter(inspect.signature(function).parameters.values()))
    except (TypeError, ValueError, StopIteration):
        return isinstance(loss, nn.Module)
    if first.name.lower() in _MODEL_NAMES or _annotated(first, "Module"):
        return False
    if first.name.lower() in _OUTPUT_NAMES or _annotated(first, "Tensor"):
        return True
    return isinstance(loss, nn.Module)


def _annotated(parameter: inspect.Parameter, name: str) -> bool:
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return text.rpartition(".")[2] == name


def history(tensor: torch.Tensor) -> Iterator[Any]:
    """The nodes of a tensor's backward graph, each once, its own first."""
    waiting, seen = [tensor.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [before for before, _ in node.next_functions]


def _kind(node: Any) -> str:
    return str(node.name()).rstrip("0123456789")


def _signed(saved: int) -> int:
    """A number of a node, which torch gives back as an unsigned one."""
    return saved if saved < 2**63 else saved - 2**64


def takes_probabilities(loss: torch.Tensor) -> bool:
    """Whether a loss was made by ``binary_cross_entropy`` of probabilities, as its history reports.

    A low precision rounds a probability near 1 to 1 itself, from where no gradient leads back.
    """
    return any(node.name().startswith("BinaryCrossEntropyBackward") for node in history(loss))


@dataclass(frozen=True)
class LossHead:
    """A product whose outputs are the logits of a loss's one ``cross_entropy``, as its history reports.

    ``weight``: the parameter, a row for each class. ``rows``: of logits, ``labelled`` of them with a label that counts.
    """

    weight: torch.Tensor
    rows: int
    labelled: int


def loss_head(loss: torch.Tensor) -> LossHead | None:
    """The head of a loss before its backward pass; None where logits go another way, or classes are weighted."""
    losses = [node for node in history(loss) if _kind(node) in ("NllLossBackward", "NllLoss2DBackward")]
    if len(losses) != 1 or losses[0]._saved_weight is not None:
        return None
    labels = losses[0]._saved_target
    node, classes = losses[0], 0
    while node is not None and _kind(node) in _LAYOUT:
        if _kind(node) == "LogSoftmaxBackward":
            classes = node._saved_result.shape[_signed(node._saved_dim)]
        node = node.next_functions[0][0]
    for factor, _ in node.next_functions if node is not None and _kind(node) in _PRODUCTS else ():
        while factor is not None and _kind(factor) in ("TBackward", "ToCopyBackward"):
            factor = factor.next_functions[0][0]
        weight = getattr(factor, "variable", None)
        if weight is not None and weight.ndim == 2 and weight.shape[0] == classes:
            kept = labels != _signed(losses[0]._saved_ignore_index)
            return LossHead(weight, labels.numel(), int(kept.sum()))
    return None


class Criterion:
    """A criterion as ``loss(model, batch)``."""

    def __init__(self, criterion: Callable[[Any, Any], torch.Tensor]) -> None:
        self.criterion = criterion

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        try:
            if isinstance(batch, dict):
                raise TypeError
            inputs, labels = batch
        except (TypeError, ValueError):
            raise WorkloadError(
                f"loss is a criterion, which needs (input, label) batches; this batch is {structure(batch)}",
                hint="loss=lambda model, batch: F.cross_entropy(model(batch['x']), batch['y'])",
            ) from None
        return self.criterion(model(inputs), labels)


def check_loss(loss: Any) -> None:
    """Raises what is wrong with a loss value.

    Raises:
        WorkloadError: no scalar tensor, or one without a gradient.
    """
    example = "loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])"
    if not isinstance(loss, torch.Tensor):
        inner = " with a field .loss: return that" if hasattr(loss, "loss") else ""
        raise WorkloadError(f"the loss is {structure(loss)}{inner}; wanted: a scalar tensor", hint=f"such as {example}")
    if loss.dim() != 0 and loss.numel() != 1:
        raise WorkloadError(
            f"the loss is a tensor of shape {tuple(loss.shape)}; wanted: a scalar",
            hint="reduce it, such as loss.mean(), or reduction='mean' in the criterion",
        )
    if not loss.requires_grad:
        raise WorkloadError(
            "the loss does not require a gradient, so that nothing can be learnt from it",
            hint="compute it from the model's output, without .item(), .detach() or torch.no_grad()",
        )


def structure(value: Any) -> str:
    """A value in a few words, such as ``a dict with keys 'x', 'y'`` or ``a tuple of 3``."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, dict):
        return f"a dict with keys {', '.join(map(repr, value))}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"of type {type(value).__name__}"


def transformed_loss(given: Any, transforms: Iterable[Callable[[Loss], Loss]], device: torch.device) -> Loss:
    """The workload's loss as ``loss(model, batch)``, on the device, as a setup's transforms make it."""
    if isinstance(given, nn.Module):
        given.to(device)
    loss: Loss = Criterion(given) if is_criterion(given) else given
    for transform in transforms:
        loss = transform(loss)
    return loss


class LossRecorder:
    """Takes the loss of each step as it comes.

    On the CPU it is read at once, by the one way that calls no operator of torch (``item`` costs a short step most of
    a per cent), and not held: how long a loop holds a loss decides what memory its next step gets.
    Elsewhere reading it would wait for the device: copies are held there until the end (a replayed CUDA graph
    writes the next loss to the same place).

    Attributes:
        taken: numbers on the CPU, tensors elsewhere.
    """

    def __init__(self, on_cpu: bool) -> None:
        self._on_cpu = on_cpu
        self.taken: list[Recorded] = []

    def __len__(self) -> int:
        return len(self.taken)

    def add(self, loss: torch.Tensor) -> None:
        if self._on_cpu:
            self.extend([loss.tolist()])
        else:
            self.taken.append(loss.detach().clone())

    def extend(self, read: Iterable[Any]) -> None:
        """The losses of more steps as ``tolist`` gave them: numbers, or lists around one number."""
        self.taken += [value if type(value) is float else number(value) for value in read]

    def losses(self) -> tuple[float | None, ...]:
        """All of them, by step; None where one is not finite."""
        tensors = [loss.detach().reshape(()).float() for loss in self.taken if isinstance(loss, torch.Tensor)]
        read = iter(torch.stack(tensors).tolist() if tensors else ())  # from the device at once
        values = [next(read) if isinstance(loss, torch.Tensor) else loss for loss in self.taken]
        return tuple(value if math.isfinite(value) else None for value in values)


def number(value: Any) -> float:
    """A loss as ``tolist`` gave it, a number or lists around one."""
    while isinstance(value, list):
        (value,) = value
    return float(value)
