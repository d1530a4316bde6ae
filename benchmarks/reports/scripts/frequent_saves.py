"""A checkpoint every 16 steps, most of which is a pretrained table: training waits for the disk most of the time."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
ids = torch.randint(0, 200_000, (4096, 16))
loader = DataLoader(TensorDataset(ids, ids[:, 0] % 4), batch_size=32, shuffle=True)
model = nn.Sequential(nn.EmbeddingBag(200_000, 128), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 4))
model[0].weight.requires_grad_(False)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
step = 0
for epoch in range(6):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 16 == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "last.pt")
    print(f"epoch {epoch} loss {loss.item():.4f}")
