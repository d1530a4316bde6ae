"""Whether two forwards compute the same: outputs, and gradients of input and parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from autoopt_strategies.compute.attention.capture import Refused, first_line, silent, tensors_of, with_tensors

TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-9, torch.bfloat16: 4e-2, torch.float16: 1e-2}
"""The largest difference that is one to us, in units of the largest number compared."""

LOWER = 2e-2
"""The same under autocast, where it is not rounded worse by itself."""

COMPARED = ("outputs", "gradients of the input", "gradients of the parameters")
DROPOUT = (F.dropout, torch.dropout, torch.dropout_, torch.ops.aten.dropout.default, torch.ops.aten.dropout_.default)


Places = Sequence[tuple[int, int]]
"""Where the tensors of a call have their batch dimension: the number of the tensor and the dimension."""


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
    except RuntimeError:  # it was set by the newer ``fp32_precision``, and torch tells the older no more
        before, newer = "", [place.fp32_precision for place in places]
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if before:
            torch.set_float32_matmul_precision(before)
        for place, precision in zip(places, newer, strict=False):
            place.fp32_precision = precision


def sample_places(module: nn.Module, given: dict[str, Any]) -> Places:
    """The batch dimension of a call; nothing where no dimension is seen to hold samples that do not touch each other.

    The first and the last place alone must give what they give among the others: along a length, or in a batch that
    is normalized together, they do not.
    """
    tensors = tensors_of(given)
    outputs = _forward(module, given) if tensors else []
    for dimension in range(min(2, tensors[0].dim() - 1) if outputs else 0):
        size = tensors[0].shape[dimension]
        places = [
            (number, dimension)
            for number, tensor in enumerate(tensors)
            if tensor.dim() > dimension and tensor.shape[dimension] == size
        ]
        if size <= 2 or not all(out.dim() > dimension and out.shape[dimension] == size for out in outputs):
            continue
        try:
            check([_ends(out, dimension) for out in outputs], [*_forward(module, few(given, places))], "samples")
        except Refused:
            continue
        return places
    return []


def few(given: dict[str, Any], places: Places) -> dict[str, Any]:
    """A call with the first and the last sample alone; all of it where the places do not have one size."""
    tensors = tensors_of(given)
    sizes = {tensors[number].shape[dimension] for number, dimension in places}
    if len(sizes) != 1 or sizes.pop() <= 2:
        return given
    for number, dimension in places:
        tensors[number] = _ends(tensors[number], dimension)
    return with_tensors(given, tensors)


def _ends(tensor: torch.Tensor, dimension: int) -> torch.Tensor:
    """The first and the last place of a dimension, in the memory order of the whole."""
    step = tensor.shape[dimension] - 1
    return tensor.detach()[(slice(None),) * dimension + (slice(None, None, step),)]


def _forward(module: nn.Module, given: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that a forward gives, without dropout; none where it fails."""
    tensors = [tensor.detach().clone() for tensor in tensors_of(given)]
    try:
        with torch.no_grad(), torch.random.fork_rng(), full_precision(), NoDropout(), silent():
            torch.manual_seed(0)
            leaves = pytree.tree_leaves(module(**with_tensors(given, tensors)))
    except Exception:  # another number of samples may not be taken
        return []
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def compare(
    one: Callable[..., Any],
    other: Callable[..., Any],
    module: nn.Module,
    given: dict[str, Any],
    lower: torch.dtype | None = None,
) -> None:
    """Compares outputs and gradients of two forwards, called with a module and arguments by name.

    Args:
        lower: dtype of autocast; none where None.

    Raises:
        Refused: they differ by more than rounding.
    """
    device = tensors_of(given)[0].device.type
    autocast = torch.autocast(device, dtype=lower) if lower is not None else nullcontext()
    with full_precision():
        results = _results(one, module, given, autocast), _results(other, module, given, autocast)
        exact = results[0] if lower is None else _results(one, module, given, nullcontext())
    if results[0][0] != results[1][0]:
        raise Refused("the outputs are not built alike")
    for expected, got, true, what in zip(results[0][1:], results[1][1:], exact[1:], COMPARED, strict=True):
        check(expected, got, what, true if lower is not None else None)


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


def _results(
    function: Callable[..., Any], module: nn.Module, given: dict[str, Any], autocast: AbstractContextManager[Any]
) -> tuple[Any, ...]:
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
                found = function(module, **with_tensors(given, reached))
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
