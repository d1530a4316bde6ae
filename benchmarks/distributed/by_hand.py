"""A training in several processes as a person writes it, for torchrun; prints its samples per second as JSON.

torchrun --standalone --nproc-per-node 2 -m benchmarks.distributed.by_hand --seconds 4
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from benchmarks.distributed.workload import BATCH, data, loss, net, optimizer

WARM_UP = 1.0
"""Seconds that are trained and not counted."""


def main() -> None:
    """Trains for some seconds and tells how fast."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    seconds = parser.parse_args().seconds
    size = int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(0)
    model: Any = net()
    dataset = data()
    sampler: Any = None
    if size > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(dataset)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=BATCH // size, sampler=sampler, shuffle=sampler is None)
    update = optimizer(model.parameters())
    warm, rate = None, 0.0
    began, steps, taken = time.perf_counter(), 0, 0
    over = False
    while not over:
        for batch in loader:
            loss(model, batch).backward()
            update.step()
            update.zero_grad(set_to_none=True)
            steps, taken = steps + 1, taken + 1
            now = time.perf_counter()
            if warm is None and now - began > WARM_UP:
                warm, steps, began = now, 0, now
            over = _agreed(warm is not None and now - began > seconds, taken, size)
            if over:
                rate = steps * BATCH / (now - began)
                break
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps({"processes": size, "samples_per_second": rate}))
    if size > 1:
        dist.destroy_process_group()


def _agreed(over: bool, steps: int, size: int) -> bool:
    """The ranks end together; asked every ten of all steps, which they count alike: it costs next to nothing."""
    if size == 1:
        return over
    if steps % 10:
        return False
    reported = torch.tensor(float(over))
    dist.broadcast(reported, 0)
    return bool(reported)


if __name__ == "__main__":
    main()
