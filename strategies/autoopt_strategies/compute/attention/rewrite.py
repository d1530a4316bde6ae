"""Puts ``scaled_dot_product_attention`` into a captured graph in the place of what was found."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from autoopt_strategies.compute.attention.capture import Captured, Refused, called
from autoopt_strategies.compute.attention.forward import attribute
from autoopt_strategies.compute.attention.match import (
    CASTS,
    NEVER,
    SIZES,
    SOFTMAX,
    Attention,
    Operand,
    find,
    tensor,
)

aten = torch.ops.aten
LENGTHS = (1, 2, 1024, 4096)
"""Lengths at which a mask must be causal, beside that of the batch, the one after it and twice as many."""


def rewrite(module: nn.Module, captured: Captured) -> list[bool]:
    """Rewrites every attention in a captured forward; for each whether its mask is causal and nothing else.

    Raises:
        Refused: there is none, or none that is understood.
    """
    stacks = {node: stack_of(node) for node in captured.graph.nodes}
    found = [Place(module, captured, each).rewritten() for each in find(captured.graph)]
    sweep(captured.graph)
    call_children(captured, stacks)
    return found


class Place:
    """One attention on its way into a single operator: queries, keys, values, scale and mask as they build up."""

    def __init__(self, module: nn.Module, captured: Captured, found: Attention) -> None:
        self.module, self.captured, self.graph, self.found = module, captured, captured.graph, found
        self.scale: Any = 1.0
        self.added: Any = None
        self.keep: Any = None
        self.fill = float("-inf")
        self.order: list[int] = []

    def rewritten(self) -> bool:
        """Replaces the product with the values. True where the mask is causal and nothing else."""
        with self.graph.inserting_before(self.found.last):
            made, causal = self.operator()
        self.found.last.replace_all_uses_with(made)
        self.graph.erase_node(self.found.last)
        return causal

    def operator(self) -> tuple[fx.Node, bool]:
        found = self.found
        batch, row, column, depth = found.batch, found.row, found.column, found.depth
        self.order = [found.scores.index(letter) for letter in batch + row + column]
        self.q = self.ordered(found.q, batch + row + depth)
        self.k = self.ordered(found.k, batch + column + depth)
        self.lead = self.broadcast(self.q, self.k)
        views = False
        for step in found.steps:
            views = views or step.kind == "view"
            getattr(self, f"_{step.kind}")(step)
        p = found.probabilities
        if views:
            place = {"batch": p[:-2], "row": p[-2]}
        else:
            place = {"batch": "".join(p[found.scores.index(letter)] for letter in batch)}
            place["row"] = p[found.scores.index(row)]
        (wide,) = (letter for letter in found.v.letters if letter not in p)
        v = self.ordered(found.v, place["batch"] + p[-1] + wide)
        if found.views:
            self.straight()
            v = self.reshaped(self.expanded(v, found.views[-1]), self.lead)
        q, k, v = (self.expanded(item, self.lead) for item in (self.q, self.k, v))
        causal = self.is_causal()
        options: dict[str, Any] = {"dropout_p": found.dropout, "scale": self.scale}
        options |= {"is_causal": True} if causal else {"attn_mask": self.headed(self.mask(q))}
        made = self.call(F.scaled_dot_product_attention, *(self.headed(item) for item in (q, k, v)), **options)
        made = self.unheaded(made)
        if found.views:
            made = self.reshaped(made, found.views[-1])
        return self.ordered(Operand(made, place["batch"] + place["row"] + wide), found.out), causal

    # Steps between the product and the softmax, in their order.

    def _scale(self, step: Any) -> None:
        function = operator.truediv if step.inverse else operator.mul
        factor = step.item
        if isinstance(factor, fx.Node) and isinstance(factor.meta["val"], torch.Tensor):
            # The operator takes a number alone: the queries carry what is a tensor.
            factor = self.straightened(factor)
            self.q = self.call(aten.div.Tensor if step.inverse else aten.mul.Tensor, self.q, factor)
        elif isinstance(factor, fx.Node) or isinstance(self.scale, fx.Node):
            self.scale = self.call(function, self.scale, factor)
        else:
            self.scale = function(self.scale, factor)
        if self.added is not None:
            self.added = self.call(aten.div.Tensor if step.inverse else aten.mul.Tensor, self.added, factor)

    def _add(self, step: Any) -> None:
        item = self.straightened(step.item)
        item = self.call(aten.mul.Tensor, item, step.factor) if step.factor != 1 else item
        self.added = item if self.added is None else self.call(aten.add.Tensor, self.added, item)

    def _keep(self, step: Any) -> None:
        keep = self.straightened(step.item)
        keep = self.call(aten.logical_not.default, keep) if step.inverse else keep
        self.keep = keep if self.keep is None else self.call(aten.logical_and.default, self.keep, keep)
        self.fill = max(self.fill, step.fill)

    def _view(self, step: Any) -> None:
        self.straight()
        self.q, self.k = (self.reshaped(self.expanded(item, self.lead), step.item) for item in (self.q, self.k))
        if self.keep is not None:
            self.keep = self.reshaped(self.expanded(self.keep, self.lead), step.item)
        if self.added is not None:
            self.added = self.reshaped(self.expanded(self.added, self.lead), step.item)
        self.lead = list(step.item)

    def straight(self) -> None:
        if self.order != sorted(self.order):
            raise Refused("the scores are brought into another shape and order")

    # Nodes.

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """A new node with its fake value."""
        node = self.graph.call_function(target, args, kwargs)
        given, named = fx.node.map_arg((args, kwargs), lambda each: each.meta["val"])
        if target is F.scaled_dot_product_attention:  # which kernel is taken cannot be asked of symbols
            node.meta["val"] = torch.matmul(torch.matmul(given[0], given[1].mT), given[2])
        else:
            node.meta["val"] = target(*given, **named)
        return node

    def size(self, node: fx.Node, dimension: int) -> Any:
        known = tensor(node).shape[dimension]
        return known if isinstance(known, int) else self.call(aten.sym_size.int, node, dimension)

    def broadcast(self, q: fx.Node, k: fx.Node) -> list[Any]:
        """Sizes of the batch dimensions that both have together."""
        count = tensor(q).dim() - 2
        return [self.size(k if str(tensor(q).shape[each]) == "1" else q, each) for each in range(count)]

    def ordered(self, operand: Operand, letters: str) -> fx.Node:
        """The operand with its dimensions in this order; those that it lacks have one place."""
        node, there = operand.node, operand.letters
        if called(node) == "transpose":
            swapped: Any = node.args
            if {each % len(there) for each in swapped[1:3]} == {len(there) - 2, len(there) - 1}:
                node, there = swapped[0], there[:-2] + there[-1] + there[-2]
        order = [there.index(letter) for letter in letters if letter in there]
        if order != sorted(order):
            node = self.call(aten.permute.default, node, order)
        for place, letter in enumerate(letters):
            if letter not in there:
                node = self.call(aten.unsqueeze.default, node, place)
        return node

    def straightened(self, item: fx.Node) -> fx.Node:
        """A mask or bias of the scores with the queries' and keys' places at the end."""
        if self.order == sorted(self.order) or tensor(item).dim() == 0:
            return item
        while tensor(item).dim() < len(self.order):
            item = self.call(aten.unsqueeze.default, item, 0)
        return self.call(aten.permute.default, item, self.order)

    def expanded(self, item: fx.Node, lead: list[Any]) -> fx.Node:
        """The same for every batch dimension of these sizes."""
        shape = tensor(item).shape
        sizes = [each.meta["val"] if isinstance(each, fx.Node) else each for each in lead]
        if [str(each) for each in shape[:-2]] == [str(each) for each in sizes] or -1 in sizes:
            return item
        while tensor(item).dim() < 2:
            item = self.call(aten.unsqueeze.default, item, 0)
        return self.call(aten.expand.default, item, [*lead, self.size(item, -2), self.size(item, -1)])

    def reshaped(self, item: fx.Node, lead: list[Any]) -> fx.Node:
        return self.call(aten.reshape.default, item, [*lead, self.size(item, -2), self.size(item, -1)])

    def headed(self, item: fx.Node | None) -> fx.Node | None:
        """Fast kernels want one batch dimension and heads."""
        count = len(self.lead)
        if item is None or count == 2 or tensor(item).dim() <= 2:
            return item
        if count == 1:
            return self.call(aten.unsqueeze.default, item, 1)
        item = self.expanded(item, self.lead)
        return self.reshaped(item, [self.lead[0], -1])

    def unheaded(self, item: fx.Node) -> fx.Node:
        if len(self.lead) == 1:
            return self.call(aten.squeeze.dim, item, 1)
        return item if len(self.lead) == 2 else self.reshaped(item, self.lead)

    # The mask.

    def mask(self, q: fx.Node) -> fx.Node | None:
        """One mask from both kinds, in the queries' dtype.

        Where what is masked depends on the input and its fill is finite, a row may lose all its scores; the operator
        must then average as the softmax did, so the fill is added.
        """
        keep: fx.Node | None = self.keep
        if self.added is None and (keep is None or self.fill == float("-inf") or depends_on_sizes(keep)):
            return keep
        added: Any = self.added
        if added is None:
            added = self.call(aten.zeros_like.default, self.keep, dtype=torch.float32)
        if self.keep is not None:
            away = self.call(aten.logical_not.default, self.keep)
            added = self.call(aten.masked_fill.Scalar, added, away, self.fill)
        return self.call(aten.type_as.default, added, q)

    def is_causal(self) -> bool:
        """Whether the mask lets each query see the keys up to its own place, at every length that was tried.

        A window that is wider than the batch is long looks causal and is not: other lengths are tried too, and
        longer ones than the longest are left to the original forward.
        """
        masks = [item for item in (self.keep, self.added) if item is not None]
        if not masks or not all(depends_on_sizes(item) for item in masks):
            return False
        lengths = {str(tensor(node).shape[-2]) for node in (self.q, self.k)}
        square = {str(size) for item in masks for size in tensor(item).shape[-2:]}
        if lengths != square or len(square) != 1:
            return False
        size = tensor(self.q).shape[-2]
        symbol = size if isinstance(size, int) else size.node.expr
        if isinstance(symbol, int) or symbol.is_Integer:
            return self.triangle({}, int(symbol))
        if not symbol.is_Symbol or symbol not in self.captured.hints:
            return False
        hint, upper = self.captured.hints[symbol], self.captured.shapes.var_to_range[symbol].upper
        most = int(upper) if upper.is_Integer and int(upper) <= 2 * max(LENGTHS) else None
        for length in sorted({*LENGTHS, hint, hint + 1, 2 * hint, most or hint}):
            if most is not None and length > most:
                continue
            if not self.triangle({symbol: length}, length):
                return False
            self.captured.limits[symbol] = length
        return True

    def triangle(self, sizes: dict[Any, int], length: int) -> bool:
        allowed = torch.ones(length, length, dtype=torch.bool).tril()
        try:
            with torch.no_grad():
                keep = self.evaluated(self.keep, sizes) if self.keep is not None else allowed
                added = self.evaluated(self.added, sizes) if self.added is not None else torch.zeros(())
        except Exception:  # a length that the module itself does not take
            return False
        kept = keep.cpu() & (added.cpu() > NEVER)
        nothing = bool((added.cpu().masked_fill(~kept, 0.0) == 0).all())
        return kept.shape[-2:] == allowed.shape and bool((kept == allowed).all()) and nothing

    def evaluated(self, item: Any, sizes: dict[Any, int]) -> Any:
        """The value of something that depends on sizes alone, at these sizes."""
        if not isinstance(item, fx.Node):
            return item
        value = item.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            found = value.node.expr.subs(self.captured.hints | sizes)
            return int(found) if isinstance(value, torch.SymInt) else float(found)
        if item.op == "get_attr":
            return attribute(self.module, str(item.target)).detach().clone()
        given, named = fx.node.map_arg((item.args, item.kwargs), lambda each: self.evaluated(each, sizes))
        return item.target(*given, **named)  # type: ignore[operator]


def depends_on_sizes(node: fx.Node, seen: set[fx.Node] | None = None) -> bool:
    """Whether a value depends on sizes and buffers alone, not on the numbers of the input or on chance."""
    seen = set() if seen is None else seen
    if node in seen or called(node) in SIZES:
        return True
    seen.add(node)
    if node.op == "placeholder":
        return False
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags:
        return False
    return all(depends_on_sizes(each, seen) for each in node.all_input_nodes)


def drop_probabilities(graph: fx.Graph) -> list[int]:
    """Takes probabilities out of what a forward returns; their places in it, flattened."""
    probabilities = {node for node in graph.nodes if called(node) in SOFTMAX}
    for node in graph.nodes:
        if called(node) in (*CASTS, "dropout") and node.args[0] in probabilities:
            probabilities.add(node)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    leaves, spec = pytree.tree_flatten(output.args[0])
    places = [place for place, leaf in enumerate(leaves) if leaf in probabilities]
    output.args = (pytree.tree_unflatten([None if leaf in probabilities else leaf for leaf in leaves], spec),)
    return places


def sweep(graph: fx.Graph) -> None:
    """Takes out what nobody reads any more."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op not in ("placeholder", "output") and not writes(node):
            graph.erase_node(node)


