"""Functions of a model that can be rewritten: what a pass calls them with, and whether an edit computes the same."""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from autoopt_strategies.compute.rewriting.source import Edits, Refused, rewrite_functions, rewritten, users_path
from autoopt_strategies.trying import first_line, ratio_in_turns

TORCH = str(Path(torch.__file__).parent)
WHOLE = 1e-2
"""The largest difference of a whole model's loss and gradients that is rounding, in units of the largest number."""

Call = tuple[tuple[Any, ...], dict[str, Any]]
Given = dict[str, Any]
TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-9, torch.bfloat16: 4e-2, torch.float16: 1e-2}
"""The largest difference that is one to us, in units of the largest number compared."""

LOWER = 2e-2
"""The same under autocast, where it is not rounded worse by itself."""

COMPARED = ("outputs", "gradients of the input", "gradients of the parameters")
DROPOUT = (F.dropout, torch.dropout, torch.dropout_, torch.ops.aten.dropout.default, torch.ops.aten.dropout_.default)

RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


class NoDropout(TorchFunctionMode):
    """Takes all dropout out, in modules, functions, attention and recurrent layers, so that two ways of computing can
    be compared."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUT:
            return args[0]
        if func is F.scaled_dot_product_attention:
            return func(*args, **(kwargs | {"dropout_p": 0.0}))
        if func in RECURRENT:  # the only argument that is no whole number, no tensor and no flag
            args = tuple(0.0 if isinstance(each, float) else each for each in args)
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
    return [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]


def with_tensors(given: dict[str, Any], tensors: list[torch.Tensor]) -> dict[str, Any]:
    """The same call with other tensors."""
    rest = iter(tensors)
    made: dict[str, Any] = pytree.tree_map_only(torch.Tensor, lambda _: next(rest), given)
    return made


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

    What the copy gives as None is left out: whether somebody computes with it, the whole model shows.

    Args:
        lower: dtype of autocast; none where None.
        share: the largest difference in units of the largest number; that of the dtype where None.

    Raises:
        Refused: they differ by more than rounding.
    """
    device = tensors_of(given)[0].device.type
    autocast = torch.autocast(device, dtype=lower) if lower is not None else nullcontext()
    with full_precision():
        after = _results(changed, given, autocast)
        gone = frozenset(n for n, output in enumerate(after[1]) if output is None)
        before = _results(plain, given, autocast, gone)
        exact = before if lower is None else _results(plain, given, nullcontext(), gone)
    if before[0] != after[0]:
        raise Refused("the outputs are not built alike")
    for expected, got, true, what in zip(before[1:], after[1:], exact[1:], COMPARED, strict=True):
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


def _results(
    module: nn.Module, given: dict[str, Any], autocast: AbstractContextManager[Any], gone: frozenset[int] = frozenset()
) -> tuple[Any, ...]:
    """How outputs are built, the outputs but for those that are ``gone``, and gradients of inputs and parameters."""
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
        outputs = [item if isinstance(item, torch.Tensor) and n not in gone else None for n, item in enumerate(flat)]
        learnt = [out for out in outputs if out is not None and out.requires_grad]
        if not learnt:
            raise Refused("its output has no gradient")
        # A weight for each number of an output, none negative, so that gradients do not cancel.
        weights = [torch.linspace(0, 1, out.numel(), device=out.device).view_as(out).to(out.dtype) for out in learnt]
        loss = torch.stack([(out * weight).sum().float() for out, weight in zip(learnt, weights, strict=True)]).sum()
        gradients = torch.autograd.grad(loss, [*inputs, *parameters], allow_unused=True)
    return spec, outputs, list(gradients[: len(inputs)]), list(gradients[len(inputs) :])


def gradients(model: nn.Module, loss: Callable[[Any, Any], Any], batch: Any) -> list[torch.Tensor | None]:
    """The loss of a batch and the gradients of a copy's parameters, without dropout."""
    tried = copy.deepcopy(model)
    with torch.enable_grad(), torch.random.fork_rng(), full_precision():
        torch.manual_seed(0)
        with NoDropout():
            value = loss(tried, batch)
        parameters = [parameter for parameter in tried.parameters() if parameter.requires_grad]
        return [value.detach(), *torch.autograd.grad(value, parameters, allow_unused=True)]


@dataclass(frozen=True)
class Sought:
    """One kind of code that a native operator replaces.

    Attributes:
        statements: ``(text, function, **variant) -> edits``, which process and patch make alike.
        variants: ``(module, method, given)`` to the variants that may compute the same, the likeliest first.
        calls: further calls on which a variant must compute the same, from a real one.
        share: the largest difference that is rounding, in units of the largest number; that of the dtype where None.
        each: whether modules of one class may compute different things, so that each is checked.
    """

    statements: Callable[..., Edits]
    variants: Callable[[nn.Module, Any, Given], Iterable[Mapping[str, str]]]
    calls: Callable[[Given], Sequence[Given]] = lambda given: ()
    share: float | None = None
    each: bool = False


