"""Attention as public models spell it: what is found of it, how equal it is, and what it brings on this machine.

    python -m benchmarks.attention --write        # benchmarks/results/attention.json; again: models that are missing

Run it on a machine that does nothing else: some five minutes. Needs transformers (the extra of that name).
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from autoopt_strategies.compute.flash_attention import switch_attention, transforms
from autoopt_strategies.compute.rewriting.attention import survey_training
from autoopt_strategies.compute.rewriting.survey import gradients
from benchmarks.attention.library import LIBRARY
from benchmarks.attention.models import OWN, Model, Size
from benchmarks.documents import RESULTS, environment, load, parser_of, save

SIZE = Size(width=256, heads=8, layers=2, length=256, batch=4, words=512)
PAIRS = 8
CONFIDENCE = 0.95


def loss_of(kind: str) -> Callable[[nn.Module, torch.Tensor], torch.Tensor]:
    def next_token(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    def labels(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        return found

    return next_token if kind == "own" else labels


def once(model: nn.Module, loss: Callable[[nn.Module, torch.Tensor], torch.Tensor], tokens: torch.Tensor) -> float:
    """Seconds of one forward and backward."""
    model.zero_grad(set_to_none=True)
    began = time.perf_counter()
    loss(model, tokens).backward()
    return time.perf_counter() - began


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """The median with its interval from order statistics, which holds for any distribution."""
    ordered, n = sorted(values), len(values)
    tail = 0.0
    rank = 0
    while tail + math.comb(n, rank) / 2**n <= (1 - CONFIDENCE) / 2:
        tail += math.comb(n, rank) / 2**n
        rank += 1
    low = max(rank - 1, 0)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return middle, ordered[low], ordered[n - 1 - low]


def measured(name: str, kind: str, model: nn.Module) -> dict[str, Any]:
    """One row: what was found in a model, how far it is from the original, and the ratio of seconds in turn."""
    loss = loss_of(kind)
    tokens = torch.randint(3, SIZE.words, (SIZE.batch, SIZE.length), generator=torch.Generator().manual_seed(0))
    found = survey_training(model, loss, tokens, switch_attention)
    row: dict[str, Any] = {"model": name, "switched": found["switch"], "rewritten": found["found"]}
    row |= {"causal": found["causal"], "refused": found["refused"]}
    changed = copy.deepcopy(model)
    for change in transforms(found):
        changed = change(changed)
    if not transforms(found):
        return row | {"difference": None, "speedup": None, "low": None, "high": None, "n": 0}
    pairs = list(zip(gradients(model, loss, tokens), gradients(changed, loss, tokens), strict=True))[1:]
    largest = max(float(a.abs().max()) for a, _ in pairs if a is not None)
    off = max(float((a - b).abs().max()) for a, b in pairs if a is not None and b is not None)
    for each in (model, changed):
        once(each, loss, tokens)
    ratios = []
    for turn in range(PAIRS):
        order = (model, changed) if turn % 2 == 0 else (changed, model)
        seconds = {id(each): once(each, loss, tokens) for each in order}
        ratios.append(seconds[id(model)] / seconds[id(changed)])
    middle, low, high = median_interval(ratios)
    return row | {"difference": off / largest, "speedup": middle, "low": low, "high": high, "n": PAIRS}


def rows(known: Sequence[dict[str, Any]] = ()) -> Iterator[dict[str, Any]]:
    """The row of each model as soon as it is measured; those that are known are not measured again."""
    measured_before = {row["model"] for row in known}
    for name, (kind, make) in {
        **{name: ("own", lambda layer=layer: Model(layer, SIZE)) for name, layer in OWN.items()},
        **{name: ("library", lambda make=make: make(SIZE)) for name, make in LIBRARY.items()},
    }.items():
        if name in measured_before:
            continue
        torch.manual_seed(0)
        yield measured(name, kind, make())


def main() -> None:
    parser = parser_of("benchmarks.attention", __doc__, RESULTS / "attention.json")
    parser.add_argument("--write", action="store_true", help="save what is measured")
    options = parser.parse_args()
    known = load(options.out) if options.write else {}  # a command that was ended early goes on
    document: dict[str, Any] = {"size": vars(SIZE), "rows": [], **known}
    where = environment() | {"torch": torch.__version__}
    for row in rows(document["rows"]):
        document["rows"].append(row)
        print(json.dumps(row), flush=True)
        if options.write:
            save(options.out, document | {"environment": where})


if __name__ == "__main__":
    main()
