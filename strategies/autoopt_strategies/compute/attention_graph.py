"""Finds ``softmax(Q K^T) V`` written by hand in a traced forward, and says it in one operator.

The forward of a module is traced with ``torch.fx``; its children stay calls. From each softmax the graph
is followed back through scale and masks to the product of queries and keys, and on through dropout to
the product with the values. What is not understood is left alone: a forward with an unknown operator on
that path, probabilities that are used a second time, another dimension.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

NEVER = -1e4
"""A score filled with this much or less has no share in the softmax."""


class Refused(Exception):  # noqa: N818 - reads as the sentence that the user gets
    """This is not attention that can be rewritten, and why."""


class ShallowTracer(fx.Tracer):
    """Traces one forward; children are calls, buffers are nodes."""

    proxy_buffer_attributes = True

    def __init__(self) -> None:
        super().__init__(autowrap_modules=(math,))

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


@dataclass
class Attention:
    """One place: the product of queries and keys, what happens to the scores, the product with the values.

    ``scale``: a number or a node; ``keep``: a node, True where a score counts; ``added``: a node added to the scores.
    """

    q: fx.Node
    k: fx.Node
    v: fx.Node
    last: fx.Node
    dropout: Any = 0.0
    scale: Any = None
    keep: fx.Node | None = None
    added: fx.Node | None = None
    q_order: tuple[int, ...] | None = None
    k_order: tuple[int, ...] | None = None
    v_order: tuple[int, ...] | None = None
    out_order: tuple[int, ...] | None = None
    transposed_k: bool = True


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


FACTORIES = ("ones", "zeros", "full", "arange")
"""Functions that make tensors of given sizes, which torch.fx does not note by itself."""


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


def find(module: nn.Module, graph: fx.Graph) -> list[Attention]:
    """Every attention in a graph whose values were recorded.

    Raises:
        Refused: there is a softmax, and it is not understood.
    """
    children = dict(module.named_modules())
    found = [_around(node, children) for node in graph.nodes if _is_softmax(node, children)]
    if not found:
        raise Refused("there is no softmax in its forward")
    return found


def _is_softmax(node: fx.Node, children: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(children.get(str(node.target)), nn.Softmax)
    return _calls(node, "softmax", F.softmax, torch.softmax)


def _calls(node: Any, method: str, *functions: Any) -> bool:
    if not isinstance(node, fx.Node):
        return False
    return (node.op == "call_method" and node.target == method) or (
        node.op == "call_function" and node.target in functions
    )


def _argument(node: fx.Node, position: int, *names: str, default: Any = None) -> Any:
    if len(node.args) > position:
        return node.args[position]
    return next((node.kwargs[name] for name in names if name in node.kwargs), default)


def _around(softmax: fx.Node, children: dict[str, nn.Module]) -> Attention:
    scores = softmax.args[0]
    if not isinstance(scores, fx.Node):
        raise Refused("softmax of something that is no tensor")
    dimension = (
        children[str(softmax.target)].dim if softmax.op == "call_module" else _argument(softmax, 1, "dim", default=None)
    )
    rank = _value(scores).dim()
    if dimension not in (-1, rank - 1):
        raise Refused(f"the softmax runs over dimension {dimension}, not over the keys at the end")
    found = Attention(softmax, softmax, softmax, softmax)
    _back(scores, found)
    _forth(softmax, found, children)
    _check(found)
    return found


def _value(node: fx.Node) -> torch.Tensor:
    value = node.meta.get("value")
    if not isinstance(value, torch.Tensor):
        raise Refused(f"{node.name} is no tensor")
    return value


def _back(scores: fx.Node, found: Attention) -> None:
    """From the softmax's input to the product; scale and masks are noted, the latest first."""
    node, factor = scores, None
    while True:
        if len([user for user in node.users if not _only_shape(user)]) != 1:
            raise Refused("the scores are used a second time")
        if _product(node, found):
            found.scale = factor
            return
        following = _peeled(node, found, factor)
        if following is None:
            raise Refused(f"between the product and the softmax stands {node.target}, which is not understood")
        node, factor = following


