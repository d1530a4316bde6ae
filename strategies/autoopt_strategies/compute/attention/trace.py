"""A module's forward as a graph, and the graph as a function again.

Children stay calls. What cannot be traced is refused with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn


class Refused(Exception):  # noqa: N818 - reads as the sentence that the user gets
    """This is not attention that can be rewritten, and why."""


class ShallowTracer(fx.Tracer):
    """Traces one forward; children are calls, buffers are nodes."""

    proxy_buffer_attributes = True

    def __init__(self) -> None:
        super().__init__(autowrap_modules=(math,))

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


FACTORIES = ("ones", "zeros", "full", "arange")
"""Functions that make tensors of given sizes, which torch.fx does not note by itself."""


def traced(module: nn.Module, given: dict[str, Any]) -> fx.Graph:
    """The graph of a module's forward; arguments that are no tensors stand as they were given.

    Raises:
        Refused: it cannot be traced.
    """
    concrete = {name: value for name, value in given.items() if not isinstance(value, torch.Tensor)}
    plain = {name: getattr(torch, name) for name in FACTORIES}
    try:
        for name, function in plain.items():
            setattr(torch, name, _noted(function))
        return ShallowTracer().trace(module, concrete_args=concrete or None)
    except Exception as error:
        raise Refused(f"its forward cannot be traced: {type(error).__name__}: {error}".split("\n")[0]) from None
    finally:
        for name, function in plain.items():
            setattr(torch, name, function)


def _noted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, but a node of the graph where a size is one."""

    def made(*args: Any, **kwargs: Any) -> Any:
        flat = [item for arg in args for item in (arg if isinstance(arg, (list, tuple)) else [arg])]
        proxy = next((item for item in flat if isinstance(item, fx.Proxy)), None)
        if proxy is None:
            return function(*args, **kwargs)
        return proxy.tracer.create_proxy("call_function", function, args, kwargs)

    return made


def record_values(module: nn.Module, graph: fx.Graph, tensors: list[Any]) -> None:
    """Runs the graph once and notes in each node what came out: shapes and numbers."""

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            n.meta["value"] = value = super().run_node(n)
            return value

    with torch.no_grad():
        Recorder(fx.GraphModule(module, graph)).run(*tensors)


def as_function(graph: fx.Graph) -> Callable[..., Any]:
    """The graph as a function of the module and its arguments; it reads the module's own attributes."""
    code = graph.python_code(root_module="self")
    scope: dict[str, Any] = dict(code.globals)
    exec(code.src, scope)
    made: Callable[..., Any] = scope["forward"]
    return made