@contextmanager
def watched(
    model: nn.Module, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None
) -> Iterator[None]:
    """Calls of a model's modules are watched, none of them compiled.

    Args:
        before: ``(path, module, args, kwargs)``.
        after: ``(path, module, args, kwargs, output)``; the output of a call that fails is None.
    """
    handles = []
    for path, module in model.named_modules():
        if before is not None:
            hook = partial(before, path)
            handles.append(module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True))
        if after is not None:
            hook = partial(after, path)
            handles.append(module.register_forward_hook(hook, with_kwargs=True, always_call=True))
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for handle in handles:
            handle.remove()


def users_frame() -> FrameType:
    """The innermost frame above the caller that is not torch's own."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(TORCH):
        frame = frame.f_back
    return frame


def survey(model: nn.Module, called: Mapping[str, tuple[CodeType, Call]], sought: Sought) -> dict[str, Any]:
    """The methods that can be edited, checked on the real input of one forward pass.

    Args:
        called: modules of the model with the function that computes what is sought, and the module's call.

    Returns:
        ``functions`` for :func:`rewrite_functions`, each with its ``file``; ``modules``: paths with their function;
        and ``refused``: reasons by the modules' paths.
    """
    results: dict[CodeType, dict[str, str] | str] = {}
    for path, (code, call) in called.items():
        known = results.get(code)
        if isinstance(known, str) or (known is not None and not sought.each):
            continue
        try:
            results[code] = _checked(model.get_submodule(path), code, call, sought, known)
        except Refused as reason:
            results[code] = str(reason)
        except Exception as error:  # a model that does not like to be examined is left alone, too
            results[code] = f"it cannot be examined: {first_line(error)}"
    found = {path: results[code] for path, (code, _) in called.items()}
    return {
        "functions": [each for each in results.values() if not isinstance(each, str)],
        "modules": {path: each for path, each in found.items() if not isinstance(each, str)},
        "refused": {path: each for path, each in found.items() if isinstance(each, str)},
    }


def _checked(
    module: nn.Module, code: CodeType, call: Call, sought: Sought, known: dict[str, str] | None
) -> dict[str, str]:
    """The variant of a function that computes the same, in both modes, at two lengths and under autocast.

    Args:
        known: the function's variant in another module, the only one that will do; it is checked on further calls.

    Raises:
        Refused: there is none.
    """
    if "forward" in vars(module):
        raise Refused("its forward was replaced from outside")
    methods = [item for kind in type(module).__mro__ for item in vars(kind).values()]
    method = next((item for item in methods if getattr(item, "__code__", None) is code), None)
    if method is None:
        raise Refused(f"{code.co_name} is no method of {type(module).__name__}, or a decorated one")
    given, bare = bound(module, *call), twin(module)
    where = {"module": method.__module__, "function": method.__qualname__, "file": users_path(code.co_filename)}
    reasons = []
    for variant in [known] if known is not None else sought.variants(module, method, given):
        wanted = {**where, **variant}
        try:
            rewritten(method, wanted, sought.statements)
            for training in (True, False):
                plain = twin(bare).train(training)
                changed = rewrite_functions(twin(bare), (wanted,), sought.statements).train(training)
                for each in (*(() if known else (given, one_smaller(plain, given))), *sought.calls(given)):
                    compare(plain, changed, each, share=sought.share)
                if not known:
                    compare(plain, changed, given, torch.bfloat16)
        except Refused as reason:
            reasons.append(reason)
            continue
        return wanted
    raise reasons[0] if reasons else Refused("no native operator computes the same")


def twin(module: nn.Module) -> nn.Module:
    """A copy without hooks."""
    try:
        copied = copy.deepcopy(module)
    except Exception as error:
        raise Refused(f"it cannot be copied: {type(error).__name__}") from None
    for each in copied.modules():
        each._forward_hooks.clear()
        each._forward_pre_hooks.clear()
    return copied


def passes_ratio(plain: nn.Module, changed: nn.Module, given: Given) -> float:
    """Seconds of forward and backward of another module over those of one, with a gradient of the input."""
    value = tensors_of(given)[0].detach()

    def passed(module: nn.Module) -> None:
        with torch.enable_grad():
            output = module(**with_tensors(given, [value.clone().requires_grad_()]))
        output.backward(torch.ones_like(output))

    return ratio_in_turns(partial(passed, plain), partial(passed, changed), value.device)


def same(model: nn.Module, changed: nn.Module, loss: Callable[[Any, Any], Any], batch: Any) -> bool:
    """Whether the whole model computes the same, as far as rounding lets many layers."""
    expected = gradients(model, loss, batch)
    try:
        check(expected, gradients(changed, loss, batch), "loss and gradients", share=WHOLE)
    except Exception:  # a caller that reads what the library's own implementation leaves out
        return False
    return True
