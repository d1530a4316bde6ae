"""One side of own_trainer.py: the user's build() and the Trainer's own loop, in a process of its own.

The loop runs in a thread; between two steps it waits at a gate that a block opens and closes.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WITHOUT_END = {
    "lightning": {"max_epochs": 10**6, "max_steps": -1, "limit_val_batches": 0, "num_sanity_val_steps": 0},
    "transformers": {"num_train_epochs": 10**6, "max_steps": -1, "eval_strategy": "no", "save_strategy": "no"},
}
"""Where steps are compared: nothing but training, for as long as it is asked for. The same on both sides."""


class Gate:
    """Counts steps and holds the loop between them while no block is running."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.steps = self.samples = 0
        self.enough: Callable[[float], bool] | None = None
        self.ended: BaseException | str | None = None

    def step(self, samples: int) -> None:
        """In the loop's thread, after each step."""
        with self.condition:
            self.steps += 1
            self.samples += samples
            if self.enough is not None and self.enough(time.perf_counter()):
                self.enough = None
            self.condition.notify_all()
            while self.enough is None:
                self.condition.wait()

    def run(self, enough: Callable[[float], bool]) -> None:
        """In the main thread: lets the loop go until ``enough(now)`` holds after a step."""
        with self.condition:
            self.enough = enough
            self.condition.notify_all()
            while self.enough is not None and self.ended is None:
                self.condition.wait()
            if isinstance(self.ended, BaseException):
                raise RuntimeError("the Trainer failed") from self.ended
            if self.ended:
                raise RuntimeError(self.ended)


class Side:
    """The Trainer of a trial of own_trainer.py, made from its spec and not yet running."""

    def __init__(self, spec: Any, registry: Any) -> None:
        from autoopt.benchmark.device import open_device

        self.device = open_device(spec.device)
        self.target = json.loads(os.environ["OWN_TRAINER"])["target"]
        self.gate = Gate()
        fit = built(spec.workload, bool(spec.plan.changes), spec.seed, WITHOUT_END[self.target], self.gate)
        threading.Thread(target=self._fit, args=(fit,), daemon=True).start()
        self.run = self.gate.run

    @property
    def steps(self) -> int:
        return self.gate.steps

    @property
    def samples(self) -> int:
        return self.gate.samples

    def _fit(self, fit: Callable[[], Any]) -> None:
        outcome: BaseException | str = "the Trainer came to its end"
        with self.gate.condition:
            while self.gate.enough is None:
                self.gate.condition.wait()
        try:
            fit()
        except BaseException as error:
            outcome = error
        with self.gate.condition:
            self.gate.ended = outcome
            self.gate.condition.notify_all()

    def close(self) -> None:
        """The process ends with its trial."""


def built(spec: str, optimized: bool, seed: int, arguments: dict[str, Any], gate: Gate | None) -> Callable[[], Any]:
    """The user's Trainer, ready to go.

    Args:
        spec: the import string of ``build``.
        optimized: with what was exported, or as it is.
        seed: Python's, NumPy's and torch's.
        arguments: further ones for the constructor, on both sides.
        gate: told of each step; None where the training runs freely.

    Returns:
        What trains to its end.
    """
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    where = json.loads(os.environ["OWN_TRAINER"])
    folder = Path(where["folder"])
    sys.path.insert(0, str(folder))
    exported: dict[str, Any] = {}
    if optimized:
        text = (folder / "arguments").read_text(encoding="utf-8")
        exported = _lightning_arguments(text) if where["target"] == "lightning" else json.loads(text)
    make = _lightning if where["target"] == "lightning" else _transformers
    return make(_build(spec), {**exported, **arguments}, optimized, gate)


def _build(spec: str) -> Callable[[], Any]:
    from autoopt.loading import importing

    found: Callable[[], Any] = importing.load(spec, (os.getcwd(),))
    return found


def _lightning_arguments(text: str) -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = yaml.safe_load(text)["trainer"]
    found.pop("callbacks", None)
    return found


def _with_arguments(cls: type, arguments: dict[str, Any], build: Callable[[], Any]) -> Any:
    """``build()`` where each object of a class gets further arguments: what a person would edit by hand."""
    plain = cls.__init__

    def init(self: Any, *args: Any, **keywords: Any) -> None:
        plain(self, *args, **{**keywords, **arguments})

    cls.__init__ = init  # type: ignore[misc]
    try:
        return build()
    finally:
        cls.__init__ = plain  # type: ignore[misc]


def _lightning(build: Callable[[], Any], arguments: dict[str, Any], optimized: bool, gate: Gate | None) -> Any:
    import lightning

    parts = _with_arguments(lightning.Trainer, arguments, build)
    (trainer,) = [part for part in parts if isinstance(part, lightning.Trainer)]
    (module,) = [part for part in parts if isinstance(part, lightning.LightningModule)]
    data = next((part for part in parts if isinstance(part, lightning.LightningDataModule)), None)
    callbacks = trainer.callbacks
    if optimized:
        callbacks.append(importlib.import_module("optimized_trainer").Optimized())
    if gate is not None:
        callbacks[:] = [each for each in callbacks if type(each).__name__ != "EarlyStopping"]

        class Counting(lightning.Callback):
            def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, index: int) -> None:
                gate.step(_samples(batch))

        callbacks.append(Counting())

    def fit() -> dict[str, Any]:
        trainer.fit(module, datamodule=data)
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        return {"steps": trainer.global_step, "metrics": metrics}

    return fit


def _transformers(build: Callable[[], Any], arguments: dict[str, Any], optimized: bool, gate: Gate | None) -> Any:
    import transformers

    trainer = _with_arguments(transformers.TrainingArguments, arguments, build)
    if optimized:
        trainer = importlib.import_module("optimized_trainer").optimized(trainer)
    if gate is not None:
        step, seen = trainer.training_step, [0]

        def counted(model: Any, inputs: Any, *rest: Any, **keywords: Any) -> Any:
            seen[0] += _samples(inputs)
            return step(model, inputs, *rest, **keywords)

        class Counting(transformers.TrainerCallback):
            def on_step_end(self, *args: Any, **keywords: Any) -> None:
                samples, seen[0] = seen[0], 0
                gate.step(samples)

        trainer.training_step = counted
        trainer.add_callback(Counting())

    def fit() -> dict[str, Any]:
        trainer.train()
        reported = [entry for entry in trainer.state.log_history if any(name.startswith("eval_") for name in entry)]
        metrics = {name: float(value) for name, value in (reported[-1] if reported else {}).items()}
        return {"steps": trainer.state.global_step, "metrics": metrics}

    return fit


def _samples(batch: Any) -> int:
    values = list(batch.values()) if hasattr(batch, "values") else batch
    first = values[0] if isinstance(values, (list, tuple)) else values
    return len(first)


def main(spec: str, side: str, seed: str) -> None:
    """A whole training; prints how long it took and what it came to."""
    out, sys.stdout = sys.stdout, sys.stderr
    fit = built(spec, side == "optimized", int(seed), {}, None)
    began = time.perf_counter()
    found = fit()
    print(json.dumps({"seconds": time.perf_counter() - began, **found}), file=out)


if __name__ == "__main__":
    main(*sys.argv[1:])