def writes(node: fx.Node) -> bool:
    """Whether a node writes into a tensor that somebody else reads."""
    if not called(node, overload=True).endswith("_"):
        return False
    target: Any = node.args[0]
    while isinstance(target, fx.Node) and target.op == "call_function" and len(target.users) == 1:
        schema: Any = getattr(target.target, "_schema", None)
        if schema is None or not any(item.alias_info for item in schema.returns):
            return False
        target = target.args[0]
    return True


def stack_of(node: fx.Node) -> dict[str, str]:
    """The calls of modules that a node was captured in: their keys to the modules' paths, the outermost first."""
    stack = node.meta.get("nn_module_stack", {})
    paths = {key: str(item[0]) for key, item in stack.items()}
    return {key: path.removeprefix("module.") for key, path in paths.items() if path.startswith("module.")}


def call_children(captured: Captured, stacks: dict[fx.Node, dict[str, str]]) -> None:
    """Calls modules inside again whose operators are all there: their hooks, modes and later changes stay in force."""
    graph = captured.graph
    left = set(graph.nodes)
    touched = {key for node, stack in stacks.items() if node not in left for key in stack}
    called_paths: list[str] = []
    keys = {key: path for stack in stacks.values() for key, path in stack.items()}
    for key, path in sorted(keys.items(), key=lambda item: item[1].count(".")):
        if key in touched or not captured.calls.get(path):
            continue
        group = [node for node in graph.nodes if key in stacks.get(node, {})]
        edges = ends(group, path)
        if edges is None:
            continue
        given, result = edges
        with graph.inserting_before(group[0]):
            made = graph.call_module(path, (given,))
        made.meta = {"val": result.meta["val"]}
        result.replace_all_uses_with(made)
        for node in reversed(group):
            graph.erase_node(node)
        called_paths.append(path)
    settled = [path for path in captured.flags | captured.written if not inside(path, called_paths)]
    captured.flags = {path: captured.flags[path] for path in settled if path in captured.flags}
    for path in settled:
        if path in captured.written:
            raise Refused(f"its forward keeps {captured.written[path]!r} on the module")
    sweep(graph)


def inside(path: str, modules: list[str]) -> bool:
    return any(f"{path}.".startswith(f"{module}.") for module in modules)


def ends(group: list[fx.Node], path: str) -> tuple[fx.Node, fx.Node] | None:
    """The one tensor that a group of operators reads and the one that is read of it; None where there are others."""
    inside = set(group)
    read = {each for node in group for each in node.all_input_nodes if each not in inside}
    own = {each for each in read if each.op == "get_attr" and str(each.target).startswith(f"{path}.")}
    given = [each for each in read - own if isinstance(each.meta.get("val"), torch.Tensor)]
    results = [node for node in group if any(user not in inside for user in node.users)]
    if len(given) != 1 or given[0].op == "get_attr" or len(results) != 1:
        return None
    return given[0], results[0]
