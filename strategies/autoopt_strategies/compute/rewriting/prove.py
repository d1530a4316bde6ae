"""Whether two modules compute the same: outputs, and gradients of input and parameters."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from autoopt_strategies.common import first_line
from autoopt_strategies.compute.rewriting.source import Refused

TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-9, torch.bfloat16: 4e-2, torch.float16: 1e-2}
"""The largest difference that is one to us, in units of the largest number compared."""

LOWER = 2e-2
"""The same under autocast, where it is not rounded worse by itself."""

COMPARED = ("outputs", "gradients of the input", "gradients of the parameters")
DROPOUT = (F.dropout, torch.dropout, torch.dropout_, torch.ops.aten.dropout.default, torch.ops.aten.dropout_.default)


class NoDropout(TorchFunctionMode):
    """Takes all dropout out, in modules, functions and attention, so that two ways of computing can be compared."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUT:
            return args[0]
        if func is F.scaled_dot_product_attention:
            return func(*args, **(kwargs | {"dropout_p": 0.0}))
        return func(*args, **kwargs)


@contextmanager
def full_precision() -> Iterator[None]:
    """Products in full float32: two ways of computing differ by more than rounding where TF32 is on."""
    places: list[Any] = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]  # type: ignore[attr-defined]
    try:
        before, newer = torch.get_float32_matmul_precision(), []
    except RuntimeError:  # it was set by the newer ``fp32_precision``, and torch no longer reports the older
        before, newer = "", [place.fp32_precision for place in places]
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if before:
            torch.set_float32_matmul_precision(before)
        for place, precision in zip(places, newer, strict=False):
            place.fp32_precision = precision


