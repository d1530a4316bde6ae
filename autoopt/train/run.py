"""``autoopt train``: a workload with a plan, from the first step to the target or to its planned end."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch.utils._pytree import tree_map

from autoopt.benchmark.device import open_device
from autoopt.benchmark.distributed.group import device_of, total
from autoopt.benchmark.environment import Monitor
from autoopt.benchmark.seeding import seed_everything
from autoopt.benchmark.training import Training
from autoopt.errors import DocumentError, TrialFailed
from autoopt.loading import importing, validation
from autoopt.options import Options
from autoopt.records import Curve, CurvePoint, JsonDict, Plan, Record
from autoopt.records.writing import replacing, sync_folder, writing
from autoopt.registry import Registry, load_strategies
from autoopt.storage.interrupts import Interrupts
from autoopt.workload import Target

CHECKPOINT = "checkpoint.pt"
_ARRAY = "numpy array"
_STOPPING = b"\nsaving a checkpoint after this step; again: stops at once, the last checkpoint stays\n"
_LOOKED_AT_EVERY = 20
"""Steps between readings of the loss: each reading waits for the device."""


class Trained(Record):
    """Outcome of a training. ``seconds``: of all its parts, where it was resumed; rates per second."""

    workload: str
    plan: Plan
    seed: int
    steps: int
    samples: int | None
    seconds: float
    samples_per_second: float | None
    loss: float | None
    metrics: dict[str, float]
    metric: str | None
    target: float | None
    reached: bool | None
    stopped: str
    curve: Curve
    energy_joules: float | None = None
    cost: float | None = None
    checkpoint: str
    resumed_from: int | None = None


@dataclass
class _Run:
    """One training under way."""

    spec: str
    plan: Plan
    training: Training
    path: Path
    target: Target | None
    interval: float
    clock: Callable[[], float]
    on_progress: Callable[[Progress], object]
    on_stopping: Callable[[], object]
    points: list[CurvePoint] = field(default_factory=list)
    before: float = 0.0
    resumed_from: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    loss: float | None = None

    def resume(self) -> None:
        """Goes on from the checkpoint.

        Raises:
            DocumentError: it is damaged, or of another workload, plan or seed.
        """
        state = read_checkpoint(self.path)
        wanted = {"workload": self.spec, "plan": self.plan.model_dump_json(), "seed": self.training.seed}
        for name, value in wanted.items():
            if state[name] != value:
                raise DocumentError(
                    f"the checkpoint {self.path} is of another {name}: {state[name]}, this run has {value}",
                    hint="give another --out, or delete it to begin from the first step",
                )
        self.training.load_state_dict(state["training"])
        self.before = state["seconds"]
        self.points = [CurvePoint(**point) for point in state["points"]]
        self.metrics, self.loss = state["metrics"], state["loss"]
        self.resumed_from = self.training.steps

    def save(self, place: JsonDict | None = None) -> None:
        """Writes the checkpoint; ``place``: in the data, where batches have been read that were not trained."""
        state = self.training.state_dict()
        if not self.training.group.first:
            return
        write_checkpoint(
            self.path,
            {
                "workload": self.spec,
                "plan": self.plan.model_dump_json(),
                "seed": self.training.seed,
                "training": {**state, "batches": place} if place is not None else state,
                "seconds": self.seconds,
                "points": [point.model_dump() for point in self.points],
                "metrics": self.metrics,
                "loss": self.loss,
            },
        )

    @property
    def seconds(self) -> float:
        return self.before + self.clock() - self.began

    def go(self) -> str:
        """Trains; returns why it ended: ``target``, ``end`` or ``interrupted``."""
        self.began = self.saved = self.clock()
        if self._reached():
            return "target"
        training = self.training
        # The first signal breaks off no step: half a one could not be gone on from. Loader workers that are forked
        # inherit this, and outlive the Ctrl-C that reaches them, too.
        with Interrupts(self.on_stopping, at_once=()) as interrupts:
            stopped = interrupts.stopping
            while training.steps < training.total_steps:
                place = training.batch_iterator.state_dict()
                try:
                    batches = None if self._agreed_to_end(stopped) else training.next()
                except Exception:
                    if not stopped():  # else the same Ctrl-C ended the loader's workers
                        raise
                    batches = None
                if batches is None:
                    self.save(place)
                    return "interrupted"
                if self._step(batches):
                    self.save()
                    return "target"
            self.save()
        return "end"

    def _agreed_to_end(self, stopped: Callable[[], bool]) -> bool:
        """Whether it is to end; of several processes all ask the first, now and then."""
        group = self.training.group
        if group.size == 1:
            return stopped()
        return self.training.steps % _LOOKED_AT_EVERY == 0 and group.agree(stopped())

    def _step(self, batches: list[Any]) -> bool:
        """One step; True where it reached the target."""
        training = self.training
        loss = training.step(batches)
        last, due = training.steps >= training.total_steps, training.steps % _LOOKED_AT_EVERY == 0
        evaluated = training.evaluation is not None and (training.steps % training.evaluate_every == 0 or last)
        if evaluated or due or last:
            self.loss = fmean(training.group.gather(float(loss)))
            if not math.isfinite(self.loss):
                raise TrialFailed("not_finite", f"the loss is {self.loss} in step {training.steps}", where="step")
        if evaluated:
            self.metrics = training.evaluate()
            value = self.metrics.get(self.target.metric) if self.target else None
            known = value if value is not None and math.isfinite(value) else None
            self.points.append(CurvePoint(step=training.steps, seconds=self.seconds, metric=known))
        if (training.group.size == 1 or due) and training.group.agree(self.clock() - self.saved >= self.interval):
            self.save()
            self.saved = self.clock()
        if evaluated or due or last:
            self.on_progress(
                Progress(
                    step=training.steps,
                    total=training.total_steps,
                    seconds=self.seconds,
                    samples=total(training.group.gather(training.samples)),
                    loss=self.loss,
                    metrics=dict(self.metrics) if evaluated else {},
                )
            )
        return evaluated and self._reached()

    def _reached(self) -> bool:
        if not (self.target and self.target.metric in self.metrics):
            return False
        return self.target.reached(self.metrics[self.target.metric])


def train(
    spec: str,
    plan: Plan,
    *,
    device: str = "auto",
    seed: int = 0,
    out: Path | str,
    registry: Registry | None = None,
    checkpoint_every_minutes: float = 10.0,
    target: float | None = None,
    price_per_hour: float | None = None,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    on_stopping: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Trained:
    """Trains a workload with a plan, on from the checkpoint where there is one, to the target or the planned end.

    Environment variables of the plan must be set before torch is imported, as the command does; a warning names
    those that are not.

    Args:
        spec: the import string of the workload.
        out: the directory of its checkpoint.
        checkpoint_every_minutes: between two checkpoints; one is written at the end in any case.
        target: replaces the value of the workload's target.
        price_per_hour: of the device, for the cost.
        on_stopping: called when a signal asks the training to end; it does after the step under way.
        clock: seconds; injected in tests.

    Raises:
        KeyboardInterrupt: a second signal; the latest checkpoint stays as it is.
        WorkloadError: the user's code fails to build.
        DocumentError: the checkpoint is damaged or of another run.
        TrialFailed: the loss is not finite.
    """
    known = load_strategies() if registry is None else registry
    opened = open_device(device_of(device, int(os.environ.get("LOCAL_RANK", "0"))))
    seed_everything(seed)
    workload = validation.build(importing.load(spec))
    training = Training(workload, known.fold(known.order(plan), workload.setup), device=opened, seed=seed)
    path, wanted = Path(out) / CHECKPOINT, workload.target
    if wanted is not None and target is not None:
        more = wanted.direction == "max"
        wanted = Target(wanted.metric, at_least=target) if more else Target(wanted.metric, at_most=target)
    interval = 60.0 * checkpoint_every_minutes
    run = _Run(spec, plan, training, path, wanted, interval, clock, on_progress, on_stopping)
    try:
        if path.exists():
            run.resume()
        first = training.samples
        with Monitor(opened) as monitor:
            stopped = run.go()
        here = None if training.samples is None or first is None else training.samples - first
        count = total(training.group.gather(here))
        return _document(run, stopped, count, monitor.summary(), price_per_hour)
    finally:
        training.close()


def _document(run: _Run, stopped: str, samples: int | None, seen: JsonDict, price: float | None) -> Trained:
    training, target = run.training, run.target
    seconds = run.seconds
    here = seconds - run.before
    value = target.value if target else None
    metric = run.metrics.get(target.metric) if target else None
    reached = target.reached(metric) if target and value is not None and metric is not None else None
    energy = seen.get("energy_joules") if training.group.size == 1 else None  # one process sees its own device
    return Trained(
        workload=run.spec,
        plan=run.plan,
        seed=training.seed,
        steps=training.steps,
        samples=total(training.group.gather(training.samples)),
        seconds=seconds,
        samples_per_second=samples / here if samples and here > 0 else None,
        loss=run.loss,
        metrics={name: number for name, number in run.metrics.items() if math.isfinite(number)},
        metric=target.metric if target else None,
        target=value,
        reached=reached,
        stopped=stopped,
        curve=Curve(seed=training.seed, points=tuple(run.points), reached=reached),
        energy_joules=energy,
        cost=price * training.group.size * seconds / 3600 if price is not None else None,
        checkpoint=str(run.path),
        resumed_from=run.resumed_from,
    )


def train_run(spec: str, plan: Plan, options: Options, *, listeners: Iterable[Any] = ()) -> Trained:
    """``autoopt train``; the same command goes on from the checkpoint that the last one left.

    Args:
        listeners: called with each :class:`Progress`, such as trackers.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", spec.rpartition(":")[0].rpartition("/")[2].removesuffix(".py")) or "run"
    out = options.out or Path("autoopt-runs") / f"train-{name}"

    with shown(spec, quiet=options.quiet or os.environ.get("RANK", "0") != "0") as show:
        every = [show, *listeners]

        def tell(progress: Progress) -> None:
            for listener in every:
                listener(progress)

        return train(
            spec,
            plan,
            device=options.device,
            seed=options.seed,
            out=out,
            registry=load_strategies(options.strategies),
            target=options.target,
            price_per_hour=options.price,
            on_progress=tell,
            on_stopping=lambda: os.write(2, _STOPPING),
        )