def _only_shape(user: fx.Node) -> bool:
    """Whether a use asks for sizes or dtype alone."""
    if user.op == "call_method" and user.target in ("size", "dim"):
        return True
    return user.op == "call_function" and user.target is getattr and user.args[1] in ("shape", "dtype", "device")


def _peeled(node: fx.Node, found: Attention, factor: Any) -> tuple[fx.Node, Any] | None:
    """One operator taken off the scores: the node before it and the scale so far. None where it is not understood."""
    if _calls(node, "masked_fill", torch.masked_fill) or _calls(node, "masked_fill_"):
        inner, mask, fill = node.args[0], _argument(node, 1, "mask"), _argument(node, 2, "value")
        _no_score(fill)
        _keep(found, node, mask, inverted=True)
        return _node(inner), factor
    if _calls(node, "where", torch.where):
        return _where(node, found), factor
    if _calls(node, "div", operator.truediv, torch.div, operator.itruediv) or _calls(node, "div_"):
        return _node(node.args[0]), _times(found, factor, _number(node.args[1]), inverse=True)
    if _calls(node, "mul", operator.mul, torch.mul, operator.imul) or _calls(node, "mul_"):
        left, right = node.args[0], node.args[1]
        if not _is_scores(left, node):
            left, right = right, left
        return _node(left), _times(found, factor, _number(right), inverse=False)
    if _calls(node, "add", operator.add, torch.add, operator.iadd) or _calls(node, "add_"):
        left, right = node.args[0], node.args[1]
        if not _is_scores(left, node):
            left, right = right, left
        _add(found, node, right, factor, negative=False)
        return _node(left), factor
    if _calls(node, "sub", operator.sub, torch.sub, operator.isub):
        _add(found, node, node.args[1], factor, negative=True)
        return _node(node.args[0]), factor
    if _calls(node, "float") or (_calls(node, "to") and node.args[1:] == (torch.float32,)):
        return _node(node.args[0]), factor
    return None


def _node(item: Any) -> fx.Node:
    if not isinstance(item, fx.Node):
        raise Refused("the scores do not come from a tensor")
    return item


def _is_scores(item: Any, node: fx.Node) -> bool:
    """Which of two operands the scores are: the one as large as the result that is made of a product."""
    if not isinstance(item, fx.Node) or not isinstance(item.meta.get("value"), torch.Tensor):
        return False
    return _value(item).shape == _value(node).shape and _from_product(item)


def _from_product(node: fx.Node, depth: int = 8) -> bool:
    if _is_product(node):
        return True
    return depth > 0 and any(_from_product(each, depth - 1) for each in node.all_input_nodes[:2])


def _is_product(node: fx.Node) -> bool:
    functions = (torch.matmul, operator.matmul, torch.bmm, torch.einsum)
    return _calls(node, "matmul", *functions) or _calls(node, "bmm") or _calls(node, "__matmul__")


def _number(item: Any) -> Any:
    """A scale: a number, or a node whose value is one."""
    if isinstance(item, (int, float)):
        return item
    if isinstance(item, fx.Node):
        value = item.meta.get("value")
        if isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1):
            return item
    raise Refused("the scores are multiplied by something that is not one number")


def _times(found: Attention, factor: Any, number: Any, *, inverse: bool) -> Any:
    """The scale with one more factor: arithmetic where both are known, nodes where one is not."""
    factor = 1.0 if factor is None else factor
    if isinstance(factor, (int, float)) and isinstance(number, (int, float)):
        return factor / number if inverse else factor * number
    with found.last.graph.inserting_before(found.last):
        return _made(found.last.graph, operator.truediv if inverse else operator.mul, factor, number)


