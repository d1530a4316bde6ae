"""A rewritten forward as plain data: a plan holds it, and modules run it for calls like the one it was proven on.

The data are the operators of a captured graph, so nothing is captured or matched again where a plan is applied. Only
operators of ATen, a few of Python, and the module's own attributes and children can be named.
"""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "attention": F.scaled_dot_product_attention,
    "getattr": getattr,
    **{
        name: getattr(operator, name)
        for name in ("getitem", "add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "neg", "and_", "or_", "not_")
    },
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: getattr(torch, name) for name in ("sym_not", "sym_max", "sym_min", "sym_float", "sym_sqrt")},
}
"""Functions that are no operators of ATen, by the names that stand for them in the data."""

MODES = ("training", "evaluation")


@dataclass(frozen=True)
class RewriteAttention:
    """``model -> model`` whose hand-written attention is computed by ``scaled_dot_product_attention``.

    Args:
        modules: names of modules, ``*`` for a number.
        cache: False where a library's models make no cache of keys and values in training (``config.use_cache``).
        forwards: the forward of each: ``training`` and ``evaluation`` (steps of a graph; a mode without them runs the
            forward as it was written), and when it may run: ``call`` (the arguments), ``sizes`` (a graph that answers
            with a truth value) and ``attributes`` (flags by path), both by mode, ``autocast`` (dtypes that were
            tried), ``any_float`` (no dtype is fixed inside).
    """

    modules: tuple[str, ...]
    forwards: tuple[dict[str, Any], ...]
    cache: bool = True

    def __call__(self, model: nn.Module) -> nn.Module:
        if not self.cache:
            without_cache(model)
        made: dict[tuple[int, type], type[nn.Module]] = {}
        for name, module in list(model.named_modules()):
            for number, (pattern, forward) in enumerate(zip(self.modules, self.forwards, strict=True)):
                if not re.fullmatch(re.escape(pattern).replace(r"\*", r"\d+"), name):
                    continue
                kind = type(module)
                try:
                    if (number, kind) not in made:
                        made[number, kind] = rewritten_class(kind, forward)
                    check_attributes(module, forward)
                except (AttributeError, TypeError) as error:
                    warnings.warn(f"{name}: attention is left as it is: {error}", stacklevel=2)
                else:
                    module.__class__ = made[number, kind]
        return model


def without_cache(model: nn.Module) -> list[Any]:
    """Turns off caches of keys and values that only generation reads; the configurations that were changed."""
    every: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    configs = {id(config): config for config in every}
    changed = [config for config in configs.values() if getattr(config, "use_cache", False) is True]
    for config in changed:
        config.use_cache = False
    return changed


def check_attributes(module: nn.Module, forward: dict[str, Any]) -> None:
    """Raises ``AttributeError`` where a module lacks what a forward reads."""
    for mode in MODES:
        for kind, target, *_ in forward.get(mode, ()):
            if kind in ("attribute", "module"):
                attribute(module, target)


def attribute(module: Any, path: str) -> Any:
    """The object at a dotted path; the module itself for the empty one."""
    return functools.reduce(getattr, path.split("."), module) if path else module


