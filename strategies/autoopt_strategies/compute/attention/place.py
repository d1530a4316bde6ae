"""One place where attention stands, as far as it is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx


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
