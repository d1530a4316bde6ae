"""A head whose logits are made by the loss: some rows at a time, each let go of before the next.

The head of a language model gives one number for each token and word of the vocabulary, which the loss reads once:
often the largest tensor of a step. Here the head gives a tensor that knows how it is made. Where ``cross_entropy`` gets
it, or ``nll_loss`` gets their ``log_softmax``, loss and gradients are computed chunk by chunk; anything else that is
done with it makes the logits as before.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from autoopt_strategies.compute.rewriting.source import with_method
from autoopt_strategies.compute.rewriting.survey import same
from autoopt_strategies.trying import first_line

How = tuple[int, int, bool]


def defer_head(model: nn.Module, path: str, rows: int, multiple: int = 1, labelled: bool = False) -> nn.Module:
    """The model, in place, whose head leaves its logits to the loss.

    Args:
        path: of the head, an ``nn.Linear``.
        rows: of hidden states in a chunk.
        multiple: to which the vocabulary is padded inside; words that are not there have no share in the loss.
        labelled: no logits are made of rows whose label is ignored; a CUDA device is waited for to count the others.
    """

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        """:class:`Logits` in training; elsewhere, and where it is compiled, a linear layer as it was."""
        if not self.training or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return F.linear(x, self.weight, self.bias)
        kind = x.device.type
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return Logits(x, self, (rows, multiple, labelled), cast)

    head = model.get_submodule(path)
    head.__class__ = with_method(type(head), "forward", forward)
    return model


class Logits(torch.Tensor):
    """``F.linear(hidden, head.weight, head.bias)``, made when it is asked for.

    Args:
        hidden: what the head was called with.
        head: the linear layer.
        how: the loss is made of it: rows, multiple and labelled of :func:`defer_head`.
        cast: the dtype of autocast in which it was called; None where that was off.
        moved: whether words stand in dimension 1 rather than in the last.
        full: whether the user has made them float32.
        logs: whether the user has made them logarithms of probabilities.
    """

    @staticmethod
    def __new__(cls, hidden: torch.Tensor, head: Any, how: How, cast: Any, **states: bool) -> Any:
        shape = (*hidden.shape[:-1], head.out_features)
        if states.get("moved"):
            shape = (shape[0], shape[-1], *shape[1:-1])
        dtype = torch.float32 if states.get("full") else cast or hidden.dtype
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=hidden.device, requires_grad=True)

    def __init__(self, hidden: torch.Tensor, head: Any, how: How, cast: Any, **states: bool) -> None:
        self._hidden, self._head, self._how, self._cast = hidden, head, how, cast
        self._moved, self._full, self._logs = (states.get(name, False) for name in ("moved", "full", "logs"))
        self._made: torch.Tensor | None = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, first = getattr(func, "__name__", ""), args[0] if args else kwargs.get("input")
        if name in ("__get__", "size", "dim", "ndimension", "is_floating_point", "stride", "is_contiguous"):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if isinstance(first, Logits) and first._made is None:
            known = _KNOWN.get(name)
            derived = known(first, *args[1:], **kwargs) if known is not None else None
            if derived is not None:
                return derived
            if func is F.cross_entropy or (func is F.nll_loss and first._logs):
                found = _cross_entropy(first, *args[1:], **{k: v for k, v in kwargs.items() if k != "input"})
                if found is not None:
                    return found
        return func(*_plain(args), **_plain(kwargs))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return func(*_plain(args), **_plain(kwargs or {}))

    def logits(self) -> torch.Tensor:
        """The numbers themselves, with their history."""
        if self._made is None:
            kind, dtype = self._hidden.device.type, self._cast
            off = torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
            with torch.autocast(kind, dtype=dtype) if dtype is not None else off:
                made = F.linear(self._hidden, self._head.weight, self._head.bias)
            made = made.float() if self._full else made
            made = F.log_softmax(made, dim=-1) if self._logs else made
            self._made = made.movedim(-1, 1) if self._moved else made
        return self._made


def _plain(value: Any) -> Any:
    """The same with logits in place of what stands for them."""
    if isinstance(value, Logits):
        return value.logits()
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    return {key: _plain(item) for key, item in value.items()} if type(value) is dict else value


# Operations that leave each row of words whole: they are done to the hidden states.


def _derived(given: Logits, hidden: torch.Tensor | None = None, **changed: bool) -> Logits:
    states = {"moved": given._moved, "full": given._full, "logs": given._logs, **changed}
    return Logits(given._hidden if hidden is None else hidden, given._head, given._how, given._cast, **states)


def _reshaped(given: Logits, *shape: Any) -> Logits | None:
    sizes = list(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else list(shape)
    words = given.shape[-1]
    if given._moved or not sizes or not all(isinstance(size, int) for size in sizes):
        return None
    rows = given._hidden.numel() // given._hidden.shape[-1]
    if sizes[-1] != words and not (sizes[-1] == -1 and -1 not in sizes[:-1] and prod(sizes[:-1]) == rows):
        return None
    return _derived(given, given._hidden.reshape(*sizes[:-1], given._hidden.shape[-1]))


def _flattened(given: Logits, start_dim: int = 0, end_dim: int = -1) -> Logits | None:
    last = end_dim % given.ndim
    if given._moved or last == given.ndim - 1:
        return None
    return _derived(given, given._hidden.flatten(start_dim, last))


def _indexed(given: Logits, index: Any) -> Logits | None:
    items = list(index) if isinstance(index, tuple) else [index]
    if given._moved or not all(item is Ellipsis or isinstance(item, (int, slice)) for item in items):
        return None
    if Ellipsis in items:
        place = items.index(Ellipsis)
        items[place : place + 1] = [slice(None)] * (given.ndim - len(items) + 1)
    if len(items) == given.ndim:
        if items[-1] != slice(None):
            return None
        items.pop()
    return _derived(given, given._hidden[tuple(items)])


def _transposed(given: Logits, one: int, other: int) -> Logits | None:
    if given.ndim != 3 or given._moved or {one % 3, other % 3} != {1, 2}:
        return None
    return _derived(given, moved=True)


def _float(given: Logits) -> Logits:
    return _derived(given, full=True)


def _log_softmax(given: Logits, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Logits | None:
    words = 1 if given._moved else given.ndim - 1
    if not isinstance(dim, int) or dim % given.ndim != words or dtype not in (None, torch.float32):
        return None
    kind = given._hidden.device.type  # autocast has it in float32
    return _derived(given, logs=True, full=given._full or dtype is not None or torch.is_autocast_enabled(kind))


_KNOWN: dict[str, Callable[..., Logits | None]] = {
    "view": _reshaped,
    "reshape": _reshaped,
    "flatten": _flattened,
    "__getitem__": _indexed,
    "transpose": _transposed,
    "permute": lambda given, *to: (
        _transposed(given, 1, 2) if tuple(to[0] if len(to) == 1 else to) == (0, 2, 1) else None
    ),
    "float": _float,
    "log_softmax": _log_softmax,
    "to": lambda given, *to, **more: _float(given) if to == (torch.float32,) and not more else None,
    "contiguous": lambda given, *more, **named: None if more or named else given,
}


def _cross_entropy(
    given: Logits,
    target: torch.Tensor,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor | None:
    """The loss in chunks; None where chunks do not add up to it. A second ``log_softmax`` changes nothing."""
    plain = weight is None and size_average is None and reduce is None and reduction in ("mean", "sum")
    rows = given._hidden.shape[:-1]
    if not plain or target.is_floating_point() or target.shape != rows or (given.ndim > 2 and not given._moved):
        return None
    hidden = given._hidden.reshape(-1, given._hidden.shape[-1])
    kind = hidden.device.type
    full = given._full or torch.is_autocast_enabled(kind)  # autocast has this loss in float32
    head, (chunk, multiple, labelled) = given._head, given._how
    multiple = 1 if label_smoothing else multiple  # smoothing would give a share to words that are not there
    how = {"ignore_index": ignore_index, "label_smoothing": float(label_smoothing)}
    labels = target.reshape(-1)
    if labelled:
        counts = labels != ignore_index
        hidden, labels = hidden[counts], labels[counts]
    given_so = (hidden, head.weight, head.bias, labels, chunk, multiple, given._cast, full, how)
    total: torch.Tensor = ChunkedLoss.apply(*given_so)  # type: ignore[no-untyped-call]
    return total / (labels != ignore_index).sum() if reduction == "mean" else total


class ChunkedLoss(torch.autograd.Function):
    """The sum of the losses of all rows; gradients are made together with the loss, so that no logits are kept."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Any, weight: Any, bias: Any, labels: Any, rows: int, multiple: int, cast: torch.dtype | None,
        full: bool, how: dict[str, Any],
    ) -> Any:  # fmt: skip
        """``full``: the loss is float32; ``how``: what ``cross_entropy`` gets besides."""
        dtype = cast or hidden.dtype
        words, more = weight.shape[0], -weight.shape[0] % multiple
        table = F.pad(weight.to(dtype), (0, 0, 0, more)) if more else weight.to(dtype)
        offset = None if bias is None else F.pad(bias.to(dtype), (0, more))
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        to_hidden = torch.empty_like(hidden) if wants_hidden else None
        to_weight = torch.zeros_like(table, dtype=weight.dtype) if wants_weight else None
        to_bias = torch.zeros(words + more, dtype=bias.dtype, device=bias.device) if wants_bias else None
        total = torch.zeros((), dtype=torch.float32 if full else dtype, device=hidden.device)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, hidden.shape[0], rows):
                chunk = slice(start, start + rows)
                part = hidden[chunk].to(dtype)
                logits = F.linear(part, table, offset)
                if more:
                    logits[:, words:] = -torch.inf
                with torch.enable_grad():
                    logits.requires_grad_()
                    loss = F.cross_entropy(logits.float() if full else logits, labels[chunk], reduction="sum", **how)
                    (grad,) = torch.autograd.grad(loss, logits)
                total += loss.detach()
                if to_hidden is not None:
                    to_hidden[chunk] = grad @ table
                if to_weight is not None:
                    if grad.dtype == to_weight.dtype:
                        to_weight.addmm_(grad.t(), part)  # needs no other tensor of its size
                    else:
                        to_weight += grad.t() @ part
                if to_bias is not None:
                    to_bias += grad.sum(0)
        ctx.words = words
        ctx.save_for_backward(to_hidden, to_weight, to_bias)
        return total

    @staticmethod
    def backward(ctx: Any, factor: Any) -> Any:
        to_hidden, to_weight, to_bias = ctx.saved_tensors
        weight = None if to_weight is None else to_weight[: ctx.words] * factor
        bias = None if to_bias is None else to_bias[: ctx.words] * factor
        hidden = None if to_hidden is None else to_hidden * factor
        return hidden, weight, bias, None, None, None, None, None, None


