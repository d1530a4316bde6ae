"""Tasks that tests of the compiler's cache ask a trial for."""

from __future__ import annotations

from typing import Any


def graph_cache(live: Any) -> dict[str, int]:
    """Trains two steps; how many graphs were found compiled, and how many had to be compiled."""
    from torch._dynamo.utils import counters

    for _ in range(2):
        live.training.step(live.training.next())
    found = counters["inductor"]
    return {"hits": found["fxgraph_cache_hit"], "misses": found["fxgraph_cache_miss"]}
