"""The probe of a plan: what its training does step by step, its gradients at kept weights, its optimizer's update.

One process, some seconds, nothing timed. What two plans' probes must have in common is decided by
``autoopt.search.accept``; here it is written down. :class:`BatchRecorder` probes a training that takes whatever
batches it is given, ``autoopt.script.probe`` one that trains by its own loop.
"""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from autoopt.benchmark.batch_iterator import epoch_order
from autoopt.benchmark.contents import samples_of, tensors
from autoopt.benchmark.distributed.shares import part_of, whole_of
from autoopt.benchmark.fingerprint import (
    Array,
    Buffers,
    Coordinates,
    KeptWeights,
    dropouts,
    sample_keys,
    step_digests,
    without_draws,
)
from autoopt.benchmark.live import LiveTraining
from autoopt.benchmark.seeding import disturb, mix, seed_everything
from autoopt.errors import TrialFailed, WorkloadError
from autoopt.records import JsonDict
from autoopt.records.messages import EpochRead, Probe, samples_read

LEAST_STEPS, BATCHES, DRAWN = 12, 16, 8
"""Steps of training that are taken however long they last, batches at each set of weights, and how many of these have
their draws compared: their scatter is known to a fifth then. Of fewer batches those of one are."""
BEFORE_END, WINDOW = 4, 12
"""Steps that are trained before the end of an epoch, and in all: a momentum has grown by then, and rounding has not."""
LAST = 8
"""Steps before the end of a training whose weights are written down."""
ZERO_STEPS, UPDATE_STEPS, LARGE_STEPS = 2, 12, 2
"""Updates from a zero gradient, which show the decay of weights, from drawn ones, and from large ones, which show
whether gradients are clipped."""

MOST_READ = 4096
"""Batches that are read for their contents alone, at most; of a script trained on for them."""


@dataclass(frozen=True)
class Asked:
    """What a probe is asked for.

    Attributes:
        out: the file of its arrays, ``.npz``.
        steps: trained and written down one by one, at most.
        seconds: for them, and as much again for training on, for reading on and for each set of weights; at least
            ``LEAST_STEPS`` steps and two batches are taken however long that is.
        weights: files of weights, as the training of the baseline kept them, to compare gradients at; without any,
            those of this probe's own steps, or of a script's present step, which are kept for the next plans' probes.
        batches: a file of batches for the gradients, written where there is none; empty: the training's first.
        reading: seconds for reading on, where they are fewer; but on until so many ``samples`` were read in all.
        gradients: batches at each set of weights, in so far as there is time; as many as usual where 0.
        until: steps of the shortest training that quality asks for; trained to its end where that fits.
        evaluates: the metric is taken at each set of weights as well, and at those of the recorded steps; a script's
            evaluations on the way are compared in any case.
        elsewhere: everything is done from other weights, far away from those that it is compared with: what it reads
            all the same does not depend on weights.
        draws: a seed of what models draw (dropout) as it trains; other ones show how far draws take trainings apart.
    """

    out: str
    steps: int
    seconds: float
    weights: list[str] = field(default_factory=list)
    batches: str = ""
    reading: float | None = None
    samples: int = 0
    gradients: int = 0
    until: int = 0
    evaluates: bool = True
    elsewhere: bool = False
    draws: int = 0


def probe(training: LiveTraining, asked: Asked) -> Probe:
    """Probes the plan of a training that stands at its start; a script's at the end of its first step."""
    began = perf_counter()
    if training.setup.distributed.fully_sharded is not None:
        raise TrialFailed("error", "gradients of parameters that are shared out are not compared with whole ones")
    recorder: Recorder = training.do(lambda: training.recorder(asked.gradients))
    recorder.run(asked)
    if training.group.first:  # what the others have is the same, but for their batches, which it has seen
        np.savez(asked.out, **recorder.arrays())
    found = recorder.found()
    return Probe(file=Path(asked.out).name, seconds=perf_counter() - began, **found)


