"""The probe of a plan on a script: gradients of its own loss at kept weights, then its training step by step.

The script trains by its own loop, so its gradients are those of its own steps: the weights are put in before each one
and put back after. Batches are what its loaders gave and what its models were called with. The figures are those of
``autoopt.benchmark.probe``, and are compared in the same way.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from autoopt.benchmark.distributed.merging import mean_losses
from autoopt.benchmark.fingerprint import Array, Buffers, Coordinates, dropouts, without_draws
from autoopt.benchmark.probe import LARGE_NORM, LARGE_STEPS, LEAST_STEPS, UPDATE_STEPS, ZERO_STEPS, kept_state
from autoopt.benchmark.seeding import mix, seed_everything
from autoopt.records import JsonDict
from autoopt.records.messages import Probe
from autoopt.script.held import HeldWeights
from autoopt.script.step_data import StepData
from autoopt.script.watcher import Watcher

ROUNDS = 8
"""Batches at each set of weights, where nobody says how many. Never fewer than asked, however long they take: both
plans must come to the same batches."""

_SYNTHETIC = 1e-2
_MOST_READ = 1024


def probe(
    live: Any,
    out: str,
    steps: int,
    seconds: float,
    weights: list[str] | None = None,
    reading: float | None = None,
    samples: int = 0,
    gradients: int = ROUNDS,
    until: int = 0,
    evaluates: bool = True,
) -> JsonDict:
    """Probes the trial's plan: a :class:`~autoopt.records.messages.Probe`, with its arrays in a file.

    Args:
        live: the trial, which stands at the end of its first step.
        out, steps, seconds, weights, reading, samples, gradients: see ``autoopt.benchmark.probe.probe``; without files
            of weights, gradients are compared at those of the present step. Reading on is training here.
        until, evaluates: of no meaning here: a script trains on as it reads on, and its evaluations on the way are
            looked at, whichever there are.
    """
    began, session = perf_counter(), live.script.session
    recorder: _Recorder = session.in_main(lambda: _Recorder(live, gradients))
    recorder.gradients_at(weights or [])
    recorder.train(steps, seconds)
    recorder.read_on(seconds, seconds if reading is None else reading, samples)
    session.in_main(recorder.finish)
    if live.training.group.first:  # gradients and weights are those of all
        np.savez(out, **recorder.arrays())
    found = recorder.document(out).model_copy(update={"seconds": perf_counter() - began})
    return found.model_dump(mode="json")


class _Recorder(Watcher):
    """The record of one process that probes its plan, from joint to joint."""

    def __init__(self, live: Any, gradients: int) -> None:
        self._rounds = gradients
        self.live, self.training, self.session = live, live.training, live.script.session
        self.coordinates, self.buffers = Coordinates(self.training.model), Buffers(self.training.model)
        self.buffered: list[Array] = []
        self.data = StepData(live)
        self.losses: tuple[float | None, ...] = ()
        self.weights: list[Array] = []
        self.rates: list[float] = []
        self.skipped: list[int] = []
        self.found: list[list[Array]] = []
        self.taken = 0
        self.draws: list[Array] = []
        self.updated: list[Array] = []
        self.metrics: tuple[float | None, ...] = ()
        self.evaluation = ""
        self._kept: Any = None
        self._gradient: Array | None = None
        self._plain: contextlib.ExitStack | None = None
        live.script.joints.watchers += [self.data, self]
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    # what the joints tell

    def forward(self, model: nn.Module, args: Any, kwargs: Any, training: bool) -> None:
        if training and self._plain is not None:
            self._plain.enter_context(_without_draws_within(model))

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Takes the step's gradient; one that a closure computes within the step (Lightning's do), when it first has.

        Returns:
            The step's arguments with such a closure watched.
        """
        if self.session.standing:
            return None
        closure = kwargs.get("closure") or next((value for value in args[1:2] if callable(value)), None)
        if closure is None:
            self._gradient = self.coordinates.gradients()
            return None
        watched = self._watched(closure)
        return ((*args[:1], *args[2:]), {**kwargs, "closure": watched})

    def _watched(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        first = True

        def watched() -> Any:
            nonlocal first
            loss = closure()
            if first:  # later calls of one step are at other weights
                self._gradient, first = self.coordinates.gradients(), False
            return loss

        return watched

    # how far the script trains

    def gradients_at(self, paths: list[str]) -> None:
        """Gradients of the script's own steps, its weights put back after each; the points take turns."""
        states: list[Any] = []

        def prepare() -> None:
            model = self.training.model
            present = copy.deepcopy(model.state_dict())
            optimizers = [copy.deepcopy(optimizer.state_dict()) for optimizer in self.training.optimizers]
            self._present = (present, optimizers)
            states.extend([kept_state(self.training, path) for path in paths] or [present])
            self._origin = states[0] or present
            self._kept = states[-1] if paths else None
            self._rates = [_hyperparameters(optimizer) for optimizer in self.training.optimizers]
            with contextlib.suppress(RuntimeError, TypeError):  # a model that cannot be called twice in a step
                self.draws = [self._drawn(seed) for seed in (1, 2)]
            model.zero_grad(set_to_none=True)
            seed_everything(mix("gradient", 0))  # from here on both plans draw the same again
            self._put(states[0])
            self._plain = contextlib.ExitStack()

        def each(done: int, elapsed: float) -> None:
            assert self._plain is not None
            self._plain.close()
            self.data.step_ended()
            if self._gradient is not None:
                found[(done - 1) % len(states)].append(self._gradient)
            self._gradient = None
            self._put(states[done % len(states)])

        self.session.in_main(prepare)
        found: list[list[Array]] = [[] for _ in states]
        wanted = self._rounds * len(states)
        self.training.follow(lambda done, _: done >= wanted, each, most=wanted)
        self.session.in_main(self._as_before)
        self.taken = len(self.data.digests)
        whole = all(state is not None for state in states) and all(_tells(each, self._rounds) for each in found)
        self.found = found if whole and not self.live.script.joints.scaled else []

    def _as_before(self) -> None:
        weights, optimizers = self._present
        self._plain = None
        self.training.model.load_state_dict(weights)
        for optimizer, state in zip(self.training.optimizers, optimizers, strict=True):
            optimizer.load_state_dict(state)
        del self._present
        self.weights.append(self.coordinates.weights())
        self.buffered.append(self.buffers.values())

    def _put(self, state: Any) -> None:
        if state is not None:
            self.training.model.load_state_dict(state)

    def train(self, steps: int, seconds: float) -> None:
        """Trains step by step: the batch's digest, the loss, the learning rate, the weights after it."""
        self._gradient = None

        def each(done: int, elapsed: float) -> None:
            self.data.step_ended()
            if self._gradient is None:
                self.skipped.append(done - 1)
            self._gradient = None
            self.rates.append(float(self.training.optimizer.param_groups[0]["lr"]))
            self.weights.append(self.coordinates.weights())
            self.buffered.append(self.buffers.values())

        def enough(done: int, elapsed: float) -> bool:
            return done >= steps or (done >= LEAST_STEPS and perf_counter() - began > seconds)

        if self.session.over:
            return
        began = perf_counter()
        goal = self.training.follow(enough, each, most=steps)
        ranks = self.training.group.gather(goal.captured.losses()[: len(self.rates)])
        fewest = min(map(len, ranks))
        self.losses = mean_losses([losses[:fewest] for losses in ranks])

    def read_on(self, seconds: float, usual: float, samples: int) -> None:
        """Trains on for the sake of its batches alone, into the third epoch where there is time.

        The last of the kept weights are held meanwhile, so that an evaluation on the way is one of them.
        """
        self._hook.remove()
        if not self.session.over:
            self._read_on(seconds, usual, samples)
        self.data.put_together(self.training.group)

    def _read_on(self, seconds: float, usual: float, samples: int) -> None:
        held = HeldWeights(self.live, self._kept) if self._kept is not None else None
        if held is not None:
            self.session.in_main(held.put)
            self.live.script.joints.watchers.append(held)

        def each(done: int, elapsed: float) -> None:
            self.data.step_ended()
            if held is not None:
                held.put()

        def enough(done: int, elapsed: float) -> bool:
            read = self.data.samples * self.training.group.size
            late = perf_counter() - began > (usual if read >= samples else seconds)
            return late or done >= _MOST_READ or self.data.epoch >= 3 or not self.data.given

        began = perf_counter()
        goal = self.training.follow(enough, each, most=_MOST_READ)
        if held is not None:
            self.live.script.joints.watchers.remove(held)
            self.metrics, self.evaluation = (held.metric_at(goal),), held.hashed.hexdigest()

    def finish(self) -> None:
        """Once the script trains no further: updates from drawn gradients."""
        for watcher in (self.data, self):
            self.live.script.joints.watchers.remove(watcher)
        with contextlib.suppress(Exception):  # an optimizer that wants a closure, or keeps its own state
            self.updated = self._updates()

    def _drawn(self, seed: int) -> Array:
        """The gradient of the recorded calls, of a loss in the place of the script's own."""
        self.training.model.zero_grad(set_to_none=True)
        seed_everything(mix("gradient", seed))
        for batch in self.training.batches:
            self.training.backward(self.training.forward(batch))
        return self.coordinates.gradients()

    def _updates(self) -> list[Array]:
        """The weights' changes by the optimizers alone, from gradients that are the same in every process.

        They begin where both plans began: decay follows the weights, and a schedule the steps, of which each plan has
        trained as many as there was time for.
        """
        self._put(self._origin)
        for optimizer, kept in zip(self.training.optimizers, self._rates, strict=True):
            optimizer.state.clear()
            for group, values in zip(optimizer.param_groups, kept, strict=True):
                group.update(copy.deepcopy(values))
        before, found = self.coordinates.weights(), []
        large = LARGE_NORM / max(sum(self.coordinates.sizes), 1) ** 0.5
        for number in range(ZERO_STEPS + UPDATE_STEPS + LARGE_STEPS):
            size = _SYNTHETIC if number < ZERO_STEPS + UPDATE_STEPS else large
            self.coordinates.set_synthetic_gradients(None if number < ZERO_STEPS else number, size)
            for optimizer in self.training.optimizers:
                optimizer.step()
            after = self.coordinates.weights()
            found.append(after - before)
            before = after
        return found

    # what is handed on

    def arrays(self) -> dict[str, Any]:
        """The arrays of the file: float32, coordinates in the last dimension."""
        optional = {"draws": self.draws, "updates": self.updated}
        return {
            "names": np.array(self.coordinates.names),
            "sizes": np.array(self.coordinates.sizes),
            "counts": np.array(self.coordinates.counts),
            "weights": np.stack(self.weights),
            "buffer_names": np.array(self.buffers.names, dtype=str),
            "buffers_start": np.stack(self.buffered),
            **{f"gradients{number}": np.stack(found) for number, found in enumerate(self.found)},
            **{name: np.stack(found) for name, found in optional.items() if found},
        }

    def document(self, out: str) -> Probe:
        return Probe(
            file=Path(out).name,
            steps=len(self.rates),
            digests=tuple(self.data.digests),
            orders=tuple(self.data.orders),
            gradient_digests=tuple(self.data.digests[: self.taken]),
            losses=self.losses,
            learning_rates=tuple(self.rates),
            skipped_by_scaler=tuple(self.skipped),
            epochs=tuple(self.data.epochs),
            points=len(self.found),
            metrics=self.metrics,
            evaluation_digest=self.evaluation,
            unseen=self.data.unseen,
            dropouts=dropouts(self.training.model),
        )


def _hyperparameters(optimizer: Optimizer) -> list[JsonDict]:
    """Of each parameter group, all but its parameters."""
    groups = optimizer.param_groups
    return [{name: copy.deepcopy(value) for name, value in group.items() if name != "params"} for group in groups]


def _tells(gradients: list[Array], rounds: int) -> bool:
    """Whether all batches have gradients, and not all the same: their spread is what errors are compared with."""
    if len(gradients) < rounds or any(np.isnan(gradient).all() for gradient in gradients):
        return False
    return bool(np.nan_to_num(np.ptp(np.stack(gradients), axis=0)).any())


@contextlib.contextmanager
def _without_draws_within(model: nn.Module) -> Any:
    """Without draws in all but the root itself: it is by its mode that its calls are known to be training."""
    training = model.training
    with without_draws(model):
        model.training = training
        yield