def bound(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, defaults included.

    Raises:
        Refused: a call with any number of positional arguments.
    """
    found = inspect.signature(module.forward).bind(*args, **kwargs)
    found.apply_defaults()
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(module.forward).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= found.arguments[name]
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            given[name] = found.arguments[name]
        elif found.arguments[name]:
            raise Refused("it is called with any number of arguments")
    return given


def tensors_of(given: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors of a call."""
    return [leaf for leaf in pytree.tree_leaves(list(given.values())) if isinstance(leaf, torch.Tensor)]


def with_tensors(given: dict[str, Any], tensors: list[torch.Tensor]) -> dict[str, Any]:
    """The same call with other tensors."""
    rest = iter(tensors)
    flat, spec = pytree.tree_flatten(list(given.values()))
    flat = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
    return dict(zip(given, pytree.tree_unflatten(flat, spec), strict=True))


def one_smaller(module: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
    """The call with sizes one smaller wherever the module takes them.

    What holds at one length may hold at that one alone.
    """
    tensors = [tensor.detach() for tensor in tensors_of(given)]
    free = {size for tensor in tensors for size in tensor.shape[: max(1, tensor.dim() - 1)] if size > 3}
    for size in sorted(free):
        everywhere = [(place, each) for place, item in enumerate(tensors) for each in range(item.dim())]
        places = [(place, each) for place, each in everywhere if tensors[place].shape[each] == size]
        # A length may be equal to a width, which cannot be smaller: all of one size, those of one place, one alone.
        groups = [places, *([pair for pair in places if pair[1] == each] for each in sorted({x for _, x in places}))]
        for group in [*groups, *([pair] for pair in places)]:
            trial = list(tensors)
            for place, dimension in group:
                trial[place] = trial[place].narrow(dimension, 0, size - 1)
            if runs(module, with_tensors(given, trial)):
                tensors = trial
                break
    return with_tensors(given, tensors)


def runs(module: nn.Module, given: dict[str, Any]) -> bool:
    try:
        with torch.no_grad(), torch.random.fork_rng(), warnings.catch_warnings():
            module(**given)
    except Exception:
        return False
    return True


def compare(
    plain: nn.Module,
    changed: nn.Module,
    given: dict[str, Any],
    lower: torch.dtype | None = None,
    share: float | None = None,
) -> None:
    """Compares outputs and gradients of a module and its rewritten copy, called with arguments by name.

    Args:
        lower: dtype of autocast; none where None.
        share: the largest difference in units of the largest number; that of the dtype where None.

    Raises:
        Refused: they differ by more than rounding.
    """
    device = tensors_of(given)[0].device.type
    autocast = torch.autocast(device, dtype=lower) if lower is not None else nullcontext()
    with full_precision():
        results = _results(plain, given, autocast), _results(changed, given, autocast)
        exact = results[0] if lower is None else _results(plain, given, nullcontext())
    if results[0][0] != results[1][0]:
        raise Refused("the outputs are not built alike")
    for expected, got, true, what in zip(results[0][1:], results[1][1:], exact[1:], COMPARED, strict=True):
        check(expected, got, what, true if lower is not None else None, share)


def check(
    expected: list[torch.Tensor | None],
    got: list[torch.Tensor | None],
    what: str,
    exact: list[torch.Tensor | None] | None = None,
    share: float | None = None,
) -> None:
    """Compares tensors pair by pair.

    Args:
        exact: the same in full precision, where both were computed in a lower one: they may be as far from each other
            as the expected ones are from the exact ones.
        share: the largest difference in units of the largest number; that of the dtype where None.

    Raises:
        Refused: they differ by more than rounding.
    """
    if [a is None for a in expected] != [b is None for b in got]:
        raise Refused(f"the {what} are not the same in number")
    pairs = [
        (a.detach(), b.detach(), c.detach())
        for a, b, c in zip(expected, got, exact or expected, strict=True)
        if a is not None and b is not None and c is not None
    ]
    largest = max((_size(a) for a, *_ in pairs), default=0.0)
    for a, b, true in pairs:
        if a.shape != b.shape or a.dtype != b.dtype or not torch.equal(a.isfinite(), b.isfinite()):
            raise Refused(f"the {what} differ in shape, dtype or in what is not finite")
        most = share or (LOWER if exact is not None else TOLERANCE.get(a.dtype, 1e-4))
        # Some gradients are zero but for rounding (a bias of the keys), so the others' size counts a little.
        limit = most * max(_size(a), (LOWER if exact is not None else 1e-3) * largest, 1e-9)
        limit = max(limit, 2 * _distance(a, true))
        if (off := _distance(a, b)) > limit:
            raise Refused(f"the {what} differ by {off:.2g}, of {_size(a):.2g}")


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return _size(a.double().nan_to_num(0, 0, 0) - b.double().nan_to_num(0, 0, 0))


def _size(tensor: torch.Tensor) -> float:
    """The largest number in a tensor, those that are not finite left out."""
    return float(tensor.double().nan_to_num(0, 0, 0).abs().max()) if tensor.numel() else 0.0


def _results(module: nn.Module, given: dict[str, Any], autocast: AbstractContextManager[Any]) -> tuple[Any, ...]:
    values = [
        tensor.detach().clone().requires_grad_(tensor.is_floating_point() or tensor.is_complex())
        for tensor in tensors_of(given)
    ]
    inputs = [value for value in values if value.requires_grad]
    # What is written into in place must not be a leaf.
    reached = [value.clone() if value.requires_grad else value for value in values]
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    devices = {value.device for value in values if value.device.type == "cuda"}
    with torch.enable_grad(), torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(0)
        try:
            with autocast, NoDropout():
                found = module(**with_tensors(given, reached))
        except Exception as error:
            raise Refused(f"it cannot be tried on a copy: {first_line(error)}") from None
        flat, spec = pytree.tree_flatten(found)
        outputs = [item for item in flat if isinstance(item, torch.Tensor)]
        loss = sum(((out * _weights(out)).sum().float() for out in outputs if out.requires_grad), 0.0)
        if not isinstance(loss, torch.Tensor):
            raise Refused("its output has no gradient")
        gradients = torch.autograd.grad(loss, [*inputs, *parameters], allow_unused=True)
    return spec, outputs, list(gradients[: len(inputs)]), list(gradients[len(inputs) :])


def _weights(out: torch.Tensor) -> torch.Tensor:
    """A weight for each number of an output, so that gradients do not cancel."""
    return torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).to(out.dtype)


def gradients(model: nn.Module, loss: Callable[[Any, Any], Any], batch: Any) -> list[torch.Tensor | None]:
    """The loss of a batch and the gradients of a copy's parameters, without dropout."""
    tried = copy.deepcopy(model)
    with torch.enable_grad(), torch.random.fork_rng(), full_precision():
        torch.manual_seed(0)
        with NoDropout():
            value = loss(tried, batch)
        parameters = [parameter for parameter in tried.parameters() if parameter.requires_grad]
        return [value.detach(), *torch.autograd.grad(value, parameters, allow_unused=True)]
