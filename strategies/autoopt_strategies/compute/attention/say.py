"""Puts ``scaled_dot_product_attention`` into a graph in the place of what was found."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from autoopt_strategies.compute.attention.nodes import calls, only_shape, value_of
from autoopt_strategies.compute.attention.place import Attention


def rewrite(graph: fx.Graph, found: Attention, children: dict[str, nn.Module]) -> bool:
    """Puts ``scaled_dot_product_attention`` in the place of what was found. True where it is causal without a mask."""
    causal = _is_causal(found)
    with graph.inserting_before(found.last):
        q = _ordered(graph, found.q, found.q_order)
        k = _ordered(graph, found.k, found.k_order)
        v = _ordered(graph, found.v, found.v_order)
        if found.transposed_k:
            k = graph.call_method("transpose", (k, -2, -1))
        alone = value_of(found.q).dim() == 3
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
    return max(value_of(mask).dim() for mask in (found.keep, found.added) if mask is not None)


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
        and value_of(found.q).shape[-2 if found.q_order is None else found.q_order[-2]] == length
    )


def _depends_on_input(node: fx.Node, seen: set[fx.Node] | None = None) -> bool:
    """Whether a mask's values depend on the input, not on its sizes alone."""
    seen = set() if seen is None else seen
    if node in seen:
        return False
    seen.add(node)
    if node.op in ("placeholder", "call_module"):
        return True
    if only_shape(node):
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
        if module or calls(node, "", F.dropout, torch.dropout):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
