"""The worst case of memory: a step on the largest batch there is."""

from __future__ import annotations

from typing import Any

from autoopt.benchmark.contents import bytes_of, shape_of, tensors
from autoopt.benchmark.live import LiveTraining
from autoopt.records import JsonDict


def largest_step(training: LiveTraining, looks: int, steps: int) -> JsonDict:
    """Looks through coming batches and trains on the largest, every micro-batch of the step being it.

    Where shapes never vary the first batch is as large as any; where they do, the largest of an epoch
    is what a real run meets sooner or later.
    """
    largest: Any = None
    most = -1
    seen = 0
    for _ in range(max(1, looks)):
        for batch in training.next():
            seen += 1
            size = sum(bytes_of(tensor) for _, tensor in tensors(batch))
            if size > most:
                largest, most = batch, size
    group = [largest] * training.lengths.accumulation
    device = training.device
    device.empty_cache()  # what earlier shapes have left in the allocator is no need of this one
    device.reset_peak()
    retries = device.allocation_retries()
    if device.tensors is not None:
        device.tensors.add(group)
    with device.watched():
        for _ in range(max(1, steps)):
            training.whole_step(group)
    device.synchronize()
    return {
        "bytes": most,
        "shapes": {path: list(shape_of(tensor)) for path, tensor in tensors(largest)},
        "looked_at": seen,
        "peak_memory_bytes": device.peak_bytes(),
        "allocated_memory_bytes": device.allocated_bytes(),
        "limit_bytes": device.limit_bytes(),
        "allocation_retries": device.allocation_retries() - retries,
    }