class Recorder:
    """The record of one process that probes its plan: what is written down of any training."""

    def __init__(self, training: Any) -> None:
        self.training = training
        self.coordinates, self.buffers = Coordinates(training.model), Buffers(training.model)
        self.windows: dict[str, list[Array]] = {}
        self.buffered: dict[str, list[Array]] = {"start": []}
        self.weights: list[Array] = []
        self.rates: list[float] = []
        self.losses: list[float | None] = []
        self.skipped: list[int] = []
        self.digests: list[str] = []
        self.orders: list[str] = []
        self.epochs: list[EpochRead] = []
        self.gradients: dict[str, Array] = {}
        self.updated: Array | None = None
        self.kept: tuple[str, ...] = ()
        self.metrics: list[float | None] = []
        self.keys: list[set[int]] = []  # of the samples of each epoch so far
        self.unhashed = ""
        self.points = self.until = self.draws = 0

    def run(self, asked: Asked) -> None:
        raise NotImplementedError

    def record(self, window: str = "start") -> None:
        """Writes down the weights and buffers as they are."""
        (self.weights if window == "start" else self.windows.setdefault(window, [])).append(self.coordinates.weights())
        self.buffered.setdefault(window, []).append(self.buffers.values())

    def record_rate(self) -> None:
        self.rates.append(float(self.training.optimizer.param_groups[0].get("lr", 0.0)))

    def own_weights(self, asked: Asked) -> KeptWeights | None:
        """Keeps this probe's own weights, where it is asked for gradients at no others."""
        if asked.weights or self.training.group.size > 1:
            return None
        return KeptWeights(self.training, str(Path(asked.out).with_suffix("")))

    def note_samples(self, batches: list[Any], epoch: int) -> None:
        """Adds the samples of batches to what an epoch has read."""
        while len(self.epochs) <= epoch:
            self.keys.append(set())
            self.epochs.append(EpochRead(samples=0, distinct=0, seen_before=0))
        found, known = [key for batch in batches for key in sample_keys(batch)], self.epochs[epoch]
        earlier = sum(any(key in seen for seen in self.keys[:epoch]) for key in found)
        self.keys[epoch].update(found)
        self.epochs[epoch] = EpochRead(
            samples=known.samples + len(found),
            distinct=len(self.keys[epoch]),
            seen_before=known.seen_before + earlier,
        )

    def updates(self) -> None:
        """The weights' changes by the optimizers alone, from gradients that are the same in every process."""
        training = self.training
        training.model.zero_grad(set_to_none=True)
        if training.setup.step or training.setup.distributed.sharded_optimizer:
            return
        if not all(hasattr(optimizer, "state") for optimizer in training.optimizers):
            return
        for optimizer in training.optimizers:
            optimizer.state.clear()
        before, found = self.coordinates.weights(), []
        scale = training.scaler.get_scale() if training.scaler is not None else 1.0
        # longer than any training clips at
        large = 1e3 / max(sum(self.coordinates.sizes), 1) ** 0.5
        for number in range(ZERO_STEPS + UPDATE_STEPS + LARGE_STEPS):
            seed = None if number < ZERO_STEPS else number
            # as large as gradients of most trainings are before they are clipped
            size = 1e-2 if number < ZERO_STEPS + UPDATE_STEPS else large
            self.coordinates.set_synthetic_gradients(seed, size * scale)
            if training.scaler is not None:
                training.scaler.scale(torch.ones((), device=training.device.torch))
            training.update()
            after = self.coordinates.weights()
            found.append(after - before)
            before = after
        self.updated = np.stack(found)

    def arrays(self) -> dict[str, Any]:
        """The arrays of the file: float32, coordinates in the last dimension."""
        arrays: dict[str, Any] = {
            "names": np.array(self.coordinates.names),
            "sizes": np.array(self.coordinates.sizes),
            "counts": np.array(self.coordinates.counts),
            "weights": np.stack(self.weights),
            "buffer_names": np.array(self.buffers.names, dtype=str),
            **{f"window_{name}": np.stack(found) for name, found in self.windows.items()},
            **{f"buffers_{name}": np.stack(found) for name, found in self.buffered.items()},
            **self.gradients,
        }
        return arrays if self.updated is None else {**arrays, "updates": self.updated}

    def found(self) -> JsonDict:
        """Fields of the :class:`~autoopt.records.messages.Probe`."""
        return {
            "steps": len(self.weights) - 1,
            "digests": tuple(self.digests),
            "orders": tuple(self.orders),
            "losses": tuple(self.losses),
            "learning_rates": tuple(self.rates),
            "skipped_by_scaler": tuple(self.skipped),
            "epochs": tuple(self.epochs),
            "dropouts": dropouts(self.training.model),
            "kept": self.kept,
            "points": self.points,
            "metrics": tuple(self.metrics),
            "until": self.until,
        }


