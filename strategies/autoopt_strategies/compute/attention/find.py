"""Finds ``softmax(Q K^T) V`` written by hand in a traced forward.

From each softmax the graph is followed back through scale and masks to the product of queries and keys,
and on through dropout to the product with the values. What is not understood is left alone: a forward
with an unknown operator on that path, probabilities that are used a second time, another dimension.
"""

from __future__ import annotations

import torch
from torch import fx, nn
from torch.nn import functional as F

from autoopt_strategies.compute.attention.einsum import einsum_values
from autoopt_strategies.compute.attention.nodes import argument, as_node, calls, is_product, only_shape, value_of
from autoopt_strategies.compute.attention.place import Attention
from autoopt_strategies.compute.attention.scores import follow_back
from autoopt_strategies.compute.attention.trace import Refused


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
    return calls(node, "softmax", F.softmax, torch.softmax)


def _around(softmax: fx.Node, children: dict[str, nn.Module]) -> Attention:
    scores = softmax.args[0]
    if not isinstance(scores, fx.Node):
        raise Refused("softmax of something that is no tensor")
    dimension = (
        children[str(softmax.target)].dim if softmax.op == "call_module" else argument(softmax, 1, "dim", default=None)
    )
    rank = value_of(scores).dim()
    if dimension not in (-1, rank - 1):
        raise Refused(f"the softmax runs over dimension {dimension}, not over the keys at the end")
    found = Attention(softmax, softmax, softmax, softmax)
    follow_back(scores, found)
    _follow_on(softmax, found, children)
    _check(found)
    return found


def _follow_on(softmax: fx.Node, found: Attention, children: dict[str, nn.Module]) -> None:
    """From the softmax on to the product with the values."""
    node = softmax
    while True:
        users = [user for user in node.users if not only_shape(user)]
        if len(users) != 1:
            raise Refused("the probabilities are used a second time")
        user = users[0]
        if user.op == "call_module" and isinstance(children.get(str(user.target)), nn.Dropout):
            child = children[str(user.target)]
            found.dropout = child.p if child.training else 0.0
        elif calls(user, "", F.dropout, torch.dropout):
            training = argument(user, 2, "training", "train", default=True)
            found.dropout = argument(user, 1, "p", default=0.5) if training else 0.0
        elif user.op == "call_module" and isinstance(children.get(str(user.target)), nn.Identity):
            pass
        elif calls(user, "type_as") or calls(user, "to"):
            pass  # back from the float32 of the softmax
        elif is_product(user):
            _values(user, node, found)
            return
        else:
            raise Refused(f"between the softmax and the values stands {user.target}, which is not understood")
        node = user


def _values(node: fx.Node, weights: fx.Node, found: Attention) -> None:
    found.last = node
    if calls(node, "", torch.einsum):
        einsum_values(node, weights, found)
        return
    if node.args[0] is not weights:
        raise Refused("the probabilities stand on the right of the product")
    found.v = as_node(argument(node, 1, "other", "mat2", "tensor2"))


def _check(found: Attention) -> None:
    for node in (found.q, found.k, found.v):
        value = value_of(node)
        if not value.is_floating_point() or value.dim() < 3:
            raise Refused("queries, keys and values are not batches of matrices")
