"""Functions of a model that can be rewritten: what a pass calls them with, and whether an edit computes the same."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from autoopt_strategies.common import first_line, ratio_in_turns
from autoopt_strategies.compute.rewriting.prove import (
    bound,
    check,
    compare,
    gradients,
    one_smaller,
    tensors_of,
    with_tensors,
)
from autoopt_strategies.compute.rewriting.source import Edits, Refused, RewriteFunctions, rewritten

TORCH = str(Path(torch.__file__).parent)
WHOLE = 1e-2
"""The largest difference of a whole model's loss and gradients that is rounding, in units of the largest number."""

Call = tuple[tuple[Any, ...], dict[str, Any]]
Given = dict[str, Any]


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
        ``functions`` for :class:`RewriteFunctions`, each with its ``file``; ``modules``: paths with their function;
        and ``refused``: reasons by the modules' paths.
    """
    functions: dict[CodeType, dict[str, str]] = {}
    reasons: dict[CodeType, str] = {}
    paths: dict[str, CodeType] = {}
    for path, (code, call) in called.items():
        paths[path] = code
        if code in reasons or (code in functions and not sought.each):
            continue
        try:
            functions[code] = _checked(model.get_submodule(path), code, call, sought, functions.get(code))
        except Refused as reason:
            reasons[code] = str(reason)
        except Exception as error:  # a model that does not like to be examined is left alone, too
            reasons[code] = f"it cannot be examined: {first_line(error)}"
    modules = {path: functions[code] for path, code in paths.items() if code not in reasons}
    return {
        "functions": [wanted for code, wanted in functions.items() if code not in reasons],
        "modules": modules,
        "refused": {path: reasons[code] for path, code in paths.items() if code in reasons},
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
    file = os.path.relpath(code.co_filename)
    where = {"module": method.__module__, "function": method.__qualname__}
    where["file"] = code.co_filename if file.startswith(os.pardir) else file
    reasons = []
    for variant in [known] if known is not None else sought.variants(module, method, given):
        wanted = {**where, **variant}
        change = RewriteFunctions((wanted,), sought.statements)
        try:
            rewritten(method, wanted, sought.statements)
            for training in (True, False):
                plain = twin(bare).train(training)
                changed = change(twin(bare)).train(training)
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

    def passed(module: nn.Module) -> Callable[[], None]:
        def run() -> None:
            with torch.enable_grad():
                output = module(**with_tensors(given, [value.clone().requires_grad_()]))
            output.backward(torch.ones_like(output))

        return run

    return ratio_in_turns(passed(plain), passed(changed), value.device)


def same(model: nn.Module, changed: nn.Module, loss: Callable[[Any, Any], Any], batch: Any) -> bool:
    """Whether the whole model computes the same, as far as rounding lets many layers."""
    expected = gradients(model, loss, batch)
    try:
        check(expected, gradients(changed, loss, batch), "loss and gradients", share=WHOLE)
    except Exception:  # a caller that reads what the library's own implementation leaves out
        return False
    return True
