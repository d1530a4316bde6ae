"""Finds ``softmax(Q K^T) V`` in a captured graph.

From each softmax the graph is followed back through scale, bias and masks to the product of queries and keys, and on
through dropout to the product with the values. What is not understood is refused with the reason. Dimensions are named
by letters, as in an einsum.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from autoopt_strategies.compute.attention.capture import Refused, called

NEVER = -1e4
"""A score of this much or less has no share in the softmax."""

SOFTMAX = ("softmax", "_softmax", "_safe_softmax")
PRODUCTS = ("matmul", "bmm", "baddbmm", "einsum")
CASTS = ("to", "type_as", "_to_copy", "float", "contiguous", "clone", "alias", "detach_copy")
VIEWS = ("view", "reshape", "_unsafe_view")
SIZES = ("sym_size", "sym_stride", "sym_numel")
AGAIN = "the scores are used a second time, so they have to be computed"


@dataclass
class Step:
    """One operator between the product and the softmax.

    Attributes:
        kind: ``scale`` (``item`` is the factor), ``add`` (what is added), ``keep`` (True where a score counts) or
            ``view`` (sizes of the batch dimensions).
        factor: of what is added.
        inverse: divided by; True where a score does not count.
        fill: what scores become that do not count.
    """

    kind: str
    item: Any
    factor: float = 1.0
    inverse: bool = False
    fill: float = float("-inf")


@dataclass
class Operand:
    """A tensor and its dimensions, a letter each."""

    node: fx.Node
    letters: str


@dataclass
class Attention:
    """One place where attention stands.

    Attributes:
        q, k, v: queries (batch, row, depth), keys (batch, column, depth), values (batch, column, ...), in any order.
        scores: letters of the product of queries and keys.
        batch: letters of the scores without row and column.
        row, column: letters of the queries' and keys' places.
        depth: the letter that queries and keys share.
        steps: from the product on to the softmax.
        views: sizes that the batch dimensions of the probabilities are brought to before the product with the values.
        probabilities, out: letters of the operand and the result of the product with the values.
    """

    softmax: fx.Node
    last: fx.Node = field(init=False)
    q: Operand = field(init=False)
    k: Operand = field(init=False)
    v: Operand = field(init=False)
    scores: str = ""
    row: str = ""
    depth: str = ""
    probabilities: str = ""
    out: str = ""
    dropout: float = 0.0
    steps: list[Step] = field(default_factory=list)
    views: list[Any] = field(default_factory=list)

    @property
    def column(self) -> str:
        return self.scores[-1]

    @property
    def batch(self) -> str:
        return "".join(letter for letter in self.scores if letter not in (self.row, self.column))


def find(graph: fx.Graph) -> list[Attention]:
    """Every attention in a captured graph.

    Raises:
        Refused: there is none that is understood.
    """
    found, refused = [], None
    for node in graph.nodes:
        if called(node) in SOFTMAX:
            try:
                found.append(around(node))
            except Refused as error:
                refused = refused or error
    if found:
        return found
    if refused is not None:
        raise refused
    if any(called(node) == "scaled_dot_product_attention" for node in graph.nodes):
        raise Refused("it uses scaled_dot_product_attention already")
    raise Refused("there is no softmax in its forward", outside=True)


def around(softmax: fx.Node) -> Attention:
    given, rank = arguments(softmax), tensor(softmax).dim()
    if given["dim"] not in (-1, rank - 1):
        raise Refused(f"the softmax runs over dimension {given['dim']}, not over the keys at the end")
    if rank < 3:
        raise Refused("the softmax is over one vector for each sample, not over scores of queries and keys")
    found = Attention(softmax)
    follow_back(given["self"], found)
    follow_on(softmax, found)
    for operand in (found.q, found.k, found.v):
        if not tensor(operand.node).is_floating_point() or tensor(operand.node).dim() < 3:
            raise Refused("queries, keys and values are not batches of matrices")
    return found


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an ATen operator by name, defaults included."""
    schema: Any = node.target._schema  # type: ignore[union-attr]
    given = {item.name: value for item, value in zip(schema.arguments, node.args, strict=False)}
    return {item.name: item.default_value for item in schema.arguments} | given | dict(node.kwargs)


def tensor(item: Any) -> torch.Tensor:
    """The fake tensor of a node: its shape and dtype."""
    value = item.meta.get("val") if isinstance(item, fx.Node) else None
    if not isinstance(value, torch.Tensor):
        raise Refused("the scores do not come from a tensor")
    return value


def only_reader(node: fx.Node, reason: str) -> fx.Node:
    """Who reads the numbers of a node, where it is one.

    Sizes, a dtype that is taken over, and the maximum that makes a softmax stable do not count.
    """
    asks = {user for user in node.users if called(user) == "type_as" and user.args[0] is not node}
    asks |= {user for user in node.users if called(user) in SIZES or stabilizes(user)}
    readers = [user for user in node.users if user not in asks]
    if any(reader.op == "output" for reader in readers):
        raise Refused(reason.replace("used a second time", "returned to the caller"), outside=True)
    if len(readers) != 1:
        raise Refused(reason, outside=True)
    return readers[0]


