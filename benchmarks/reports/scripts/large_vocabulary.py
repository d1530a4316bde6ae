"""A head over 50,000 words, whose logits are most of the memory and of the step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WORDS, WIDTH = 50_000, 64


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        return self.head(torch.relu(self.mix(self.embed(ids))))


torch.manual_seed(0)
ids = torch.randint(0, WORDS, (240, 65))
loader = DataLoader(TensorDataset(ids), batch_size=8)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (batch,) in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
