"""From the softmax back through scale and masks to the product of queries and keys."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from autoopt_strategies.compute.attention.einsum import einsum_scores
from autoopt_strategies.compute.attention.nodes import (
    argument,
    as_node,
    calls,
    is_product,
    new_node,
    only_shape,
    value_of,
)
from autoopt_strategies.compute.attention.place import Attention
from autoopt_strategies.compute.attention.trace import Refused

NEVER = -1e4
"""A score filled with this much or less has no share in the softmax."""


def follow_back(scores: fx.Node, found: Attention) -> None:
    """From the softmax's input to the product; scale and masks are noted, the latest first."""
    node, factor = scores, None
    while True:
        if len([user for user in node.users if not only_shape(user)]) != 1:
            raise Refused("the scores are used a second time")
        if _product(node, found):
            found.scale = factor
            return
        following = _peeled(node, found, factor)
        if following is None:
            raise Refused(f"between the product and the softmax stands {node.target}, which is not understood")
        node, factor = following


def _product(node: fx.Node, found: Attention) -> bool:
    """Whether this is the product of queries and keys; noted where it is."""
    if calls(node, "", torch.einsum):
        einsum_scores(node, found)
        return True
    if not is_product(node):
        return False
    found.q, found.k = as_node(node.args[0]), as_node(argument(node, 1, "other", "mat2", "tensor2"))
    return True


def _peeled(node: fx.Node, found: Attention, factor: Any) -> tuple[fx.Node, Any] | None:
    """One operator taken off the scores: the node before it and the scale so far. None where it is not understood."""
    if calls(node, "masked_fill", torch.masked_fill) or calls(node, "masked_fill_"):
        inner, mask, fill = node.args[0], argument(node, 1, "mask"), argument(node, 2, "value")
        _no_score(fill)
        _keep(found, node, mask, inverted=True)
        return as_node(inner), factor
    if calls(node, "where", torch.where):
        return _where(node, found), factor
    if calls(node, "div", operator.truediv, torch.div, operator.itruediv) or calls(node, "div_"):
        return as_node(node.args[0]), _times(found, factor, _number(node.args[1]), inverse=True)
    if calls(node, "mul", operator.mul, torch.mul, operator.imul) or calls(node, "mul_"):
        left, right = node.args[0], node.args[1]
        if not _is_scores(left, node):
            left, right = right, left
        return as_node(left), _times(found, factor, _number(right), inverse=False)
    if calls(node, "add", operator.add, torch.add, operator.iadd) or calls(node, "add_"):
        left, right = node.args[0], node.args[1]
        if not _is_scores(left, node):
            left, right = right, left
        _add(found, node, right, factor, negative=False)
        return as_node(left), factor
    if calls(node, "sub", operator.sub, torch.sub, operator.isub):
        _add(found, node, node.args[1], factor, negative=True)
        return as_node(node.args[0]), factor
    if calls(node, "float") or (calls(node, "to") and node.args[1:] == (torch.float32,)):
        return as_node(node.args[0]), factor
    return None


def _is_scores(item: Any, node: fx.Node) -> bool:
    """Which of two operands the scores are: the one as large as the result that is made of a product."""
    if not isinstance(item, fx.Node) or not isinstance(item.meta.get("value"), torch.Tensor):
        return False
    return value_of(item).shape == value_of(node).shape and _from_product(item)


def _from_product(node: fx.Node, depth: int = 8) -> bool:
    if is_product(node):
        return True
    return depth > 0 and any(_from_product(each, depth - 1) for each in node.all_input_nodes[:2])


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
        return new_node(found.last.graph, operator.truediv if inverse else operator.mul, factor, number)


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
        return as_node(left)
    _no_score(left)
    _keep(found, node, condition, inverted=True)
    return as_node(right)


def _keep(found: Attention, node: fx.Node, mask: Any, *, inverted: bool) -> None:
    mask = as_node(mask)
    if value_of(mask).dtype != torch.bool:
        raise Refused("the mask is not made of truth values")
    with found.last.graph.inserting_before(found.last):
        keep = new_node(node.graph, torch.logical_not, mask) if inverted else mask
        found.keep = keep if found.keep is None else new_node(node.graph, torch.logical_and, keep, found.keep)


def _add(found: Attention, node: fx.Node, item: Any, factor: Any, *, negative: bool) -> None:
    """Something added to the scores; what scales them afterwards scales it too."""
    item = as_node(item)
    if not value_of(item).is_floating_point():
        raise Refused("something that is not made of floating-point numbers is added to the scores")
    graph = node.graph
    with graph.inserting_before(found.last):
        if factor is not None:
            item = new_node(graph, operator.mul, item, factor)
        if negative:
            item = new_node(graph, torch.neg, item)
        found.added = item if found.added is None else new_node(graph, torch.add, item, found.added)
