"""Floating-point operations of a step, counted operator by operator."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from autoopt.benchmark.contents import samples_of
from autoopt.benchmark.live import LiveTraining
from autoopt.benchmark.seeding import kept_random_state
from autoopt.records import JsonDict


def count_flops(training: LiveTraining) -> JsonDict:
    """Counts forward and backward of one step; weights, statistics and random numbers stay as they were.

    Matrix products, convolutions and attention count; what the user recomputes is counted as done. A
    compiled model is counted uncompiled: its fused kernels do the same arithmetic.

    Returns:
        ``flops_per_step``, ``forward_flops``, ``flops_per_sample``, ``by_operator``.
    """
    batches = training.next()
    model = training.model
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    forward = total = 0
    operators: dict[str, int] = {}
    with kept_random_state(), torch.compiler.set_stance("force_eager"):
        for batch in batches:
            with FlopCounterMode(display=False) as counter:
                loss = training.forward(batch)
                forward += counter.get_total_flops()
                loss.backward()  # type: ignore[no-untyped-call]
            total += counter.get_total_flops()
            for operator, flops in counter.get_flop_counts().get("Global", {}).items():
                operators[str(operator)] = operators.get(str(operator), 0) + int(flops)
    training.optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    samples = sum(samples_of(batch) or 1 for batch in batches)
    return {
        "flops": int(total),
        "flops_per_step": int(total),
        "forward_flops": int(forward),
        "flops_per_sample": total / samples,
        "by_operator": operators,
    }
