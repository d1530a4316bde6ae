"""Products of queries, keys and values that are spelled as an einsum."""

from __future__ import annotations

from torch import fx

from autoopt_strategies.compute.attention.nodes import as_node
from autoopt_strategies.compute.attention.place import Attention
from autoopt_strategies.compute.attention.trace import Refused


def einsum_scores(node: fx.Node, found: Attention) -> None:
    (one, two), out = _letters(node, 2)
    row, column = out[-2], out[-1]
    operands = node.args[1:] if len(node.args) == 3 else tuple(node.args[1])  # type: ignore[arg-type]
    if row in two:
        one, two, operands = two, one, (operands[1], operands[0])
    shared = [letter for letter in one if letter in two and letter not in out]
    batch = out[:-2]
    if len(shared) != 1 or set(one) != {*batch, row, *shared} or set(two) != {*batch, column, *shared}:
        raise Refused(f"the einsum {node.args[0]!r} is no product of queries and keys")
    found.q, found.k = as_node(operands[0]), as_node(operands[1])
    found.q_order = tuple(one.index(letter) for letter in [*batch, row, *shared])
    found.k_order = tuple(two.index(letter) for letter in [*batch, column, *shared])
    found.transposed_k = False


def einsum_values(node: fx.Node, weights: fx.Node, found: Attention) -> None:
    parts, out = _letters(node, 2)
    operands = node.args[1:] if len(node.args) == 3 else tuple(node.args[1])  # type: ignore[arg-type]
    (p, v), (first, second) = parts, operands
    if first is not weights:
        p, v, first, second = v, p, second, first
    batch, row, column = p[:-2], p[-2], p[-1]
    deep = [letter for letter in v if letter not in p]
    if first is not weights or len(deep) != 1 or set(v) != {*batch, column, *deep} or set(out) != {*batch, row, *deep}:
        raise Refused(f"the einsum {node.args[0]!r} is no product of probabilities and values")
    found.v = as_node(second)
    found.v_order = tuple(v.index(letter) for letter in [*batch, column, *deep])
    whole = [*batch, row, *deep]
    found.out_order = tuple(whole.index(letter) for letter in out)


def _letters(node: fx.Node, operands: int) -> tuple[list[str], str]:
    equation = node.args[0]
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        raise Refused("an einsum whose equation is not spelled out")
    left, out = equation.replace(" ", "").split("->")
    parts = left.split(",")
    if len(parts) != operands or any(len(set(part)) != len(part) for part in [*parts, out]):
        raise Refused(f"the einsum {equation!r} is not a product of {operands}")
    return parts, out
