"""The probe of a plan: what its training does step by step, its gradients at kept weights, its optimizer's update.

One process, some seconds, nothing timed. What two plans' probes must have in common is decided by
``autoopt.search.accept``; here it is written down.
"""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from autoopt.benchmark.contents import samples_of
from autoopt.benchmark.distributed.shares import part_of, whole_of
from autoopt.benchmark.evaluation import TimeUpError
from autoopt.benchmark.fingerprint import Array, Coordinates, sample_keys, step_digest, unhashed, without_draws
from autoopt.benchmark.kept_weights import KeptWeights
from autoopt.benchmark.seeding import mix, seed_everything
from autoopt.benchmark.training import Training
from autoopt.benchmark.trial_context import TrialContext
from autoopt.errors import TrialFailed, WorkloadError
from autoopt.records import JsonDict
from autoopt.records.messages import EpochRead, Probe, samples_read

LEAST_STEPS = 12
BATCHES, SLOW_BATCHES = 8, 4
DRAWN = 3
"""Steps of training that are taken however long they last, batches at each set of weights, and those whose draws are
compared. Of slow steps there are fewer batches at each set, and one whose draws are."""
MIDDLES = (8, 32)
"""Steps whose weights may turn out to lie in the middle of a probe's own."""
ZERO_STEPS, UPDATE_STEPS = 2, 12
"""Updates from a zero gradient, which show the decay of weights, and from drawn ones."""

_SYNTHETIC = 1e-2
_ROLLED = 16
_MOST_READ = 4096


def probe(
    live: TrialContext,
    out: str,
    steps: int,
    seconds: float,
    weights: list[str] | None = None,
    batches: str = "",
    reading: float | None = None,
    samples: int = 0,
    slow: bool = False,
    evaluates: bool = True,
) -> JsonDict:
    """Probes the trial's plan: a :class:`~autoopt.records.messages.Probe`, with its arrays in a file.

    Args:
        out: the file, ``.npz``.
        steps: trained and written down one by one, at most.
        seconds: for them, and as much again for reading on without training and for each set of weights; at least
            ``LEAST_STEPS`` steps and two batches are taken however long that is.
        weights: files of weights, as the training of the baseline kept them, to compare gradients at; without any, the
            weights of this probe's own steps are kept beside ``out`` for that, and named (of one process).
        batches: a file of batches for the gradients, written where there is none; empty: the training's first.
        reading: seconds for reading on, where they are fewer; but on until so many ``samples`` were read in all.
        evaluates: the metric is taken at each set of weights as well.
        slow: steps are: gradients of fewer batches are taken, of as many as of the plan that it is compared with.
    """
    training = live.training if live.training.steps == 0 else live.restart(live.seed)
    if training.setup.distributed.fully_sharded is not None:
        raise TrialFailed("error", "gradients of parameters that are shared out are not compared with whole ones")
    recorder = _Recorder(training, slow)
    own = None if weights or training.group.size > 1 else KeptWeights(training, str(Path(out).with_suffix("")))
    recorder.train(steps, seconds, own)
    kept = own.files() if own is not None else ()
    recorder.read_on(seconds, seconds if reading is None else reading, samples)
    held = _batches(batches, recorder.held, training) if batches else recorder.held
    with training.device.watched():
        for number, path in enumerate(weights or kept):
            if not _load(training, path):
                break
            with contextlib.suppress(RuntimeError):  # a model that has no gradient where it draws nothing
                recorder.at_weights(number, held, seconds, evaluates=evaluates)
        recorder.updates()
    if training.group.first:  # what the others have is the same, but for their batches, which it has seen
        np.savez(out, **recorder.arrays())
    found = recorder.document(out)
    if kept:
        found = found.model_copy(update={"kept": kept, "own_steps": found.steps})
    return found.model_dump(mode="json")


