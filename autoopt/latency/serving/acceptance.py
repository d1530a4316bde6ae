"""The acceptance test of a served model: it fails when its P95 or its metric does. Needs no autoopt.

Copied next to the model; ``accept.py`` calls :func:`main` with the folder of ``acceptance.json``:

* ``variant``: how it is served; ``workload``: the build whose evaluation is taken, and model without an artefact.
* ``limit_seconds`` (or null), ``clients``: of the P95; ``metric``, ``mode``, ``least`` (the worst accepted).
* ``requests.pt``, ``validation.pt``: calls of the model, and validation batches; ``answers.pt``: where the evaluation
  belongs to a trainer of a library, the answers that were judged.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
import types
from pathlib import Path
from typing import Any

import torch

from .requests import Batcher, asker, mapped, measure, quantile, tensors_of
from .variants import Variant, load

BLOCKS, BLOCK_REQUESTS, BLOCK_SECONDS, WARM_UP = 5, 100, 1.0, 20
"""Five requests of a block lie above its P95; two disturbed blocks of five do not move the median."""
APART = 0.02
"""How far answers may lie from those that were judged: part of their size."""


class Given(types.SimpleNamespace):
    """The arguments of a workload by name; None for one that was not given."""

    def __getattr__(self, name: str) -> Any:
        return None


def stand_in() -> None:
    """Lets a module that describes its workload by autoopt be imported where autoopt is not installed."""
    try:
        importlib.import_module("autoopt")
    except ImportError:
        module = types.ModuleType("autoopt")

        def target(metric: str, **more: Any) -> Given:
            return Given(metric=metric, **more)

        module.Workload, module.Target = Given, target  # type: ignore[attr-defined]
        sys.modules["autoopt"] = module


def built(spec: str, search_path: list[str]) -> Any:
    """The return value of the user's function: ``module:attribute``, or a file in place of the module."""
    stand_in()
    name, _, attribute = spec.rpartition(":")
    sys.path[:0] = [folder for folder in search_path if folder not in sys.path]
    if name.endswith(".py"):
        path = next(p for p in (Path(folder) / name for folder in [".", *search_path]) if p.is_file())
        sys.path.insert(0, str(path.parent))
        described = importlib.util.spec_from_file_location(path.stem, path)
        assert described is not None
        assert described.loader is not None
        module = importlib.util.module_from_spec(described)
        sys.modules[path.stem] = module
        described.loader.exec_module(module)
    else:
        module = importlib.import_module(name)
    found = module
    for part in attribute.split("."):
        found = getattr(found, part)
    return found() if callable(found) and not hasattr(found, "model") else found


def main(folder: Path) -> int:
    """Loads, judges and times the model; 0 where both hold, 1 where one does not."""
    settings = json.loads((folder / "acceptance.json").read_text(encoding="utf-8"))
    variant = Variant(**settings["variant"])
    workload = built(settings["workload"], settings["search_path"])
    student = built(variant.model, settings["search_path"]) if variant.model else workload
    device = settings["device"]
    model = None
    if not variant.artefact:
        model = student.model
        model.load_state_dict(_read(folder / "weights.pt"))
        model = model.eval().to(device)
    began = time.perf_counter()
    predictor = load(model, variant, folder / "model" if variant.artefact else None).eval()
    ask, requests = asker(predictor, device), _read(folder / "requests.pt")
    ask(requests[0])
    print(f"cold start: {time.perf_counter() - began:.3f} s to the first answer")
    holds = [_quality(predictor, workload, settings, folder), _latency(ask, requests, variant, settings)]
    print("accepted" if all(holds) else "NOT accepted")
    return 0 if all(holds) else 1


def _read(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def _quality(predictor: Any, workload: Any, settings: dict[str, Any], folder: Path) -> bool:
    if (folder / "answers.pt").is_file():
        return _same_answers(predictor, settings, folder)
    device = settings["device"]
    batches = [mapped(batch, lambda tensor: tensor.to(device)) for batch in _read(folder / "validation.pt")]
    with torch.no_grad():
        value = float(workload.evaluate(predictor, batches)[settings["metric"]])
    more = settings["mode"] == "max"
    holds = bool(value >= settings["least"] if more else value <= settings["least"])
    word = "at least" if more else "at most"
    print(f"{settings['metric']}: {value:.6g}, {word} {settings['least']:.6g} is wanted: {'ok' if holds else 'FAILS'}")
    return holds


def _same_answers(predictor: Any, settings: dict[str, Any], folder: Path) -> bool:
    ask = asker(predictor, settings["device"])
    distance = size = 0.0
    for request, judged in zip(_read(folder / "requests.pt"), _read(folder / "answers.pt"), strict=True):
        for one, other in zip(tensors_of(ask(request)), judged, strict=True):
            distance += float((one.double() - other.double()).square().sum())
            size += float(other.double().square().sum())
    apart: float = (distance / max(size, 1e-30)) ** 0.5
    print(f"answers: {apart:.2g} of their size from those that were judged, at most {APART:g} is wanted")
    return bool(apart <= APART)


def _latency(ask: Any, requests: list[Any], variant: Variant, settings: dict[str, Any]) -> bool:
    """The median of the blocks' P95: a burst of the machine in one block alone decides nothing."""
    clients, limit = settings["clients"], settings["limit_seconds"]
    for request in requests[:WARM_UP]:
        ask(request)
    with Batcher(ask, variant.batching) as batcher:
        asked = batcher.ask if variant.batching > 1 and clients > 1 else ask
        tails, rates = [], []
        for place in range(BLOCKS):
            found, spent = measure(
                asked, requests, clients=clients, seconds=BLOCK_SECONDS, least=BLOCK_REQUESTS, first=place * 37
            )
            tails.append(quantile(found, 0.95))
            rates.append(len(found) / spent)
    tail = sorted(tails)[BLOCKS // 2]
    holds = bool(limit is None or tail <= limit)
    wanted = "no limit was given" if limit is None else f"at most {1e3 * limit:g} ms is wanted"
    blocks = ", ".join(f"{1e3 * each:.3g}" for each in tails)
    print(
        f"P95 with {clients} client{'s' if clients > 1 else ''}: {1e3 * tail:.3g} ms (blocks: {blocks}), "
        f"{sorted(rates)[BLOCKS // 2]:.4g} requests/s; {wanted}: {'ok' if holds else 'FAILS'}"
    )
    return holds