class Progress(Record):
    """``seconds`` and ``samples`` since the first step; ``samples`` None where batches cannot be counted; ``metrics``
    where it was evaluated just now."""

    step: int
    total: int
    seconds: float
    samples: int | None
    loss: float | None
    metrics: dict[str, float]


def progress_text(progress: Progress) -> str:
    """One line."""
    parts = [f"step {progress.step}/{progress.total}", f"{progress.seconds:.1f} s"]
    if progress.samples is not None and progress.seconds > 0:
        parts.append(f"{progress.samples / progress.seconds:.0f} samples/s")
    parts += [f"loss {progress.loss:.4f}"] if progress.loss is not None else []
    return "  ".join([*parts, *(f"{name} {value:.4f}" for name, value in progress.metrics.items())])


@contextmanager
def shown(name: str, *, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Shows progress on standard error: a bar on a terminal, else one line for each evaluation."""
    if quiet:
        yield lambda progress: None
        return
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield lambda progress: print(progress_text(progress), file=sys.stderr) if progress.metrics else None  # noqa: T201
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, TimeRemainingColumn(), TextColumn("{task.fields[now]}"), console=console) as bar:
        task = bar.add_task(name, total=None, now="")

        def update(progress: Progress) -> None:
            now = f"loss {progress.loss:.4f}" if progress.loss is not None else ""
            bar.update(task, completed=progress.step, total=progress.total, now=now)
            if progress.metrics:
                bar.console.print(progress_text(progress), highlight=False)

        yield update


# Checkpoints that are never half written, and hold plain data and tensors alone.


def write_checkpoint(path: Path, state: JsonDict) -> None:
    """Writes a checkpoint: a reader finds the old one or the new one, never a part.

    Raises:
        EnvironmentLacks: it cannot be written there.
    """
    with writing(path, "the checkpoint"):
        with replacing(path) as file:
            torch.save(_plain(state), file)
        sync_folder(path.parent)


def read_checkpoint(path: Path) -> JsonDict:
    """Reads a checkpoint; nothing in it is executed (``weights_only``).

    Raises:
        DocumentError: it cannot be read, or is none of ours.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes torch raise
        first = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise DocumentError(
            f"cannot read the checkpoint {path}: {first[0]}", hint="delete it to begin from the first step"
        ) from None
    if not isinstance(state, dict) or "training" not in state:
        raise DocumentError(f"{path} is no checkpoint of autoopt train", hint="give another --out")
    found: JsonDict = _restored(state)
    return found


def _plain(state: Any) -> Any:
    """Arrays of NumPy as tensors, its numbers as numbers: all else would have to be unpickled as code."""

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return {_ARRAY: torch.from_numpy(leaf)}
        return leaf.item() if isinstance(leaf, np.generic) else leaf

    return tree_map(plain, state)


def _restored(state: Any) -> Any:
    def array(value: Any) -> bool:
        return isinstance(value, dict) and _ARRAY in value

    return tree_map(lambda value: value[_ARRAY].numpy() if array(value) else value, state, is_leaf=array)
