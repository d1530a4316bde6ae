"""The text classifier of ``examples/text.py`` with a body that was trained on thirty other modules: fine-tuning.

python -m benchmarks.serving.text WEIGHTS.pt       # trains the body, once
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import autoopt
from autoopt.records.writing import replacing

WEIGHTS = "AUTOOPT_BENCHMARK_BODY"
"""Environment variable: the file of the trained body."""
OTHERS, EPOCHS, LEAST_BYTES = 30, 6, 40_000


def example() -> ModuleType:
    """A module of its own for each call, since its ``MODULES`` are set."""
    path = Path(__file__).resolve().parents[2] / "examples" / "text.py"
    spec = importlib.util.spec_from_file_location("example_text", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def others(known: list[str]) -> list[str]:
    """Further modules of the library that are one long file of source, in the order of their names."""
    found = []
    for name in sorted(sys.stdlib_module_names - set(known)):
        spec = None if name.startswith("_") or name in ("antigravity", "this") else importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            found += [name] if Path(spec.origin).stat().st_size >= LEAST_BYTES else []
    return found[:OTHERS]


def pretrain(path: Path) -> float:
    """Trains the body on other modules and writes it without its head; their accuracy."""
    module = example()
    module.MODULES[:] = others(module.MODULES)
    torch.manual_seed(0)
    model = module.Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches: DataLoader[Any] = DataLoader(module.pieces(train=True), 32, shuffle=True)
    for _ in range(EPOCHS):
        for tokens, labels in batches:
            nn.functional.cross_entropy(model(tokens), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    state = {name: value for name, value in model.state_dict().items() if not name.startswith("head.")}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        torch.save(state, file)
    with torch.no_grad():
        accuracy: float = module.evaluate(model.eval(), DataLoader(module.pieces(train=False), 64))["accuracy"]
    return accuracy


def build() -> autoopt.Workload:
    """Fine-tuning on the example's own modules: body as trained, head afresh."""
    if not os.environ.get(WEIGHTS):
        raise RuntimeError(f"{WEIGHTS} names no file: python -m benchmarks.serving.text FILE makes it")
    workload: autoopt.Workload = example().build()
    model: nn.Module = workload.model  # type: ignore[assignment]
    model.load_state_dict(torch.load(os.environ[WEIGHTS], weights_only=True), strict=False)
    workload.optimizer = lambda params: torch.optim.AdamW(params, lr=1e-3)
    workload.target, workload.evaluate_every = autoopt.Target("accuracy", at_least=0.7), 20
    return workload


if __name__ == "__main__":
    print(f"accuracy on the other modules: {pretrain(Path(sys.argv[1])):.3f}")