def rewritten_class(kind: Any, forward: dict[str, Any]) -> type:
    """A class like ``kind`` whose forward is the rewritten one for calls like the proven one, else its own.

    What differs from the proven call (sizes that were ruled out, another flag, another dtype, an autocast that was
    not tried) runs the forward that the author wrote. State, names and hooks are those of the module.
    """
    plain = kind.forward
    accepts = acceptance(plain, forward)
    functions = {mode: as_function(decoded(forward[mode])) for mode in MODES if mode in forward}

    def forward_rewritten(self: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = accepts(self, args, kwargs)
        if tensors is None:
            return plain(self, *args, **kwargs)
        return functions["training" if self.training else "evaluation"](self, *tensors)

    def reduced(self: Any, protocol: Any) -> Any:
        """Pickled as the module that its author wrote, which any process can load."""
        function, arguments, *rest = kind.__reduce_ex__(self, 1)  # 2 and up would insist on this class
        return function, tuple(kind if item is type(self) else item for item in arguments), *rest

    def copied(self: Any, memo: dict[int, Any]) -> Any:
        other = memo[id(self)] = self.__new__(type(self))
        other.__setstate__(copy.deepcopy(self.__dict__, memo))
        return other

    body = {
        "forward": forward_rewritten,
        "__reduce_ex__": reduced,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    if not hasattr(kind, "__deepcopy__"):
        body["__deepcopy__"] = copied
    return type(kind.__name__, (kind,), body)


def acceptance(plain: Callable[..., Any], forward: dict[str, Any]) -> Callable[..., list[torch.Tensor] | None]:
    """``(module, args, kwargs) -> tensors`` of a call that the rewritten forward may answer; None where it may not."""
    parameters = list(inspect.signature(plain).parameters.values())[1:]
    places = [item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    defaults = {item.name: item.default for item in parameters if item.default is not item.empty}
    wanted: dict[str, Any] = forward["call"]
    attributes = {
        mode: [
            (path, name, value) for path, each in forward["attributes"][mode].items() for name, value in each.items()
        ]
        for mode in MODES
        if mode in forward
    }
    proven, any_float = [getattr(torch, name) for name in forward["autocast"]], bool(forward["any_float"])
    fits = {mode: as_function(decoded(forward["sizes"][mode])) for mode in MODES if mode in forward}

    def accepts(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
        mode = "training" if self.training else "evaluation"
        if mode not in fits or len(args) > len(places):
            return None
        given = {**defaults, **dict(zip(places, args, strict=False)), **kwargs}
        tensors: list[torch.Tensor] = []
        if given.keys() != wanted.keys() or not all(alike(given[name], wanted[name], tensors) for name in wanted):
            return None
        if not all(same_kind(tensor, like, any_float) for tensor, like in zip(tensors, leaves(wanted), strict=True)):
            return None
        device = tensors[0].device.type
        if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) not in proven:
            return None
        if any(getattr(attribute(self, path), name, None) != value for path, name, value in attributes[mode]):
            return None
        return tensors if fits[mode](self, *tensors) else None

    return accepts


def alike(value: Any, like: Any, tensors: list[torch.Tensor]) -> bool:
    """Whether an argument is built like the proven one; its tensors are put to the others."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return isinstance(like, dict) and "shape" in like and value.dim() == len(like["shape"])
    if isinstance(value, (tuple, list)):
        inner = like.get(type(value).__name__) if isinstance(like, dict) else None
        return (
            inner is not None
            and len(inner) == len(value)
            and all(alike(one, other, tensors) for one, other in zip(value, inner, strict=True))
        )
    return not isinstance(like, dict) and type(value) is type(like) and value == like


def leaves(like: Any) -> list[dict[str, Any]]:
    """Descriptions of the tensors in a described call, in their order."""
    if isinstance(like, dict) and "shape" in like:
        return [like]
    inner = like.values() if isinstance(like, dict) else like if isinstance(like, list) else ()
    return [found for item in inner for found in leaves(item)]


def same_kind(tensor: torch.Tensor, like: dict[str, Any], any_float: bool) -> bool:
    wanted: torch.dtype = getattr(torch, like["dtype"])
    return tensor.dtype == wanted or (any_float and tensor.is_floating_point() and wanted.is_floating_point)


def as_function(graph: fx.Graph) -> Callable[..., Any]:
    """A graph as a function of the module and the tensors; it reads the module's own attributes."""
    code = graph.python_code(root_module="self")
    scope: dict[str, Any] = dict(code.globals)
    exec(code.src, scope)
    made: Callable[..., Any] = scope["forward"]
    return made


def decoded(steps: Sequence[Sequence[Any]]) -> fx.Graph:
    """The graph of ``[kind, target, arguments, keywords]`` steps, as ``encoded`` writes them."""
    graph = fx.Graph()
    nodes: list[fx.Node] = []
    for number, (kind, target, *rest) in enumerate(steps):
        args, kwargs = (value(item, nodes) for item in (*rest, [], {"dict": {}})[:2])
        if kind == "input":
            nodes.append(graph.placeholder(f"input_{number}"))
        elif kind == "attribute":
            nodes.append(graph.get_attr(target))
        elif kind == "module":
            nodes.append(graph.call_module(target, tuple(args), kwargs))
        elif kind == "call":
            nodes.append(graph.call_function(function(target), tuple(args), kwargs))
        else:
            nodes.append(graph.output(args[0]))
    return graph


def function(name: str) -> Callable[..., Any]:
    """The function that a name in the data stands for."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    packet, overload = name.removeprefix("aten.").rsplit(".", 1)
    found: Callable[..., Any] = getattr(getattr(torch.ops.aten, packet), overload)
    return found


def value(item: Any, nodes: Sequence[fx.Node]) -> Any:
    """An argument from its data."""
    if isinstance(item, list):
        return [value(each, nodes) for each in item]
    if not isinstance(item, dict):
        return item
    ((kind, inner),) = item.items()
    if kind == "node":
        return nodes[inner]
    if kind == "torch":
        return getattr(torch, inner)
    if kind == "float":
        return float(inner)
    if kind == "tuple":
        return tuple(value(each, nodes) for each in inner)
    return {key: value(each, nodes) for key, each in inner.items()}