class BatchRecorder(Recorder):
    """The record of a training that takes whatever batches it is given: they are held, and come again.

    Three windows of its training are written down: the start; the steps across the end of an epoch, from the weights of
    the start; and the last ones of a whole short training. The last two only where there is time.
    """

    def __init__(self, training: Any, gradients: int = 0) -> None:
        super().__init__(training)
        self._batches, self._held_bytes = gradients or BATCHES, 0
        self._start = {name: value.detach().clone() for name, value in training.model.state_dict().items()}
        self._start_rates = [group["lr"] for group in training.optimizer.param_groups]
        self._own_metric: float | None = None
        self._trained = self._count = 0
        self._held: list[list[Any]] = []
        self._rolled: list[str] = []
        self._roll = ""
        self._evaluated: int | None = None
        self._too_long = False
        self.record()

    def run(self, asked: Asked) -> None:
        training, seconds, self.until = self.training, asked.seconds, asked.until
        if asked.elsewhere:
            disturb(training.model, 1.0, 0, 0)  # each weight by about as much as it is
        self.draws = asked.draws
        if asked.draws:
            seed_everything(mix("draws", asked.draws))
        own = self.own_weights(asked)
        self._train(asked.steps, seconds, own)
        self.kept = own.files() if own is not None else ()
        if asked.evaluates:
            self._own_metric = self._metric(seconds)
        # to the end of a short training, where that fits; its last steps are written down
        left, began = asked.until - self._trained, perf_counter()
        fits = left > 0 and not training.group.agree(left * self._step_seconds > seconds)
        while fits and self._trained < asked.until and not self._over(began, 2 * seconds):
            group, _ = self._next()
            if self._trained == asked.until - LAST:
                self.record("end")
            self.record_rate()
            training.advance(group)
            self._trained += 1
            if "end" in self.windows:
                self.record("end")
        self._read_on(seconds, seconds if asked.reading is None else asked.reading, asked.samples)
        held = _batches(asked.batches, self._held, training) if asked.batches else self._held
        with training.device.watched():
            for number, path in enumerate(asked.weights or self.kept):
                weights = kept_state(training, path)
                if weights is None:
                    break
                training.model.load_state_dict(weights)
                with contextlib.suppress(RuntimeError):  # a model that has no gradient where it draws nothing
                    self._at_weights(number, held, seconds, evaluates=asked.evaluates)
            self.updates()

    def found(self) -> JsonDict:
        training, found = self.training, super().found()
        return {
            **found,
            "own_steps": found["steps"] if self.kept else 0,
            "rolled": tuple(self._rolled),
            "evaluated_samples": self._evaluated,
            "unseen": self.unhashed or ("" if all(self.digests) else "batches"),
            "trained": self._trained,
            "own_metric": self._own_metric,
            "rates_ahead": training.schedule.ahead(training.lengths.total, places=64, seconds=1.0),
            "order": epoch_order(training.loader, most=2_000_000) if training.group.size == 1 else None,
        }

    def _over(self, began: float, seconds: float) -> bool:
        """Whether so many seconds have passed; of several processes, for the first."""
        return bool(self.training.group.agree(perf_counter() - began > seconds))

    def _train(self, steps: int, seconds: float, kept: KeptWeights | None) -> None:
        """Trains step by step: the batch's digest, the loss, the learning rate, the weights after it."""
        training, began = self.training, perf_counter()
        while len(self.losses) < steps:
            if len(self.losses) >= LEAST_STEPS and self._over(began, seconds):
                break
            group, (whole, order) = self._next()
            self.digests.append(whole)
            self.orders.append(order)
            self.record_rate()
            scale = training.scaler.get_scale() if training.scaler is not None else None
            losses = training.group.gather(float(training.advance(group).detach()))
            loss = sum(losses) / len(losses)
            if scale is not None and training.scaler is not None and training.scaler.get_scale() < scale:
                self.skipped.append(len(self.losses))
            self.losses.append(loss if np.isfinite(loss) else None)
            self.record()
            # these may turn out to lie in the middle of a probe's own steps
            if kept is not None and len(self.losses) in (8, 32):
                kept.evaluated(len(self.losses))
        self._trained, self._step_seconds = len(self.losses), (perf_counter() - began) / max(len(self.losses), 1)

    def _next(self, *, hold: bool = True) -> tuple[list[Any], tuple[str, str]]:
        """The micro-batches of the next step, and the digests of those of all processes; written down, and held."""
        group, shared, read = self.training.next(), self.training.shared, self.training.batch_iterator
        whole = group
        if shared is not None:
            weights = shared.weights[read.batch - len(group) : read.batch]
            pairs = zip(group, weights, strict=True)
            whole = [whole_of(batch, weight, self.training.group) for batch, (weight, _) in pairs]
        found = self._read(whole)
        room = len(self._held) < DRAWN or self._held_bytes < 2**28
        if hold and room and len(self._held) < self._batches:
            self._held.append(whole)
            self._held_bytes += sum(t.numel() * t.element_size() for batch in whole for _, t in tensors(batch))
        return group, found

    def _set_rates(self, rates: list[Any]) -> None:
        for group, rate in zip(self.training.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _read_on(self, seconds: float, usual: float, samples: int) -> None:
        """Reads the coming batches without training on them, into the third epoch where there is time."""
        training, began, read = self.training, perf_counter(), self.training.batch_iterator
        per_epoch = (training.lengths.per_epoch or 0) * training.lengths.accumulation
        for _ in range(MOST_READ):
            enough = usual if samples_read(self.epochs) >= samples else seconds
            if self._over(began, enough) or (read.epoch >= 3 and ("epoch" in self.windows or not self._trainable)):
                break
            before_end = 0 < per_epoch - read.batch <= BEFORE_END * training.lengths.accumulation
            if not before_end or not self._trainable or "epoch" in self.windows:
                self._next()
                continue
            # trains across the end of the epoch from the weights of the start, at its rates, with an optimizer that is
            # new: both plans come here from the same place, however many steps they trained before
            training.model.load_state_dict(self._start)
            training.optimizer.state.clear()
            rates = [group["lr"] for group in training.optimizer.param_groups]
            self._set_rates(self._start_rates)
            seed_everything(mix("window", self.draws))
            self.record("epoch")
            for _ in range(WINDOW):
                training.whole_step(self._next(hold=False)[0])
                self.record("epoch")
            self._set_rates(rates)

    @property
    def _trainable(self) -> bool:
        """Whether the optimizer may begin anew: no step that is replayed as a whole, no state that is shared out."""
        training = self.training
        known = (training.lengths.per_epoch or 0) > BEFORE_END
        return known and training.group.size == 1 and not training.setup.step and hasattr(training.optimizer, "state")

    def _read(self, group: list[Any]) -> tuple[str, str]:
        whole, order, unhashed = step_digests(group)
        self.unhashed = self.unhashed or unhashed
        self._roll, self._count = f"{mix(self._roll, whole):016x}", self._count + 1
        # the step at which two trainings part is known to so many
        if self._count % 16 == 0:  # counted from the first step: how many of them were trained may differ
            self._rolled.append(self._roll)
        self.note_samples(group, max(self.training.batch_iterator.epoch, 0))
        return whole, order

    def _at_weights(self, number: int, held: list[list[Any]], seconds: float, *, evaluates: bool) -> None:
        """Gradients on the held batches, their change under other draws (dropout), and the metric at these weights."""
        self.points += 1
        self.metrics.append(self._metric(seconds) if evaluates else None)
        model, began = self.training.model, perf_counter()
        found: list[Array] = []
        with without_draws(model):
            for group in held:
                if len(found) >= 2 and self._over(began, seconds):
                    break
                found.append(self._gradient(group, 0))
        self.gradients[f"gradients{number}"] = np.stack(found)
        if number == 0:
            few = len(found) < DRAWN
            drawn = [self._gradient(group, seed) for group in held[: 1 if few else DRAWN] for seed in (1, 2)]
            self.gradients["draws"] = np.stack(drawn)

    def _gradient(self, group: list[Any], seed: int) -> Array:
        training = self.training
        training.model.zero_grad(set_to_none=True)
        seed_everything(mix("gradient", seed))
        counts = [samples_of(batch) or 1 for batch in group]
        for batch, count in zip(group, counts, strict=True):
            part, weight = part_of(batch, training.group)
            training.backward(training.forward(part) * (weight * count / sum(counts)))
        scale = training.scaler.get_scale() if training.scaler is not None else 1.0
        return self.coordinates.gradients(scale)

    def _metric(self, seconds: float) -> float | None:
        """The target's metric, where the evaluation ends in time."""
        training = self.training
        target = training.workload.target
        if training.evaluation is None or target is None or self._too_long:
            return None
        evaluation = training.evaluation

        def evaluate() -> tuple[dict[str, float] | None, int | None]:
            return evaluation.within(training.model, seconds), evaluation.samples

        metrics, samples = training.group.on_first(evaluate)
        if metrics is None:
            self._too_long = True  # at other weights as well
            return None
        self._evaluated = samples
        return metrics[target.metric] if np.isfinite(metrics[target.metric]) else None


def kept_state(training: Any, path: str) -> dict[str, Any] | None:
    """The weights in a file under the model's own names; None where they are not those of a model like this one."""
    kept: dict[str, Any] = training.device.copied(torch.load(path, map_location="cpu", weights_only=True))
    own = training.model.state_dict()
    if Counter(kept.keys()) != Counter(own.keys()):  # layers that were wrapped: the same tensors under other names
        kept = dict(zip(own, kept.values(), strict=False)) if len(kept) == len(own) else {}
    if kept.keys() != own.keys() or any(kept[name].shape != own[name].shape for name in own):
        return None
    return kept


def _batches(path: str, held: list[list[Any]], training: LiveTraining) -> list[list[Any]]:
    """The batches of the file, which is written where there is none: samples are random, so they are handed on.

    Raises:
        WorkloadError: they hold types of the user's own, and no file is ever unpickled.
    """
    if training.group.first and not Path(path).exists():
        torch.save(held, path)
    training.group.wait()
    try:
        found: list[list[Any]] = torch.load(path, map_location=training.device.torch, weights_only=True)
    except pickle.UnpicklingError:
        raise WorkloadError(
            "its batches are of types of its own, which are not handed from one process to another"
        ) from None
    return found
