"""The probe of a plan on a script: gradients of its own loss at kept weights, then its training step by step.

The script trains by its own loop, so its gradients are those of its own steps: the weights are put in before each one
and put back after. Batches are what its loaders gave and what its models were called with. The figures are those of
``autoopt.benchmark.probe``, and are compared in the same way."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from sys import maxsize
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from autoopt.benchmark.contents import LEAST_WIDTH, PLAIN, leaves
from autoopt.benchmark.distributed.group import mean_losses
from autoopt.benchmark.fingerprint import Array, KeptWeights, SampleDigest, digests, has_fractions, without_draws
from autoopt.benchmark.probe import (
    BEFORE_END,
    DRAWN,
    LAST,
    LEAST_STEPS,
    MOST_READ,
    WINDOW,
    Asked,
    Recorder,
    kept_state,
)
from autoopt.benchmark.seeding import disturb, mix, seed_everything
from autoopt.records import JsonDict
from autoopt.records.messages import EpochRead, samples_read
from autoopt.script.loaders import Watcher
from autoopt.script.tasks import HeldWeights

_WEIGHT = 5e-2
"""Size of weights that are made up for an optimizer: as most layers of some hundred inputs begin."""


class ScriptRecorder(Recorder, Watcher):
    """The record of one process that probes its plan, from hook to hook; made in the thread that trains.

    Batches are the script's own: none are handed to it. Reading on is training here, and its evaluations on the way are
    examined, whichever there are. Two windows of it are written down, each from the weights of the start with an
    optimizer that is new: the steps across the end of an epoch, and the last ones of a whole short training.

    Args:
        training: the ``ScriptTraining``, which stands at the end of its first step.
    """

    def __init__(self, training: Any, gradients: int = 0) -> None:
        super().__init__(training)
        self._rounds = gradients or DRAWN  # however long they take: both plans must come to the same batches
        self.session, self.hooks = training.session, training.script.hooks
        self._given, self._pass_steps = False, 1  # of a loader of the training; the first step of all came before
        self._labels, self._own_loss = True, False
        self._pass = 0  # over the training loaders
        self._digested: list[tuple[str, str]] = []
        if training.script.recording.host_digests is not None:
            self._hold(*training.script.recording.host_digests)
        self._plain: contextlib.ExitStack | None = None
        self._samples, self._sampled = SampleDigest(maxsize, LEAST_WIDTH), list[str]()
        self._called: set[int] = set()
        self._outputs: list[torch.Tensor] = []
        self._outputs_before: list[torch.Tensor] = []
        for number, call in enumerate(call for batch in training.batches for call in batch):
            self._take(call.model, call.args, call.kwargs, unseen=number > 0)
        self._taken = self._left = self._crossed = 0
        self._steps, self._window, self._elsewhere = 1, "", False
        self._held: HeldWeights | None = None
        self._aside: Any = None
        self._evaluation = ""
        self._evaluated: int | None = None
        self._middle: Any = None
        self._gradient: Array | None = None
        self._stepped = set[int]()
        self._waiting: float | None = None
        self._computing: float | None = None
        self.hooks.watchers.append(self)
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    def run(self, asked: Asked) -> None:
        seconds, self.until, self._elsewhere, self.draws = asked.seconds, asked.until, asked.elsewhere, asked.draws
        own: KeptWeights | None = self.training.do(lambda: self.own_weights(asked))
        self.kept = self.training.do(own.files) if own is not None else ()
        self._gradients_at(asked.weights or list(self.kept))
        began = perf_counter()
        self._train(asked.steps, seconds)
        each = (perf_counter() - began) / max(len(self.rates), 1)
        self._hook.remove()
        if not self.session.over:
            self._read_on(seconds, seconds if asked.reading is None else asked.reading, asked.samples, each)
        self._put_together(self.training.group)
        self.training.do(self._finish)

    def found(self) -> JsonDict:
        return {
            **super().found(),
            "gradient_digests": tuple(self.digests[: self._taken]),
            "gradient_samples": tuple(self._sampled),
            "evaluation_digest": self._evaluation,
            "evaluated_samples": self._evaluated,
            "unseen": self.unhashed or ("" if self._labels and all(self.digests) else "labels"),
            "trained": self.until if "end" in self.windows else 0,
            "crossed": self._crossed,
            "waiting": self._waiting,
            "computing": self._computing,
        }

    # what the torch hooks tell

    def loader_opened(self, loader: Any) -> None:
        if self.hooks.roles.of(loader) and self.keys[self._pass :] not in ([], [set()]):
            self._pass += 1
            self._pass_steps = 0

    def batch_given(self, loader: Any, batch: Any, training: bool, drawn: Sequence[Any] | None) -> None:
        if training:
            self._given = True
            self._hold(*digests(batch, drawn))
            self.note_samples([batch], self._pass)

    def forward(self, model: nn.Module, args: Any, kwargs: Any, training: bool) -> None:
        if training:
            self._take(model, args, kwargs)
        if training and self._plain is not None:
            self._plain.enter_context(_without_draws_within(model))
        if training and self._aside is not None:
            self._put(self._aside)
            self._aside = None
        between = self._plain is not None and not model.training  # at trained weights it may reach the script's target
        if training or self._aside is not None or not (between or (self._left and self._held is not None)):
            return
        self._aside = self.training.device.copied(self.training.model.state_dict())  # of the steps around an evaluation
        if between:
            self._put(self._present[0])
        elif self._held is not None:
            self._held.put()

    def forward_done(self, model: nn.Module, output: Any) -> None:
        leaves = tree_leaves(dict(output) if hasattr(output, "keys") else output)
        self._outputs += [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._own_loss |= any(isinstance(leaf, torch.Tensor) and leaf.dim() == 0 for leaf in leaves)

    def stepped(self, optimizer: Any) -> None:
        self._stepped.add(id(optimizer))

    def _take(self, model: nn.Module, args: Any, kwargs: Any, *, unseen: bool = False) -> None:
        """Arguments of a model's call.

        Where another one was called before it in the step, its numbers may be what that one computed, rounded otherwise
        under another plan: whole numbers alone are the data's then. So it is in the first step, of which it is not
        known what was computed before it, where the data show otherwise.

        Args:
            unseen: what was computed between this call and the one before was not watched.
        """
        self._called.add(id(model))
        options = [value for value in (*args, *kwargs.values()) if isinstance(value, PLAIN)]
        given = [(path, leaf) for path, leaf in leaves((args, kwargs)) if not self._is_own(leaf)]
        given = [(path, leaf) for path, leaf in given if all(leaf is not option for option in options)]
        whole = [(path, leaf) for path, leaf in given if not has_fractions(leaf)]
        shown = not self.digests and (self._given or any(isinstance(leaf, torch.Tensor) for _, leaf in whole))
        computed = shown or unseen or len(self._called) > 1
        self._hold(*digests(dict(whole if computed else given)))
        if self._plain is not None:
            self._samples.update(dict(given))

    def _hold(self, whole: str, order: str, unhashed: str) -> None:
        self._digested.append((whole, order))
        self.unhashed = self.unhashed or unhashed

    def _is_own(self, value: Any) -> bool:
        """Whether a model computed it in this step or the one before, such as a state that is handed on."""
        if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
            return False
        return any(_same_numbers(value, output) for output in (*self._outputs, *self._outputs_before))

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Takes the step's gradient; one that a closure computes within the step (Lightning's do), when it first has.

        Returns:
            The step's arguments with such a closure watched.
        """
        if self.session.standing:
            return None
        closure = kwargs.get("closure") or next((value for value in args[1:2] if callable(value)), None)
        if closure is None:
            scale = getattr(optimizer, "grad_scale", None)  # of a scaler that leaves it to a fused update
            self._gradient = self.coordinates.gradients(1.0 if scale is None else float(scale))
            return None
        first = True

        def watched() -> Any:
            nonlocal first
            loss = closure()
            if first:  # later calls of one step are at other weights
                self._gradient, first = self.coordinates.gradients(), False
            return loss

        return ((*args[:1], *args[2:]), {**kwargs, "closure": watched})

    # how far the script trains

    def _gradients_at(self, paths: list[str]) -> None:
        """Gradients of the script's own steps, its weights put back after each; the points take turns."""
        states: list[Any] = []

        def prepare() -> None:
            model = self.training.model
            copied = self.training.device.copied
            present = copied(model.state_dict())
            optimizers = [copied(optimizer.state_dict()) for optimizer in self.training.optimizers]
            self._present = (present, optimizers)
            states.extend([kept_state(self.training, path) for path in paths] or [present])
            self._origin = states[0] or present
            self._middle = states[len(states) // 2] if paths else None
            self._rates = [  # of each parameter group, all but its parameters
                [{k: copy.deepcopy(v) for k, v in group.items() if k != "params"} for group in each.param_groups]
                for each in self.training.optimizers
            ]
            with contextlib.suppress(RuntimeError, TypeError):  # a model that cannot be called twice in a step
                self.gradients["draws"] = np.stack([self._drawn(seed) for seed in (1, 2)])
            model.zero_grad(set_to_none=True)
            seed_everything(mix("gradient", self.draws))  # from here on both plans draw the same again
            self._put(states[0])
            self._plain = contextlib.ExitStack()

        def each(done: int, elapsed: float) -> None:
            assert self._plain is not None
            self._plain.close()
            self._step_ended()
            if self._gradient is not None:
                found[(done - 1) % len(states)].append(self._gradient)
            self._gradient = None
            self._put(states[done % len(states)])

        self.training.do(prepare)
        found: list[list[Array]] = [[] for _ in states]
        wanted = self._rounds * len(states)
        self.training.follow(lambda done, _: done >= wanted, each, most=wanted)
        self.training.do(self._as_before)
        self._taken = len(self.digests)
        whole = all(state is not None for state in states) and all(_tells(each, self._rounds) for each in found)
        if whole:
            self.points = len(found)
            self.gradients |= {f"gradients{number}": np.stack(each) for number, each in enumerate(found)}

    def _as_before(self) -> None:
        weights, optimizers = self._present
        self._plain = None
        self._put(weights)
        for optimizer, state in zip(self.training.optimizers, optimizers, strict=True):
            optimizer.load_state_dict(state)
        del self._present
        self.record()

    def _put(self, state: Any) -> None:
        if state is not None:
            self.training.model.load_state_dict(state)
            if self._elsewhere:
                disturb(self.training.model, 1.0, 0, 0)  # each weight by about as much as it is

    def _train(self, steps: int, seconds: float) -> None:
        """Trains step by step: the batch's digest, the loss, the learning rate, the weights after it."""
        self._gradient, recording = None, 0.0

        def each(done: int, elapsed: float) -> None:
            nonlocal recording
            ended = perf_counter()
            self._step_ended()
            if self._gradient is None:
                self.skipped.append(done - 1)
            self._gradient = None
            self.record_rate()
            self.record()
            recording += perf_counter() - ended

        def enough(done: int, elapsed: float) -> bool:
            return done >= steps or (done >= LEAST_STEPS and perf_counter() - began > seconds)

        if self.session.over:
            return
        began = perf_counter()
        goal = self.training.follow(enough, each, most=steps)
        ranks = self.training.group.gather(goal.captured.losses()[: len(self.rates)])
        fewest = min(map(len, ranks))
        self.losses = list(mean_losses([losses[:fewest] for losses in ranks]))
        lap, trained = goal.lap(), len(self.rates)
        if trained:
            waiting = lap.stages.get("data", 0.0) + lap.stages.get("epoch", 0.0)
            self._waiting, self._computing = waiting / trained, max(lap.seconds - waiting - recording, 0.0) / trained

    def _step_ended(self) -> None:
        """Takes the digests of the step that has ended."""
        self._steps += 1
        self._pass_steps += 1
        self.digests.append("".join(whole for whole, _ in self._digested))
        self.orders.append("".join(order for _, order in self._digested))
        self._labels = self._labels and (self._given or self._own_loss)
        self._digested.clear()
        if self._plain is not None:
            self._sampled.append(self._samples.hexdigest())
            self._samples = SampleDigest(maxsize, LEAST_WIDTH)
        self._called.clear()
        self._outputs_before, self._outputs = self._outputs, []
        self._own_loss = False

    def _read_on(self, seconds: float, usual: float, samples: int, step_seconds: float) -> None:
        """Trains on for the sake of its batches and rates, into the third epoch where there is time.

        The middle one of the kept weights are held in the meantime, so that an evaluation on the way is one of them:
        at the last ones a script may be at the target at which it ends. To the end of a short training it goes on where
        that fits.
        """
        held = self._held = HeldWeights(self.training, self._middle) if self._middle is not None else None
        if held is not None:
            self.training.do(held.put)
            self.hooks.watchers.append(held)
        fits = usual > 0 and (self.until - self._steps) * step_seconds <= seconds

        def each(done: int, elapsed: float) -> None:
            self._step_ended()
            self.record_rate()
            if self._left:
                self.record(self._window)
                self._left -= 1
            if usual > 0 and not self._left:  # steps that take long are not spent on windows
                self._begin_window()
            if held is not None and not self._left:
                held.put()

        def enough(done: int, elapsed: float) -> bool:
            read, spent = samples_read(self.epochs) * self.training.group.size, perf_counter() - began
            if self._left or (fits and self._steps < self.until):
                return spent > 2 * seconds
            late = spent > (usual if read >= samples else seconds)
            return late or done >= MOST_READ or self._pass >= 3 or not self._given

        began = perf_counter()
        goal = self.training.follow(enough, each, most=MOST_READ)
        if held is not None:
            self.hooks.watchers.remove(held)
            self.metrics, self._evaluation = [held.metric_at(goal)], held.hashed.hexdigest()
            self._evaluated = held.samples

    def _put_together(self, group: Any) -> None:
        """Batches that all processes have read: a step's batches are those of all ranks, an epoch's samples as well."""
        if group.size == 1:
            return
        read = (self.keys, self._labels, [epoch.samples for epoch in self.epochs])
        gathered = zip(*group.gather((self.digests, self.orders, self._sampled, *read)), strict=True)
        *of_steps, keys, labels, samples = gathered
        self.digests, self.orders, self._sampled = (
            ["".join(step) for step in zip(*each, strict=False)] for each in of_steps
        )
        self._labels = all(labels)
        epochs = [set().union(*each) for each in zip(*keys, strict=False)]
        self.epochs = [
            EpochRead(
                samples=sum(rank[number] for rank in samples if number < len(rank)),
                distinct=len(keys),
                seen_before=len(keys & set().union(*epochs[:number])),
            )
            for number, keys in enumerate(epochs)
            if keys
        ]

    def _begin_window(self) -> None:
        """Begins a window where one is due, at the draws that the script has come to."""
        left = (self.training.lengths.per_epoch or 0) - self._pass_steps
        if self._steps == self.until - LAST:
            window, steps = "end", LAST
        elif 0 < left <= BEFORE_END < self._pass_steps and "epoch" not in self.windows:
            window, steps = "epoch", WINDOW
        else:
            return
        if self.training.setup.step or self.training.group.size > 1:  # a step that is replayed as a whole
            return
        self._put(self._origin)
        spec = self.training.script.spec
        if spec.disturbed:  # weights that were kept are those of a training that was not
            disturb(self.training.model, spec.disturbed, spec.seed, 0)
        for optimizer in self.training.optimizers:
            optimizer.state.clear()
        self._window, self._left = window, steps
        self._crossed = self._steps if window == "epoch" else self._crossed
        self.record(window)

    def _finish(self) -> None:
        """Once the script trains no further: updates from drawn gradients, of drawn weights and at the first rates.

        They are those of the optimizers that have stepped: one for later, such as L-BFGS after Adam, shows nothing yet.
        Decay follows the weights, and a schedule the steps, of which each plan has trained as many as there was time
        for; and where augmentations are drawn otherwise, even the first step leads elsewhere.
        """
        self.hooks.watchers.remove(self)
        with contextlib.suppress(Exception):  # an optimizer that wants a closure, or keeps its own state
            self.coordinates.set_synthetic_weights(_WEIGHT)
            for optimizer, kept in zip(self.training.optimizers, self._rates, strict=True):
                for group, values in zip(optimizer.param_groups, kept, strict=True):
                    group.update(copy.deepcopy(values))
            optimizers = self.training.optimizers
            self.training.optimizers = [each for each in optimizers if id(each) in self._stepped] or optimizers
            self.updates()

    def _drawn(self, seed: int) -> Array:
        """The gradient of the recorded calls, of a loss in the place of the script's own."""
        self.training.model.zero_grad(set_to_none=True)
        seed_everything(mix("gradient", seed))
        for batch in self.training.batches:
            self.training.backward(self.training.forward(batch))
        return self.coordinates.gradients(self.session.loss_factor)  # of the mean over the same samples


def _same_numbers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors share their memory, or hold equal numbers."""
    if one.device != other.device or one.is_nested or other.is_nested:
        return False
    if one.layout != torch.strided or other.layout != torch.strided:
        return False
    if one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr():
        return True
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def _tells(gradients: list[Array], rounds: int) -> bool:
    """Whether all batches have gradients. They are all the same where each step trains on all samples."""
    if len(gradients) < rounds or any(np.isnan(gradient).all() for gradient in gradients):
        return False
    return bool(np.nan_to_num(np.stack(gradients)).any())


@contextlib.contextmanager
def _without_draws_within(model: nn.Module) -> Any:
    """Without draws in all but the root itself: it is by its mode that its calls are known to be training."""
    training = model.training
    with without_draws(model):
        model.training = training
        yield