def follow_back(scores: Any, found: Attention) -> None:
    """From the softmax's input back to the product."""
    node = scores
    while True:
        if not isinstance(node, fx.Node) or not called(node):
            raise Refused("its scores come from outside of its forward", outside=True)
        only_reader(node, AGAIN)
        if called(node) in PRODUCTS:
            break
        node = peeled(node, found.steps)
    given = arguments(node)
    if called(node) == "baddbmm":
        if given["beta"] != 0:
            found.steps.append(Step("add", given["self"], factor=given["beta"]))
        if given["alpha"] != 1:
            found.steps.append(Step("scale", given["alpha"]))
    found.steps.reverse()
    one, two, out = operands(node)
    shared = [letter for letter in one.letters if letter in two.letters and letter not in out]
    if out[-1] in one.letters:
        one, two = two, one
    rows = [letter for letter in out if letter not in two.letters]
    row = out[-2] if out[-2] in rows else rows[0] if len(rows) == 1 else None
    if len(shared) != 1 or row is None or out[-1] in one.letters or out[-1] not in two.letters:
        raise Refused("the scores are no product of queries and keys")
    found.q, found.k, found.scores, found.row, found.depth = one, two, out, row, shared[0]


def operands(node: fx.Node) -> tuple[Operand, Operand, str]:
    """Both operands of a product and the letters of the result."""
    given = arguments(node)
    if called(node) != "einsum":
        names = (
            ("batch1", "batch2")
            if called(node) == "baddbmm"
            else ("self", "mat2" if called(node) == "bmm" else "other")
        )
        one, two = (given[name] for name in names)
        if min(tensor(one).dim(), tensor(two).dim()) < 2:
            raise Refused("the scores are no product of two batches of matrices")
        rank = tensor(node).dim()
        batch = string.ascii_lowercase[: rank - 2]
        left, right = (batch[rank - tensor(item).dim() :] for item in (one, two))
        return Operand(one, left + "yx"), Operand(two, right + "xz"), batch + "yz"
    equation, items = given["equation"].replace(" ", ""), given["tensors"]
    left, _, out = equation.partition("->")
    parts = left.split(",")
    if len(items) != 2 or "->" not in equation:
        raise Refused(f"the einsum {equation!r} is no product of two")
    ranks = [tensor(item).dim() for item in items]
    dots = [string.ascii_uppercase[: rank - len(part) + 3] for part, rank in zip(parts, ranks, strict=True)]
    longest = max(dots, key=len)
    parts = [part.replace("...", longest[len(longest) - len(each) :]) for part, each in zip(parts, dots, strict=True)]
    out = out.replace("...", longest)
    if any(len(set(part)) != len(part) for part in [*parts, out]):
        raise Refused(f"the einsum {equation!r} takes a diagonal")
    return Operand(items[0], parts[0]), Operand(items[1], parts[1]), out


def peeled(node: fx.Node, steps: list[Step]) -> Any:
    """One operator taken off the scores and noted: the node before it."""
    name, given = called(node), arguments(node)
    if name in CASTS:
        return given["self"]
    if name in VIEWS:
        steps.append(Step("view", batch_sizes(node, given)))
        return given["self"]
    if name in ("masked_fill", "where"):
        return masked(node, given, steps)
    if name in ("mul", "div"):
        scores, other = sides(node, given)
        steps.append(Step("scale", factor_of(other), inverse=name == "div"))
        return scores
    if name in ("add", "sub"):
        scores, other = sides(node, given)
        if name == "sub" and maximum_of(other) is scores:
            return scores  # a softmax is the same whatever is taken from all scores of a row
        if not tensor(other).is_floating_point():
            raise Refused("something that is not made of floating-point numbers is added to the scores")
        steps.append(Step("add", other, factor=given["alpha"] * (-1 if name == "sub" else 1)))
        return scores
    if name in ("maximum", "clamp", "clamp_min") or ("other" in given and name == "max"):
        scores, least = sides(node, given) if "other" in given else (given["self"], given["min"])
        if number(least) is not None and number(least) <= NEVER and given.get("max") is None:  # type: ignore[operator]
            return scores
    if not has_product(node):
        raise Refused("the softmax is not over a product of queries and keys")
    raise Refused(f"between the product and the softmax stands {name or node.name}, which is not understood")


def has_product(node: fx.Node, depth: int = 12) -> bool:
    """Whether a product of two tensors is somewhere behind a node."""
    return called(node) in PRODUCTS or (
        depth > 0 and any(has_product(each, depth - 1) for each in node.all_input_nodes)
    )


def batch_sizes(view: fx.Node, given: dict[str, Any]) -> list[Any]:
    """The sizes that a view gives the batch dimensions, where it leaves the matrices as they are."""
    if [str(size) for size in tensor(view).shape[-2:]] != [str(size) for size in tensor(given["self"]).shape[-2:]]:
        raise Refused("the scores are brought into another shape")
    sizes: list[Any] = given["size" if "size" in given else "shape"]
    return sizes[:-2]


