"""Gradient fidelity of known changes on real models: what the bounds of ``autoopt.search.accept.fidelity`` let pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from autoopt.benchmark.fingerprint import Coordinates, without_draws
from autoopt.benchmark.seeding import seed_everything
from autoopt.benchmark.training import Training
from autoopt.loading import validation
from autoopt.loading.importing import load
from autoopt.search.accept.fidelity import Arrays, gradient_fidelity
from benchmarks import documents
from benchmarks.documents import RESULTS, environment, save

POINTS = (0, 40, 160)
"""Optimizer steps at which gradients are compared."""

BATCHES = 8
TINY = 1e-6
PENALTY = 1e-2

Groups = list[list[Any]]


def gradient(
    training: Training, group: list[Any], *, dtype: Any = None, factor: float = 1.0, penalty: float = 0.0
) -> Any:
    """Leaves the gradient of a group's mean loss in the parameters; ``factor`` is divided out by the caller."""
    training.model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        loss = training.loss(training.model, group[0]) * factor
    if penalty:
        loss = loss + penalty * sum((p.float() ** 2).sum() for p in training.model.parameters() if p.requires_grad)
    loss.backward()


@contextmanager
def rounded(training: Training, bits: int) -> Iterator[None]:
    """Inputs and weights of products rounded to so many bits of mantissa (TF32: 10)."""

    def cut(x: torch.Tensor) -> torch.Tensor:
        step = 1 << (23 - bits)
        return ((x.contiguous().view(torch.int32) + step // 2) & ~(step - 1)).view(torch.float32)

    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return cut(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return cut(grad)

    kinds = (nn.Linear, nn.Conv2d)
    modules = [m for m in training.model.modules() if isinstance(m, kinds)]
    kept = [m.weight.detach().clone() for m in modules]
    hooks = [
        m.register_forward_pre_hook(lambda m, x: tuple(Cut.apply(v) if v.is_floating_point() else v for v in x))
        for m in modules
    ]
    with torch.no_grad():
        for module in modules:
            module.weight.copy_(cut(module.weight))
    try:
        yield
    finally:
        with torch.no_grad():
            for module, weight in zip(modules, kept, strict=True):
                module.weight.copy_(weight)
        for hook in hooks:
            hook.remove()


@contextmanager
def half_gradients(training: Training) -> Iterator[None]:
    """Gradients between modules pass through fp16, as autocast to fp16 has them."""
    leaves = [m for m in training.model.modules() if not list(m.children()) and list(m.parameters())]
    hooks = [
        m.register_full_backward_pre_hook(lambda m, g: tuple(x if x is None else x.half().to(x.dtype) for x in g))
        for m in leaves
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def weights_of(training: Training, state: dict[str, Any] | None) -> Iterator[None]:
    """Other weights for a while."""
    kept = {name: value.clone() for name, value in training.model.state_dict().items()}
    if state:
        training.model.load_state_dict(state)
    try:
        yield
    finally:
        training.model.load_state_dict(kept)


class Changes:
    """Gradients of the held batches under each change, at the weights as they are."""

    def __init__(self, training: Training, groups: Groups, before: dict[str, Any] | None) -> None:
        self.training, self.groups, self.before = training, groups, before
        self.coordinates = Coordinates(training.model)

    def of(self, scale: float = 1.0, **how: Any) -> Any:
        found = []
        with without_draws(self.training.model):
            for group in self.groups:
                gradient(self.training, group, **how)
                found.append(self.coordinates.gradients(scale))
        return np.stack(found).astype(np.float64)

    def table(self) -> Iterator[tuple[str, Any, Any]]:
        """Name, gradients without and with the change."""
        plain = self.of()
        yield "nothing", plain, self.of()
        with rounded(self.training, 10):
            yield "TF32 (rounded to 10 bits)", plain, self.of()
        yield "bf16 autocast", plain, self.of(dtype=torch.bfloat16)
        with half_gradients(self.training):
            yield "fp16 gradients, loss as it is", plain, self.of()
            yield f"fp16 gradients without scaling, loss x {TINY:g}", plain, self.of(TINY, factor=TINY)
        with weights_of(self.training, self.before):
            yield "gradient of the weights one step ago", plain, self.of()
        yield "gradient of the batch before", plain, np.roll(plain, 1, axis=0)
        yield f"penalty on the weights dropped ({PENALTY:g})", self.of(penalty=PENALTY), plain
        yield "every other batch's gradient zero", plain, plain * (np.arange(len(plain)) % 2)[:, None]
        for factor in (1.01, 1.05, 0.5):
            yield f"gradient x {factor:g}", plain, factor * plain


def arrays(coordinates: Coordinates) -> Arrays:
    counts, sizes = np.array(coordinates.counts), np.array(coordinates.sizes)
    return Arrays(
        names=tuple(coordinates.names),
        scale=np.repeat(sizes / counts, counts),
        tensor=np.repeat(np.arange(len(counts)), counts),
        weights=np.zeros((1, counts.sum())),
        gradients=(),
        draws=None,
        updates=None,
    )


def measure(spec: str, progress: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """Every change at every point of a workload's training."""
    seed_everything(0)
    training = Training(validation.build(load(spec, ())), device="cpu", seed=0)
    rows, before = [], None
    for point in POINTS:
        while training.steps < point:
            if training.steps == point - 1:
                before = {name: value.clone() for name, value in training.model.state_dict().items()}
            training.step(training.next())
        groups = [training.next() for _ in range(BATCHES)]
        changes = Changes(training, groups, before)
        known = arrays(changes.coordinates)
        began = time.perf_counter()
        for name, plain, changed in changes.table():
            found = gradient_fidelity(known, plain, changed)
            rows.append(
                {
                    "workload": spec,
                    "step": point,
                    "change": name,
                    "error": found.error,
                    "bias": found.bias,
                    "length": found.slope,
                    "worst": found.worst,
                    "worst_name": found.worst_name,
                    "same": found.same,
                    "another": found.another,
                    "seconds": time.perf_counter() - began,
                }
            )
            verdict = "same" if found.same else "another" if found.another else "undecided"
            progress(f"{spec} {point} {name}: {found.text}, {found.worst:.2g} in {found.worst_name}: {verdict}")
            began = time.perf_counter()
    training.close()
    return rows


def main(specs: list[str]) -> None:
    """Measures the workloads and keeps the largest figures of each change, with the seconds of a comparison."""
    path = RESULTS / "truth.json"
    for spec in specs:
        rows = measure(spec, lambda text: print(text))
        found: dict[str, Any] = {}
        for name in dict.fromkeys(row["change"] for row in rows):
            mine = [row for row in rows if row["change"] == name]
            found[name] = {figure: max(row[figure] for row in mine) for figure in ("error", "bias", "worst", "seconds")}
            found[name] |= {"same": all(row["same"] for row in mine), "another": any(row["another"] for row in mine)}
            found[name]["length"] = max((row["length"] for row in mine), key=lambda length: abs(length - 1))
        document = documents.load(path)
        settings = {"points": POINTS, "batches": BATCHES, "tiny": TINY, "penalty": PENALTY}
        about = {"settings": settings, "environment": environment(), "changes": found}
        document.setdefault("fidelity", {})[spec] = about
        save(path, document)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