def _no_score(fill: Any) -> None:
    value = fill.meta.get("value") if isinstance(fill, fx.Node) else fill
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else None
    if not isinstance(value, (int, float)) or value > NEVER:
        raise Refused(f"masked scores are set to {value}, which leaves them a share in the softmax")


def _where(node: fx.Node, found: Attention) -> fx.Node:
    condition, left, right = node.args[:3]
    if _is_scores(left, node):
        _no_score(right)
        _keep(found, node, condition, inverted=False)
        return _node(left)
    _no_score(left)
    _keep(found, node, condition, inverted=True)
    return _node(right)


def _keep(found: Attention, node: fx.Node, mask: Any, *, inverted: bool) -> None:
    mask = _node(mask)
    if _value(mask).dtype != torch.bool:
        raise Refused("the mask is not made of truth values")
    with found.last.graph.inserting_before(found.last):
        keep = _made(node.graph, torch.logical_not, mask) if inverted else mask
        found.keep = keep if found.keep is None else _made(node.graph, torch.logical_and, keep, found.keep)


def _made(graph: fx.Graph, function: Callable[..., Any], *arguments: Any) -> fx.Node:
    """A new node with its value."""
    node = graph.call_function(function, arguments)
    values = (argument.meta["value"] if isinstance(argument, fx.Node) else argument for argument in arguments)
    node.meta["value"] = function(*values)
    return node


def _add(found: Attention, node: fx.Node, item: Any, factor: Any, *, negative: bool) -> None:
    """Something added to the scores; what scales them afterwards scales it too."""
    item = _node(item)
    if not _value(item).is_floating_point():
        raise Refused("something that is not made of floating-point numbers is added to the scores")
    graph = node.graph
    with graph.inserting_before(found.last):
        if factor is not None:
            item = _made(graph, operator.mul, item, factor)
        if negative:
            item = _made(graph, torch.neg, item)
        found.added = item if found.added is None else _made(graph, torch.add, item, found.added)


def _product(node: fx.Node, found: Attention) -> bool:
    """Whether this is the product of queries and keys; noted where it is."""
    if _calls(node, "", torch.einsum):
        _einsum_scores(node, found)
        return True
    if not _is_product(node):
        return False
    found.q, found.k = _node(node.args[0]), _node(_argument(node, 1, "other", "mat2", "tensor2"))
    return True


def _letters(node: fx.Node, operands: int) -> tuple[list[str], str]:
    equation = node.args[0]
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        raise Refused("an einsum whose equation is not spelled out")
    left, out = equation.replace(" ", "").split("->")
    parts = left.split(",")
    if len(parts) != operands or any(len(set(part)) != len(part) for part in [*parts, out]):
        raise Refused(f"the einsum {equation!r} is not a product of {operands}")
    return parts, out


def _einsum_scores(node: fx.Node, found: Attention) -> None:
    (one, two), out = _letters(node, 2)
    row, column = out[-2], out[-1]
    operands = node.args[1:] if len(node.args) == 3 else tuple(node.args[1])  # type: ignore[arg-type]
    if row in two:
        one, two, operands = two, one, (operands[1], operands[0])
    shared = [letter for letter in one if letter in two and letter not in out]
    batch = out[:-2]
    if len(shared) != 1 or set(one) != {*batch, row, *shared} or set(two) != {*batch, column, *shared}:
        raise Refused(f"the einsum {node.args[0]!r} is no product of queries and keys")
    found.q, found.k = _node(operands[0]), _node(operands[1])
    found.q_order = tuple(one.index(letter) for letter in [*batch, row, *shared])
    found.k_order = tuple(two.index(letter) for letter in [*batch, column, *shared])
    found.transposed_k = False