def sides(node: fx.Node, given: dict[str, Any]) -> tuple[Any, Any]:
    """The scores and the other operand."""
    left, right = given["self"], given["other"]
    pairs = [(left, right)] + ([(right, left)] if called(node) in ("add", "mul", "maximum", "max") else [])
    large = [pair for pair in pairs if is_large(pair[0], node)]
    for pair in large:
        if from_product(pair[0]):
            return pair
    if large:
        return large[0]  # what is not understood in it will be told
    raise Refused(f"the scores are combined by {called(node)} with something larger")


def is_large(item: Any, node: fx.Node) -> bool:
    """Whether this is as large as the result."""
    known = isinstance(item, fx.Node) and isinstance(item.meta.get("val"), torch.Tensor)
    return known and str(tensor(item).shape) == str(tensor(node).shape)


def from_product(node: Any) -> bool:
    name = called(node)
    if name in PRODUCTS:
        return True
    if name in ("where",):
        return any(from_product(item) for item in node.args[1:3])
    if name in ("add", "mul", "maximum", "max"):
        return any(from_product(item) for item in node.args[:2])
    return name in (*CASTS, *VIEWS, "masked_fill", "div", "sub", "clamp", "clamp_min") and from_product(node.args[0])


def stabilizes(node: fx.Node) -> bool:
    """Whether a node is the maximum over a dimension, taken from scores so that no exponential overflows."""
    return called(node) == "amax" or (called(node) == "max" and "dim" in arguments(node))


def maximum_of(item: Any) -> Any:
    """The node that an item is the maximum of, over the last dimension; None where it is none."""
    while called(item) == "detach" or (isinstance(item, fx.Node) and getattr(item.target, "__name__", "") == "getitem"):
        item = item.args[0]
    over_keys = isinstance(item, fx.Node) and stabilizes(item) and item.args[1:2] in ((-1,), ([-1],))
    return item.args[0] if over_keys else None


def number(item: Any) -> float | None:
    """A number that is known now: itself, or a tensor that was made of one."""
    if isinstance(item, fx.Node) and called(item) in ("full", "scalar_tensor"):
        item = arguments(item).get("fill_value", arguments(item).get("s"))
    return float(item) if isinstance(item, (int, float)) else None


def factor_of(item: Any) -> Any:
    """A scale: a number, or a tensor with one number for each row at most."""
    if isinstance(item, (int, float)):
        return item
    if number(item) is not None:
        return number(item)
    value = item.meta.get("val") if isinstance(item, fx.Node) else None
    if isinstance(value, (torch.SymInt, torch.SymFloat, int, float)):
        return item
    if isinstance(value, torch.Tensor) and (value.dim() == 0 or str(value.shape[-1]) == "1"):
        return item
    raise Refused("the scores are multiplied by something that is not one number")


def masked(node: fx.Node, given: dict[str, Any], steps: list[Step]) -> Any:
    if called(node) == "masked_fill":
        scores, mask, fill, inverse = given["self"], given["mask"], given["value"], True
    else:
        mask, left, right = given["condition"], given.get("self"), given.get("other")
        inverse = not (is_large(left, node) and from_product(left))
        scores, fill = (right, left) if inverse else (left, right)
    known = number(fill)
    if known is None or known > NEVER:
        raise Refused(f"masked scores become {known if known is not None else fill}, which leaves them a share")
    if tensor(mask).dtype != torch.bool:
        raise Refused("the mask is not made of truth values")
    steps.append(Step("keep", mask, inverse=inverse, fill=known))
    return scores


def follow_on(softmax: fx.Node, found: Attention) -> None:
    """From the softmax on to the product with the values."""
    node = softmax
    while True:
        reader = only_reader(node, "the probabilities are used a second time, so they have to be computed")
        name = called(reader)
        if name == "dropout":
            given = arguments(reader)
            found.dropout = given["p"] if given["train"] else 0.0
        elif name in VIEWS:
            found.views.append(batch_sizes(reader, arguments(reader)))
        elif name in PRODUCTS and name != "baddbmm":
            product_with_values(reader, node, found)
            return
        elif name not in CASTS or reader.args[0] is not node:
            raise Refused(f"between the softmax and the values stands {name or reader.name}, which is not understood")
        node = reader


def product_with_values(node: fx.Node, weights: fx.Node, found: Attention) -> None:
    p, v, out = operands(node)
    if p.node is not weights:
        p, v = v, p
    place = found.scores.index(found.row) - len(found.scores)
    row, column = p.letters[place], p.letters[-1]
    batch = [letter for letter in p.letters if letter not in (row, column)]
    wide = [letter for letter in v.letters if letter not in p.letters]
    if (
        p.node is not weights
        or len(wide) != 1
        or column not in v.letters
        or row in v.letters
        or set(out) != {*batch, row, *wide}
    ):
        raise Refused("the probabilities are not multiplied with values along the keys")
    found.v, found.last, found.probabilities, found.out = v, node, p.letters, out
