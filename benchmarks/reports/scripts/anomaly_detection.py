"""A transformer whose anomaly detection was never switched off again."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.autograd.set_detect_anomaly(True)
EPOCHS = 6

x = torch.randint(0, 64, (3000, 24))
y = (x[:, :12].sum(1) > x[:, 12:].sum(1)).long()
train = DataLoader(TensorDataset(x[:2400], y[:2400]), batch_size=16, shuffle=True)
valid = DataLoader(TensorDataset(x[2400:], y[2400:]), batch_size=200)
layer = nn.TransformerEncoderLayer(48, 4, dim_feedforward=96, batch_first=True)
model = nn.Sequential(nn.Embedding(64, 48), nn.TransformerEncoder(layer, 3), nn.Flatten(), nn.Linear(24 * 48, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
for epoch in range(EPOCHS):
    model.train()
    for tokens, labels in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(tokens).argmax(1) == labels).sum().item() for tokens, labels in valid)
    print(f"epoch {epoch} valid accuracy {right / 600:.4f}")
