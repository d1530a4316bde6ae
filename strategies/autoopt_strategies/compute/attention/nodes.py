"""Questions asked of a node of a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from autoopt_strategies.compute.attention.trace import Refused


def calls(node: Any, method: str, *functions: Any) -> bool:
    if not isinstance(node, fx.Node):
        return False
    return (node.op == "call_method" and node.target == method) or (
        node.op == "call_function" and node.target in functions
    )


def argument(node: fx.Node, position: int, *names: str, default: Any = None) -> Any:
    if len(node.args) > position:
        return node.args[position]
    return next((node.kwargs[name] for name in names if name in node.kwargs), default)


def value_of(node: fx.Node) -> torch.Tensor:
    value = node.meta.get("value")
    if not isinstance(value, torch.Tensor):
        raise Refused(f"{node.name} is no tensor")
    return value


def as_node(item: Any) -> fx.Node:
    if not isinstance(item, fx.Node):
        raise Refused("the scores do not come from a tensor")
    return item


def only_shape(user: fx.Node) -> bool:
    """Whether a use asks for sizes or dtype alone."""
    if user.op == "call_method" and user.target in ("size", "dim"):
        return True
    return user.op == "call_function" and user.target is getattr and user.args[1] in ("shape", "dtype", "device")


def is_product(node: fx.Node) -> bool:
    functions = (torch.matmul, operator.matmul, torch.bmm, torch.einsum)
    return calls(node, "matmul", *functions) or calls(node, "bmm") or calls(node, "__matmul__")


def new_node(graph: fx.Graph, function: Callable[..., Any], *arguments: Any) -> fx.Node:
    """A new node with its value."""
    node = graph.call_function(function, arguments)
    values = (argument.meta["value"] if isinstance(argument, fx.Node) else argument for argument in arguments)
    node.meta["value"] = function(*values)
    return node
