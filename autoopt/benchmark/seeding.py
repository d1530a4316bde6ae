"""Random numbers: seeding, keeping the state of every generator that user code draws from, disturbed weights."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn


def seed_everything(seed: int) -> None:
    """Seeds Python, NumPy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def mix(*parts: int | str) -> int:
    """A seed made of several, far from that of any other combination; 63 bits, the same on every machine."""
    digest = hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def random_state() -> dict[str, Any]:
    """Where every generator that ``seed_everything`` seeds stands: plain data and tensors, as checkpoints hold them."""
    kind, keys, *rest = np.random.get_state()
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    state["numpy"] = (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Puts every generator where it stood."""
    kind, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Puts every generator back to where it was."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


@contextmanager
def kept_modes(model: nn.Module) -> Iterator[None]:
    """Puts each module back to training or evaluating, as it was."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def next_to_training(model: nn.Module) -> Iterator[None]:
    """For what calls the model next to its training: statistics, other buffers and generators are then as they were,
    and gradients are gone."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with kept_random_state():
            yield
    finally:
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])


def disturb(model: nn.Module, size: float, seed: int, number: int) -> None:
    """Changes the parameters of a model in place, the same in every process with this seed.

    ``size``: standard deviation of a change, over its weight. ``number``: of the model among those of the script.
    """
    generator = torch.Generator().manual_seed(mix(seed, "disturbed", number))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.mul_((1 + size * drawn).to(parameter.device, parameter.dtype))