def _forth(softmax: fx.Node, found: Attention, children: dict[str, nn.Module]) -> None:
    """From the softmax on to the product with the values."""
    node = softmax
    while True:
        users = [user for user in node.users if not _only_shape(user)]
        if len(users) != 1:
            raise Refused("the probabilities are used a second time")
        user = users[0]
        if user.op == "call_module" and isinstance(children.get(str(user.target)), nn.Dropout):
            child = children[str(user.target)]
            found.dropout = child.p if child.training else 0.0
        elif _calls(user, "", F.dropout, torch.dropout):
            training = _argument(user, 2, "training", "train", default=True)
            found.dropout = _argument(user, 1, "p", default=0.5) if training else 0.0
        elif user.op == "call_module" and isinstance(children.get(str(user.target)), nn.Identity):
            pass
        elif _calls(user, "type_as") or _calls(user, "to"):
            pass  # back from the float32 of the softmax
        elif _is_product(user):
            _values(user, node, found)
            return
        else:
            raise Refused(f"between the softmax and the values stands {user.target}, which is not understood")
        node = user


def _values(node: fx.Node, weights: fx.Node, found: Attention) -> None:
    found.last = node
    if _calls(node, "", torch.einsum):
        _einsum_values(node, weights, found)
        return
    if node.args[0] is not weights:
        raise Refused("the probabilities stand on the right of the product")
    found.v = _node(_argument(node, 1, "other", "mat2", "tensor2"))


def _einsum_values(node: fx.Node, weights: fx.Node, found: Attention) -> None:
    parts, out = _letters(node, 2)
    operands = node.args[1:] if len(node.args) == 3 else tuple(node.args[1])  # type: ignore[arg-type]
    (p, v), (first, second) = parts, operands
    if first is not weights:
        p, v, first, second = v, p, second, first
    batch, row, column = p[:-2], p[-2], p[-1]
    deep = [letter for letter in v if letter not in p]
    if first is not weights or len(deep) != 1 or set(v) != {*batch, column, *deep} or set(out) != {*batch, row, *deep}:
        raise Refused(f"the einsum {node.args[0]!r} is no product of probabilities and values")
    found.v = _node(second)
    found.v_order = tuple(v.index(letter) for letter in [*batch, column, *deep])
    whole = [*batch, row, *deep]
    found.out_order = tuple(whole.index(letter) for letter in out)


def _check(found: Attention) -> None:
    for node in (found.q, found.k, found.v):
        value = _value(node)
        if not value.is_floating_point() or value.dim() < 3:
            raise Refused("queries, keys and values are not batches of matrices")


def rewrite(graph: fx.Graph, found: Attention, children: dict[str, nn.Module]) -> bool:
    """Puts ``scaled_dot_product_attention`` in the place of what was found. True where it is causal without a mask."""
    causal = _is_causal(found)
    with graph.inserting_before(found.last):
        q = _ordered(graph, found.q, found.q_order)
        k = _ordered(graph, found.k, found.k_order)
        v = _ordered(graph, found.v, found.v_order)
        if found.transposed_k:
            k = graph.call_method("transpose", (k, -2, -1))
        alone = _value(found.q).dim() == 3
        if alone:  # fast kernels want heads: one is as good as none
            q, k, v = (graph.call_method("unsqueeze", (node, 1)) for node in (q, k, v))
        scale: Any = 1.0 if found.scale is None else found.scale
        if isinstance(scale, fx.Node) and isinstance(scale.meta["value"], torch.Tensor):
            q = graph.call_function(torch.mul, (q, scale))  # the operator takes a number alone: the queries carry it
            scale = 1.0
        options: dict[str, Any] = {"dropout_p": found.dropout, "scale": scale}
        options |= {"is_causal": True} if causal else {"attn_mask": _mask(graph, found, q, alone)}
        made = graph.call_function(F.scaled_dot_product_attention, (q, k, v), options)
        if alone:
            made = graph.call_method("squeeze", (made, 1))
        made = _ordered(graph, made, found.out_order)
    found.last.replace_all_uses_with(made)
    graph.erase_node(found.last)
    sweep(graph, children)
    return causal


