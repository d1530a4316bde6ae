"""A captured graph and the sizes it holds for, as plain data that ``forward.decoded`` reads."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from autoopt_strategies.compute.attention.capture import Captured, Refused, called, tensors_of
from autoopt_strategies.compute.attention.forward import FUNCTIONS

NAMES = {function: name for name, function in FUNCTIONS.items()}
RELATIONS: dict[str, Callable[..., Any]] = {
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "LessThan": operator.le,
    "StrictLessThan": operator.lt,
    "GreaterThan": operator.ge,
    "StrictGreaterThan": operator.gt,
    "And": operator.and_,
    "Or": operator.or_,
    "Not": torch.sym_not,
    "Add": operator.add,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Min": torch.sym_min,
    "Max": torch.sym_max,
}
"""Functions for the classes of symbolic expressions that sizes are ruled by."""

LONG = 400
"""Characters of rules of sizes that are worth their evaluation in every call; longer ones fix the sizes."""


def encoded(graph: fx.Graph) -> list[list[Any]]:
    """The graph as ``[kind, target, arguments, keywords]`` steps.

    Raises:
        Refused: a call of something that data cannot name.
    """
    steps: list[list[Any]] = []
    places: dict[fx.Node, int] = {}
    kinds = {"placeholder": "input", "get_attr": "attribute", "call_module": "module", "output": "output"}
    for place, node in enumerate(graph.nodes):
        places[node] = place
        kind = kinds.get(node.op, "call")
        target = name_of(node.target) if kind == "call" else str(node.target)
        if kind in ("input", "output"):
            target = ""
        arguments = [] if kind in ("input", "attribute") else [data(list(node.args), places)]
        steps.append([kind, target, *arguments, *([data(dict(node.kwargs), places)] if node.kwargs else [])])
    return steps


def name_of(target: Any) -> str:
    if target in NAMES:
        return NAMES[target]
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        return str(target)
    raise Refused(f"its forward calls {getattr(target, '__name__', target)}")


def data(item: Any, places: dict[fx.Node, int]) -> Any:
    """An argument as plain data."""
    if isinstance(item, fx.Node):
        return {"node": places[item]}
    if isinstance(item, (torch.dtype, torch.layout, torch.memory_format)):
        return {"torch": str(item).removeprefix("torch.")}
    if isinstance(item, float) and (item != item or item in (float("inf"), float("-inf"))):
        return {"float": str(item)}
    if item is None or isinstance(item, (bool, int, float, str)):
        return item
    if isinstance(item, list):
        return [data(each, places) for each in item]
    if isinstance(item, tuple):
        return {"tuple": [data(each, places) for each in item]}
    if isinstance(item, dict) and all(isinstance(key, str) for key in item):
        return {"dict": {key: data(each, places) for key, each in item.items()}}
    raise Refused(f"its forward holds a {type(item).__name__}")


def without_devices(captured: Captured) -> None:
    """Tensors are made on the device of the input, wherever that is."""
    graph, first = captured.graph, captured.inputs[0]
    device = first.meta["val"].device
    for node in list(graph.nodes):
        if device not in (*node.args, *node.kwargs.values()):
            continue
        with graph.inserting_before(node):
            here = graph.call_function(getattr, (first, "device"))
        node.args = tuple(here if item == device else item for item in node.args)
        node.kwargs = {name: here if item == device else item for name, item in node.kwargs.items()}


def fixes_dtype(graph: fx.Graph) -> bool:
    """Whether somewhere a dtype of floating-point numbers is named."""
    return any(
        isinstance(item, torch.dtype) and item.is_floating_point
        for node in graph.nodes
        if called(node) not in ("full", "zeros_like")
        for item in (*node.args, *node.kwargs.values())
    )


def sizes(captured: Captured, proven: dict[str, Any]) -> fx.Graph:
    """A graph that answers whether tensors have sizes that the capture holds for.

    Args:
        proven: a call that the rewritten forward was proven on. The capture excludes single sizes, at which a shape
            could mean something else; one that the proof was made at is no longer excluded.

    Raises:
        Refused: a rule of sizes that is not understood, or one that the proven call breaks.
    """
    graph = fx.Graph()
    known: dict[Any, Any] = {}
    real: dict[Any, int] = {}
    rules: list[tuple[Any, Any]] = []
    terms: list[fx.Node] = []
    for node, tensor in zip(captured.inputs, tensors_of(proven), strict=True):
        given = graph.placeholder(node.name)
        for dimension, size in enumerate(node.meta["val"].shape):
            expression = size.node.expr if isinstance(size, torch.SymInt) else size
            if getattr(expression, "is_Symbol", False) and expression not in known:
                known[expression] = graph.call_function(torch.ops.aten.sym_size.int, (given, dimension))
                real[expression] = tensor.shape[dimension]
            else:
                rules.append((given, (dimension, expression)))
    for given, (dimension, expression) in rules:
        there = graph.call_function(torch.ops.aten.sym_size.int, (given, dimension))
        terms.append(graph.call_function(operator.eq, (there, said(graph, expression, known))))
    shapes = captured.shapes
    for symbol, size in known.items():
        limits = shapes.var_to_range[symbol]
        most = min((each for each in (captured.limits.get(symbol), finite(limits.upper)) if each), default=None)
        terms.append(graph.call_function(operator.ge, (size, max(int(limits.lower), 0))))
        if most is not None:
            terms.append(graph.call_function(operator.le, (size, most)))
    kept = []
    for rule in dict.fromkeys(shapes.simplify(guard.expr) for guard in (shapes.guards if shapes is not None else ())):
        broken = rule.subs(real) == False  # noqa: E712 - a symbolic truth value
        if broken and type(rule).__name__ != "Unequality":
            raise Refused(f"its forward does something else where {rule}", sizes=True)
        captured.relaxed |= rule.free_symbols if broken else set()
        if rule != True and not broken:  # noqa: E712
            kept.append(rule)
    if all(sayable(rule) for rule in kept) and len(str(kept)) < LONG:
        terms += [said(graph, rule, known) for rule in kept]
    else:  # whatever they rule, these sizes keep to it
        fixed = {known[each]: real[each] for rule in kept for each in rule.free_symbols if each in known}
        terms += [graph.call_function(operator.eq, pair) for pair in fixed.items()]
    graph.output(all_of(graph, list(dict.fromkeys(terms))))
    graph.eliminate_dead_code()
    return graph


def sayable(rule: Any) -> bool:
    """Whether a rule of sizes is made of what data can name."""
    return type(rule).__name__ in RELATIONS and all(sayable(part) for part in rule.args if part.args)


def finite(bound: Any) -> int | None:
    return int(bound) if bound.is_Integer else None


def said(graph: fx.Graph, expression: Any, known: dict[Any, Any]) -> Any:
    """A symbolic expression of sizes as nodes."""
    if isinstance(expression, int):
        return expression
    if expression in known:
        return known[expression]
    if expression.is_Integer:
        return int(expression)
    function = RELATIONS.get(type(expression).__name__)
    if function is None or not expression.args:
        raise Refused(f"it holds for sizes where {expression} alone")
    items = [said(graph, item, known) for item in expression.args]
    while len(items) > 2:
        items = [graph.call_function(function, (items[0], items[1])), *items[2:]]
    return graph.call_function(function, tuple(items))


def all_of(graph: fx.Graph, terms: list[fx.Node]) -> Any:
    if not terms:
        return True
    whole = terms[0]
    for term in terms[1:]:
        whole = graph.call_function(operator.and_, (whole, term))
    return whole
