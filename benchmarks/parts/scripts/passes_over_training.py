"""A variational autoencoder that goes over its training data once more after each epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.rand(3000, 196))
train = DataLoader(data, batch_size=50, shuffle=True)
test = DataLoader(TensorDataset(torch.rand(500, 196)), batch_size=50)
encoder = nn.Sequential(nn.Linear(196, 256), nn.ReLU(), nn.Linear(256, 2 * 16))
decoder = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 196))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        latent = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        kept = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        return nn.functional.mse_loss(self.decoder(latent), x, reduction="none").sum(1).mean() + kept


model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def mean_loss(loader):
    with torch.no_grad():
        return sum(model(x).item() for (x,) in loader) / len(loader)


for epoch in range(25):
    model.train()
    for (x,) in train:
        loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    print(f"epoch {epoch} train {mean_loss(train):.3f} test {mean_loss(test):.3f}")