def _ordered(graph: fx.Graph, node: fx.Node, order: tuple[int, ...] | None) -> fx.Node:
    return node if order is None or order == tuple(range(len(order))) else graph.call_method("permute", (node, order))


def _mask(graph: fx.Graph, found: Attention, q: fx.Node, alone: bool) -> fx.Node | None:
    """One mask from both; additive ones take the queries' dtype, which autocast may have changed."""
    if found.added is None:
        return _headed(graph, found.keep, alone)
    added = found.added
    if found.keep is not None:
        away = graph.call_function(torch.logical_not, (found.keep,))
        added = graph.call_method("masked_fill", (added, away, float("-inf")))
    typed = graph.call_method("to", (added,), {"dtype": graph.call_function(getattr, (q, "dtype"))})
    return _headed(graph, typed, alone and _widest(found) == 3)


def _headed(graph: fx.Graph, mask: fx.Node | None, alone: bool) -> fx.Node | None:
    """A mask for each sample gets a place for the head where there was none."""
    known = mask.meta.get("value") if mask is not None else None
    if mask is None or not alone or (isinstance(known, torch.Tensor) and known.dim() != 3):
        return mask
    return graph.call_method("unsqueeze", (mask, 1))


def _widest(found: Attention) -> int:
    return max(_value(mask).dim() for mask in (found.keep, found.added) if mask is not None)


def _is_causal(found: Attention) -> bool:
    """Whether the mask lets each query see the keys up to its own place, whatever the input."""
    if found.keep is None or found.added is not None or _depends_on_input(found.keep):
        return False
    keep = found.keep.meta.get("value")
    if not isinstance(keep, torch.Tensor) or keep.dim() < 2 or keep.shape[-1] != keep.shape[-2]:
        return False
    length = keep.shape[-1]
    triangle = torch.ones(length, length, dtype=torch.bool, device=keep.device).tril()
    return (
        bool((keep == triangle).all())
        and _value(found.q).shape[-2 if found.q_order is None else found.q_order[-2]] == length
    )


def _depends_on_input(node: fx.Node, seen: set[fx.Node] | None = None) -> bool:
    """Whether a mask's values depend on the input, not on its sizes alone."""
    seen = set() if seen is None else seen
    if node in seen:
        return False
    seen.add(node)
    if node.op in ("placeholder", "call_module"):
        return True
    if _only_shape(node):
        return False
    return any(_depends_on_input(each, seen) for each in node.all_input_nodes)


def sweep(graph: fx.Graph, children: dict[str, nn.Module]) -> None:
    """Takes out what nobody reads any more; calls of children other than softmax and dropout stay."""
    for node in reversed(list(graph.nodes)):
        if node.users or node.op in ("placeholder", "output"):
            continue
        if node.op == "call_module":
            if isinstance(children.get(str(node.target)), (nn.Softmax, nn.Dropout, nn.Identity)):
                graph.erase_node(node)
        elif not node.is_impure() and not str(node.target).endswith("_"):
            graph.erase_node(node)
        elif node.op == "call_method" and node.target in ("masked_fill_", "mul_", "div_", "add_"):
            graph.erase_node(node)  # of scores that nobody computes any more
    graph.lint()


def without_dropout(graph: fx.Graph, children: dict[str, nn.Module]) -> None:
    """Takes all dropout out, so that two ways of computing can be compared."""
    for node in list(graph.nodes):
        module = node.op == "call_module" and isinstance(children.get(str(node.target)), nn.Dropout)
        if module or _calls(node, "", F.dropout, torch.dropout):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def as_function(graph: fx.Graph) -> Callable[..., Any]:
    """The graph as a function of the module and its arguments; it reads the module's own attributes."""
    code = graph.python_code(root_module="self")
    scope: dict[str, Any] = dict(code.globals)
    exec(code.src, scope)
    made: Callable[..., Any] = scope["forward"]
    return made