class _Recorder:
    """The record of one process that probes its plan."""

    def __init__(self, training: Training, slow: bool) -> None:
        self.training, self._slow = training, slow
        self.coordinates = Coordinates(training.model)
        self.held: list[list[Any]] = []
        self.digests: list[str] = []
        self.orders: list[str] = []
        self.rolled: list[str] = []
        self._roll, self._count, self._unhashed = "", 0, ""
        self.losses: list[float | None] = []
        self.weights = [self.coordinates.weights()]
        self.rates: list[float] = []
        self.skipped: list[int] = []
        self.epochs: list[EpochRead] = []
        self.keys: list[set[int]] = []
        self.gradients: dict[str, Array] = {}
        self.metrics: list[float | None] = []
        self.evaluated: int | None = None
        self._too_long = False
        self.updated: Array | None = None
        self.seconds = perf_counter()

    def _over(self, began: float, seconds: float) -> bool:
        """Whether so many seconds have passed; of several processes, for the first."""
        return self.training.group.agree(perf_counter() - began > seconds)

    def train(self, steps: int, seconds: float, kept: KeptWeights | None) -> None:
        """Trains step by step: the batch's digest, the loss, the learning rate, the weights after it."""
        training, began = self.training, perf_counter()
        while len(self.losses) < steps:
            if len(self.losses) >= LEAST_STEPS and self._over(began, seconds):
                break
            group = training.next()
            whole = self._whole(group)
            self._read(whole)
            self.digests.append(step_digest(whole))
            self.orders.append(step_digest(whole, whole_numbers=True))
            if len(self.held) < (SLOW_BATCHES if self._slow else BATCHES):
                self.held.append(whole)
            self.rates.append(float(training.optimizer.param_groups[0]["lr"]))
            scale = training.scaler.get_scale() if training.scaler is not None else None
            loss = _mean(training.group.gather(float(training.advance(group).detach())))
            if scale is not None and training.scaler is not None and training.scaler.get_scale() < scale:
                self.skipped.append(len(self.losses))
            self.losses.append(loss if np.isfinite(loss) else None)
            self.weights.append(self.coordinates.weights())
            if kept is not None and len(self.losses) in MIDDLES:
                kept.evaluated(len(self.losses))

    def read_on(self, seconds: float, usual: float, samples: int) -> None:
        """Reads the coming batches without training on them, into the third epoch where there is time."""
        began = perf_counter()
        for _ in range(_MOST_READ):
            enough = usual if samples_read(self.epochs) >= samples else seconds
            if self._over(began, enough) or self.training.batch_iterator.epoch >= 3:
                break
            self._read(self._whole(self.training.next()))

    def _whole(self, group: list[Any]) -> list[Any]:
        """The micro-batches of all processes together."""
        shared, read = self.training.shared, self.training.batch_iterator
        if shared is None:
            return group
        weights = shared.weights[read.batch - len(group) : read.batch]
        return [whole_of(batch, weight, self.training.group) for batch, (weight, _) in zip(group, weights, strict=True)]

    def _read(self, group: list[Any]) -> None:
        self._unhashed = self._unhashed or next((found for batch in group if (found := unhashed(batch))), "")
        self._roll, self._count = f"{mix(self._roll, step_digest(group)):016x}", self._count + 1
        if self._count % _ROLLED == 0:  # counted from the first step: how many of them were trained may differ
            self.rolled.append(self._roll)
        epoch = max(self.training.batch_iterator.epoch, 0)
        while len(self.keys) <= epoch:
            self.keys.append(set())
            self.epochs.append(EpochRead(samples=0, distinct=0, seen_before=0))
        keys = [key for batch in group for key in sample_keys(batch)]
        earlier = sum(any(key in seen for seen in self.keys[:epoch]) for key in keys)
        self.keys[epoch].update(keys)
        known = self.epochs[epoch]
        self.epochs[epoch] = EpochRead(
            samples=known.samples + len(keys), distinct=len(self.keys[epoch]), seen_before=known.seen_before + earlier
        )

    def at_weights(self, number: int, held: list[list[Any]], seconds: float, *, evaluates: bool) -> None:
        """Gradients on the held batches, their change under other draws (dropout), and the metric at these weights."""
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
            drawn = [self._gradient(group, seed) for group in held[: 1 if self._slow else DRAWN] for seed in (1, 2)]
            self.gradients["draws"] = np.stack(drawn)

    def _gradient(self, group: list[Any], seed: int) -> Array:
        training = self.training
        training.model.zero_grad(set_to_none=True)
        seed_everything(mix("gradient", seed))
        counts = [samples_of(batch) or 1 for batch in group]
        for batch, count in zip(group, counts, strict=True):
            part, weight = part_of(batch, training.group)
            loss = training.plain_step.forward(training.plain_step.model, part)
            training.plain_step.backward(loss * (weight * count / sum(counts)))
        scale = training.scaler.get_scale() if training.scaler is not None else 1.0
        return self.coordinates.gradients(scale)

    def _metric(self, seconds: float) -> float | None:
        """The target's metric, where the evaluation ends in time."""
        training = self.training
        target = training.workload.target
        if training.evaluation is None or target is None or self._too_long:
            return None
        metric, self.evaluated = training.group.on_first(lambda: self._evaluated(seconds, target.metric))
        return metric

    def _evaluated(self, seconds: float, name: str) -> tuple[float | None, int | None]:
        evaluation = self.training.evaluation
        assert evaluation is not None
        evaluation.batches.until = perf_counter() + seconds
        try:
            metric = evaluation(self.training.model)[name]
        except TimeUpError:
            self._too_long = True  # at other weights as well
            return None, self.evaluated
        finally:
            evaluation.batches.until = None
        return metric if np.isfinite(metric) else None, evaluation.samples

    def updates(self) -> None:
        """The weights' changes by the optimizer alone, from gradients that are the same in every process."""
        training, step = self.training, self.training.plain_step
        training.model.zero_grad(set_to_none=True)
        state = getattr(training.optimizer, "state", None)
        if state is None or training.setup.step or training.setup.distributed.sharded_optimizer:
            return
        state.clear()
        before, found = self.coordinates.weights(), []
        scale = training.scaler.get_scale() if training.scaler is not None else 1.0
        for number in range(ZERO_STEPS + UPDATE_STEPS):
            seed = None if number < ZERO_STEPS else number
            self.coordinates.set_synthetic_gradients(seed, _SYNTHETIC * scale)
            if training.scaler is not None:
                training.scaler.scale(torch.ones((), device=training.device.torch))
            step.update()
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
            **self.gradients,
        }
        return arrays if self.updated is None else {**arrays, "updates": self.updated}

    def document(self, out: str) -> Probe:
        return Probe(
            file=Path(out).name,
            steps=len(self.losses),
            digests=tuple(self.digests),
            orders=tuple(self.orders),
            rolled=tuple(self.rolled),
            losses=tuple(self.losses),
            learning_rates=tuple(self.rates),
            skipped_by_scaler=tuple(self.skipped),
            epochs=tuple(self.epochs),
            points=len(self.metrics),
            metrics=tuple(self.metrics),
            evaluated_samples=self.evaluated,
            unseen=self._unhashed or ("" if all(self.digests) else "batches"),
            seconds=perf_counter() - self.seconds,
        )


def _mean(losses: list[float]) -> float:
    return sum(losses) / len(losses)


def _load(training: Training, path: str) -> bool:
    """Puts kept weights into the model; False where they are not those of a model like this one."""
    kept = kept_state(training, path)
    if kept is not None:
        training.model.load_state_dict(kept)
    return kept is not None


def kept_state(training: Any, path: str) -> dict[str, Any] | None:
    """The weights in a file under the model's own names; None where they are not those of a model like this one."""
    kept: dict[str, Any] = torch.load(path, map_location=training.device.torch, weights_only=True)
    own = training.model.state_dict()
    if Counter(kept.keys()) != Counter(own.keys()):  # layers that were wrapped: the same tensors under other names
        kept = dict(zip(own, kept.values(), strict=False)) if len(kept) == len(own) else {}
    if kept.keys() != own.keys() or any(kept[name].shape != own[name].shape for name in own):
        return None
    return kept


def _batches(path: str, held: list[list[Any]], training: Training) -> list[list[Any]]:
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
