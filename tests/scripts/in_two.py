"""A training that torchrun starts in several processes; the first one evaluates, saves and tells."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FAULT, _, WHO = os.environ.get("FAULT", "").partition(":")


def misbehave(step, rank):
    if step < 3 or WHO != str(rank):
        return
    if FAULT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "raise":
        raise ValueError("a bad sample")
    if FAULT == "hang":
        while True:
            time.sleep(1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        with open("shared.txt", "w") as file:
            file.write("for all")
    dist.barrier()
    print("READ", open("shared.txt").read(), os.environ.get("TMPDIR"), sys.argv[1:], torch.get_num_threads(), flush=True)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(250, 16, generator=generator)
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    torch.manual_seed(rank)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = 0
    for epoch in range(1000):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            misbehave(step, rank)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        if rank == 0 and os.environ.get("EVALUATES"):
            model.eval()
            with torch.no_grad():
                right = (model.module(inputs).argmax(1) == data.tensors[1]).float().mean()
            time.sleep(float(os.environ["EVALUATES"]))
            print(f"epoch {epoch} accuracy {right:.4f}", flush=True)


if __name__ == "__main__":
    main()
