"""Operators that a model writes out and that torch has faster, found by what they compute on real and random inputs."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from autoopt_strategies.compute.native_operators import OPERATORS, statements
from autoopt_strategies.compute.rewriting.calls import CallsOtherwise, survey_calls
from autoopt_strategies.compute.rewriting.source import Refused, RewriteFunctions
from autoopt_strategies.compute.rewriting.survey import (
    DROPOUT,
    Call,
    Given,
    Sought,
    bound,
    passes_ratio,
    same,
    survey,
    tensors_of,
    twin,
    watched,
    with_tensors,
)
from autoopt_strategies.predictions import LEAST_SAVING

SCALES = (0.01, 1.0, 10.0)
"""Of random inputs: small ones tell one epsilon from another, large ones an activation from one like it."""
ROUNDING = 5e-6
"""The largest difference of two spellings of a formula, in units of the largest number."""
NORMS = ("rms_norm", "layer_norm")
_LARGEST_EPS = 0.1


def survey_operators(model: nn.Module, loss: Callable[[Any, Any], Any], batch: Any) -> dict[str, Any]:
    """The hand-written operators of a model that torch has faster, checked and timed on copies with a real batch.

    Returns:
        ``functions`` for :class:`RewriteFunctions`; ``convolutions`` and ``recurrent`` for ``CallsOtherwise``; and
        ``refused``: reasons by the names of classes.
    """
    copied = copy.deepcopy(model)

    def run() -> None:
        with torch.no_grad(), torch.random.fork_rng():
            loss(copied, batch)

    def few(value: Any) -> Any:  # enough to compare what is computed for each sample alone, and sooner done
        return value[:2].clone() if isinstance(value, torch.Tensor) and value.dim() else value

    calls = _calls(copied, run)
    first = {path: (code, pytree.tree_map(few, call)) for path, (code, call) in calls.items()}
    seen = survey(copied, first, Sought(statements, _variants, _random, ROUNDING, each=True))
    refused = {type(copied.get_submodule(path)).__name__: why for path, why in seen["refused"].items()}
    functions = []
    for wanted in seen["functions"]:
        path = next(path for path, its in seen["modules"].items() if its == wanted)
        module = copied.get_submodule(path)
        changed = RewriteFunctions((wanted,), statements)(twin(module))
        ratio = passes_ratio(twin(module), changed, bound(module, *calls[path][1]))
        if ratio < 1.0 - LEAST_SAVING:
            functions.append(wanted)
        else:
            refused[wanted["function"]] = f"{wanted['native']} takes {ratio:.2f} times as long on this input"
    calls_of, why = survey_calls(copied, run)
    found: dict[str, Any] = {"functions": functions, **calls_of}
    refused |= why
    changed = RewriteFunctions(tuple(functions), statements)(copied)
    for kind, places in calls_of.items():
        changed = CallsOtherwise(kind, tuple(places.get("paths", ())))(changed)
    if any(found.values()) and not same(model, changed, loss, batch):
        refused[""] = "the rewritten model gives another loss or other gradients on a batch"
        found = dict.fromkeys(found)
    return {**found, "refused": refused}


def _calls(model: nn.Module, run: Callable[[], Any]) -> dict[str, tuple[CodeType, Call]]:
    """Modules of the user's that turned one tensor into another of its shape, their ``forward`` and its call.

    A class of which a module was not called, or was called otherwise, is left out.
    """
    sought = {
        path: module
        for path, module in model.named_modules()
        if not type(module).__module__.startswith("torch.")
        and isinstance(type(module).forward, FunctionType)
        and not any(True for child in module.children() for _ in child.parameters())
    }
    found: dict[str, tuple[CodeType, Call]] = {}
    others: set[CodeType] = set()

    def seen(path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if path not in sought:
            return
        code, given = type(module).forward.__code__, [*args, *kwargs.values()]
        one = len(given) == 1 and all(isinstance(each, torch.Tensor) for each in (*given, output))
        if one and given[0].is_floating_point() and (output.shape, output.dtype) == (given[0].shape, given[0].dtype):
            found.setdefault(path, (code, (args, dict(kwargs))))
        else:
            others.add(code)

    with watched(model, after=seen):
        run()
    others |= {type(module).forward.__code__ for path, module in sought.items() if path not in found}
    return {path: call for path, call in found.items() if call[0] not in others}


def _variants(module: nn.Module, method: Any, given: Given) -> Iterator[Mapping[str, str]]:
    """Native operators that take exactly the parameters that a module has.

    Raises:
        Refused: it does more than compute.
    """
    _only_computes(module, given)
    own = dict(module.named_parameters())
    width = tensors_of(given)[0].shape[-1:]
    if not own:
        yield from ({"native": name} for name in OPERATORS if name not in NORMS)
    if len(own) > 2 or any(parameter.shape != width for parameter in own.values()):
        return
    numbers = [name for name, value in vars(module).items() if isinstance(value, float) and 0 <= value < _LARGEST_EPS]
    numbers += [
        repr(value) for value in method.__code__.co_consts if isinstance(value, float) and 0 < value < _LARGEST_EPS
    ]
    for names, eps in itertools.product(itertools.permutations(own), [*numbers, "0.0"]):
        weight, bias = (*names, "", "")[:2]
        for native in NORMS if not bias else ("layer_norm",):
            yield {"native": native, "weight": weight, "bias": bias, "eps": eps}


def _only_computes(module: nn.Module, given: Given) -> None:
    """Checks that a module gives the same every time, without dropout, and leaves its input and itself as they are.

    Raises:
        Refused: it does not.
    """

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in DROPOUT:
                raise Refused("it holds dropout")
            return func(*args, **(kwargs or {}))

    tried = twin(module).train()
    before = _state(tried)
    call = with_tensors(given, [tensor.detach().clone() for tensor in tensors_of(given)])
    with torch.no_grad(), torch.random.fork_rng(), Watch():
        one, other = tried(**call), tried(**call)
    if not torch.equal(one, other):
        raise Refused("it gives other numbers each time")
    after = _state(tried)
    if after[0] != before[0] or any(a is not b for a, b in zip(after[1], before[1], strict=False)):
        raise Refused("it keeps something of its calls")
    if any(a._version for a in tensors_of(call)):
        raise Refused("it writes into its input")


def _state(module: nn.Module) -> tuple[list[Any], list[torch.Tensor]]:
    """What a module and those within hold, with how often each tensor was written into; and the tensors."""
    held = [item for each in module.modules() for item in vars(each).items() if not item[0].startswith("_")]
    tensors = [value for _, value in held if isinstance(value, torch.Tensor)]
    tensors += [*module.parameters(), *module.buffers()]
    plain = [(name, None if isinstance(value, torch.Tensor) else repr(value)) for name, value in held]
    return [*plain, *(tensor._version for tensor in tensors)], tensors


def _random(given: Given) -> list[Given]:
    """Random inputs of several sizes."""
    tensor = tensors_of(given)[0]
    values = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor.device, tensor.dtype)
    return [with_tensors(given, [values * scale]) for scale in SCALES]
