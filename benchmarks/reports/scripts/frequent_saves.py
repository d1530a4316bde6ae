"""A checkpoint of model and optimizer every sixteen steps: most of the run is writing."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
ids = torch.randint(0, 60_000, (4096, 16))
loader = DataLoader(TensorDataset(ids, ids[:, 0] % 4), batch_size=32, shuffle=True)
model = nn.Sequential(nn.EmbeddingBag(60_000, 128), nn.ReLU(), nn.Linear(128, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
step = 0
for epoch in range(3):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 16 == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "last.pt")
    print(f"epoch {epoch} loss {loss.item():.4f}")
