"""A training that prints the median CPU time of its steps in milliseconds; knows nothing of autoopt."""

import statistics
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

width, seconds = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(4096, width), torch.randint(10, (4096,)))
loader = DataLoader(data, batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
times, started = [], time.perf_counter()
while time.perf_counter() - started < seconds:
    began = time.thread_time()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        now = time.thread_time()
        times.append(now - began)
        began = now
print(f"median {1000 * statistics.median(times[len(times) // 4 :]):.6f} ms")
