"""The data that a script's steps are given: digests of their batches, and which samples its epochs read.

Batches are what the training loaders give and what the models are called with, without what a model computed itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from autoopt.benchmark.contents import PLAIN, leaves
from autoopt.benchmark.fingerprint import digests, has_fractions, sample_keys
from autoopt.records.messages import EpochRead, samples_read
from autoopt.script.watcher import Watcher


class StepData(Watcher):
    """The data of one process's steps, from joint to joint.

    Attributes:
        digests: of each step's data; ``orders``: of their whole numbers alone.
        epochs: what each pass over the training loaders has read so far.
        given: a training loader has given a batch.
    """

    def __init__(self, training: Any) -> None:
        script = training.script
        self._roles = script.joints.roles
        self.digests: list[str] = []
        self.orders: list[str] = []
        self.epochs: list[EpochRead] = []
        self.given = False
        self._labels, self._own_loss, self._unhashed = True, False, ""
        self._keys: list[set[int]] = [set()]
        self._taken: list[tuple[str, str]] = []
        if script.recording.host_digests is not None:
            self._hold(*script.recording.host_digests)
        self._called: set[int] = set()
        self._outputs: list[torch.Tensor] = []
        self._outputs_before: list[torch.Tensor] = []
        for call in (call for batch in training.batches for call in batch):
            self._take(call.model, call.args, call.kwargs)

    @property
    def samples(self) -> int:
        """Samples read in all."""
        return samples_read(self.epochs)

    @property
    def epoch(self) -> int:
        """Passes over the training loaders that have ended."""
        return len(self._keys) - 1

    @property
    def unseen(self) -> str:
        """Data that the digests may not hold; "" where they hold all of them."""
        return self._unhashed or ("" if self._labels and all(self.digests) else "labels")

    def loader_opened(self, loader: Any) -> None:
        if self._roles.of(loader) and self._keys[-1]:
            self._keys.append(set())

    def batch_given(self, loader: Any, batch: Any, training: bool) -> None:
        if training:
            self.given = True
            self._hold(*digests(batch))
            self._read(batch)

    def forward(self, model: nn.Module, args: Any, kwargs: Any, training: bool) -> None:
        if training:
            self._take(model, args, kwargs)

    def forward_done(self, model: nn.Module, output: Any) -> None:
        leaves = tree_leaves(dict(output) if hasattr(output, "keys") else output)
        self._outputs += [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._own_loss |= any(isinstance(leaf, torch.Tensor) and leaf.dim() == 0 for leaf in leaves)

    def _take(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Arguments of a model's call.

        Where another one was called before it in the step, its numbers may be what that one computed, rounded otherwise
        under another plan: whole numbers alone are the data's then. So it is in the first step, of which it is not
        known what was computed before it, where the data show otherwise.
        """
        self._called.add(id(model))
        options = [value for value in (*args, *kwargs.values()) if isinstance(value, PLAIN)]
        given = [(path, leaf) for path, leaf in leaves((args, kwargs)) if not self._is_own(leaf)]
        given = [(path, leaf) for path, leaf in given if all(leaf is not option for option in options)]
        whole = [(path, leaf) for path, leaf in given if not has_fractions(leaf)]
        shown = not self.digests and (self.given or any(isinstance(leaf, torch.Tensor) for _, leaf in whole))
        self._hold(*digests(dict(whole if shown or len(self._called) > 1 else given)))

    def _hold(self, whole: str, order: str, unhashed: str) -> None:
        self._taken.append((whole, order))
        self._unhashed = self._unhashed or unhashed

    def _is_own(self, value: Any) -> bool:
        """Whether a model computed it in this step or the one before, such as a state that is handed on."""
        if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
            return False
        return any(_same_numbers(value, output) for output in (*self._outputs, *self._outputs_before))

    def _read(self, batch: Any) -> None:
        epoch = self.epoch
        while len(self.epochs) <= epoch:
            self.epochs.append(EpochRead(samples=0, distinct=0, seen_before=0))
        keys, known = sample_keys(batch), self.epochs[epoch]
        earlier = sum(any(key in seen for seen in self._keys[:epoch]) for key in keys)
        self._keys[epoch].update(keys)
        self.epochs[epoch] = EpochRead(
            samples=known.samples + len(keys),
            distinct=len(self._keys[epoch]),
            seen_before=known.seen_before + earlier,
        )

    def step_ended(self) -> None:
        """Takes the digests of the step that has ended."""
        self.digests.append("".join(whole for whole, _ in self._taken))
        self.orders.append("".join(order for _, order in self._taken))
        self._labels = self._labels and (self.given or self._own_loss)
        self._taken.clear()
        self._called.clear()
        self._outputs_before, self._outputs = self._outputs, []
        self._own_loss = False

    def put_together(self, group: Any) -> None:
        """Batches that all processes have read: a step's batches are those of all ranks, an epoch's samples as well."""
        if group.size == 1:
            return
        ranks = group.gather((self.digests, self.orders, self._keys, self._labels))
        self.digests = ["".join(step) for step in zip(*(each[0] for each in ranks), strict=False)]
        self.orders = ["".join(step) for step in zip(*(each[1] for each in ranks), strict=False)]
        self._labels = all(each[3] for each in ranks)
        epochs = [set().union(*keys) for keys in zip(*(each[2] for each in ranks), strict=False)]
        samples = group.gather([epoch.samples for epoch in self.epochs])
        self.epochs = [
            EpochRead(
                samples=sum(rank[number] for rank in samples if number < len(rank)),
                distinct=len(keys),
                seen_before=len(keys & set().union(*epochs[:number])),
            )
            for number, keys in enumerate(epochs)
            if keys
        ]


def _same_numbers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors share their memory, or hold equal numbers."""
    if one.device != other.device or one.is_nested or other.is_nested:
        return False
    if one.layout != torch.strided or other.layout != torch.strided:
        return False
    if one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr():
        return True
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
