"""Ends badly, in the way that its word names."""

import sys

how = sys.argv[1]
if how == "no_torch":
    print("nothing to train here")
    sys.exit(0)

import torch
from torch import nn

model = nn.Linear(4, 1)
if how != "updates_itself":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if how == "fails":
    raise ValueError("a fault of the script's own")
if how == "asks":
    input("learning rate? ")
if how == "writes":
    open(sys.argv[2], "w").write("changed")
if how == "exits":
    sys.exit("wrong words")
if how == "spawns":
    torch.multiprocessing.spawn(print, nprocs=2)
if how == "never":
    sys.exit(0)
while how == "updates_itself":
    (gradient,) = torch.autograd.grad(model(torch.ones(2, 4)).sum(), [model.weight])
    model.weight.data -= 0.1 * gradient
while how == "calls_no_model":
    (torch.ones(2, 4) @ model.weight.T).sum().backward()
    optimizer.step()
for _ in range(5):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