# the head that goes into a loss, and whether chunks give the same


def head_of_loss(live: Any, least_bytes: int = 0) -> dict[str, Any]:
    """``{"path": of the head, "rows", "words": of its logits, "labelled": rows whose label counts}``, or why none.

    A script's own loss cannot be computed by itself: whether chunks give the same is left to the training's probes.

    Args:
        least_bytes: logits in float32 that take less are not worth a check.

    Returns:
        ``{"reason": ...}`` where there is none.
    """
    training = live.training
    head = training.loss_head
    roots = training.roots
    named = roots[0].named_modules() if head is not None and len(roots) == 1 else ()
    path = next((name for name, each in named if type(each) is nn.Linear and each.weight is head.weight), None)
    if path is None:
        return {"reason": "no linear layer's outputs go into one cross-entropy"}
    rows, words = head.rows, head.weight.shape[0]
    if 4 * rows * words < least_bytes:
        return {"reason": f"the logits are small: {rows} rows of {words} words"}
    if training.takes_batches:
        try:
            reason = _different(training, path, max(1, rows // 3))
        except Exception as error:  # a model that does not like to be copied or examined is left alone
            reason = f"the loss cannot be traced: {first_line(error)}"
        if reason:
            return {"reason": reason}
    return {"path": path, "rows": rows, "words": words, "labelled": head.labelled}


def seconds_of_head(live: Any, found: dict[str, Any], settings: list[dict[str, Any]]) -> list[float]:
    """Seconds of head and loss, forward and backward, on rows drawn at random: as they are, and with each setting."""
    training = live.training
    head = copy.deepcopy(training.roots[0].get_submodule(found["path"])).train()
    hidden = torch.randn(found["rows"], head.in_features, device=head.weight.device, dtype=head.weight.dtype)
    labels = torch.full((found["rows"],), -100, device=hidden.device)
    labels[: found["labelled"]] = 0
    whole = nn.Sequential(head)
    models = [whole, *(defer_head(copy.deepcopy(whole), **{**setting, "path": "0"}) for setting in settings)]

    def seconds(model: nn.Module) -> float:
        began = training.device.now()
        with torch.enable_grad(), training.autocast or nullcontext():
            loss = F.cross_entropy(model(hidden.clone().requires_grad_()), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        training.device.synchronize()
        return training.device.now() - began  # type: ignore[no-any-return]

    return [min(seconds(model) for _ in range(2)) for model in models]


def _different(training: Any, path: str, rows: int) -> str | None:
    """Why chunks are not used or give something else; None where they give the same loss and gradients."""
    model, batch = copy.deepcopy(training.model), training.next()[0]
    changed = defer_head(copy.deepcopy(model), path, rows, labelled=True)

    def loss(model: Any, batch: Any) -> Any:
        with training.autocast or nullcontext():
            return training.loss(model, batch)

    with torch.random.fork_rng():
        waiting, seen = [loss(copy.deepcopy(changed), batch).grad_fn], set()
    while waiting:  # back to what chunks give
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    if not any(node.name() == f"{ChunkedLoss.__name__}Backward" for node in seen):
        return "the logits are used in a way that needs all of them at once"
    return None if same(model, changed, loss, batch) else "in chunks the loss or its gradients are others"
