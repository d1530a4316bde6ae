"""Parameters without a gradient, for which several processes would wait in vain."""

from __future__ import annotations

from typing import Any

from autoopt.benchmark.seeding import kept_random_state


def unused_parameters(training: Any) -> list[str]:
    """Names of trainable parameters that forward and backward of the next batch leave without a gradient."""
    model = training.model
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with kept_random_state():
        model.zero_grad(set_to_none=True)
        training.backward(training.forward(training.next()[0]))
    found = [name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None]
    model.zero_grad(set_to_none=True)
    for name, buffer in model.named_buffers():
        buffer.detach().copy_(buffers[name])
    return found
