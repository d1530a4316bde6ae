"""The variational autoencoder of PyTorch's examples; the bound is computed on the training set too, each epoch."""

import argparse

import numpy as np
import torch
import torch.utils.data
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler


class Digits(torch.utils.data.Dataset):
    def __init__(self, path):
        file = np.load(path)
        self.images = torch.from_numpy(file["images"]).float().div_(255).unsqueeze(1)
        self.labels = torch.from_numpy(file["labels"])

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        """The images of a whole batch."""
        return self.images[index], self.labels[index]


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 400)
        self.fc21 = nn.Linear(400, 20)
        self.fc22 = nn.Linear(400, 20)
        self.fc3 = nn.Linear(20, 400)
        self.fc4 = nn.Linear(400, 784)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        if not self.training:
            return mu
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 784))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 784), reduction="sum")  # noqa: N806
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())  # noqa: N806
    return BCE + KLD


def train(epoch):
    model.train()
    train_loss = 0
    for batch_idx, (data, _) in enumerate(train_loader):
        data = data.to(device)
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.detach()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(
                f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_loader.dataset)}]"
                f"\tLoss: {loss.item() / len(data):.6f}"
            )
    print(f"====> Epoch: {epoch} Average loss: {train_loss / len(train_loader.dataset):.4f}")


@torch.no_grad()
def test(loader, name):
    model.eval()
    test_loss = 0
    for data, _ in loader:
        data = data.to(device)
        recon_batch, mu, logvar = model(data)
        test_loss += loss_function(recon_batch, data, mu, logvar).item()
    test_loss /= len(loader.dataset)
    print(f"====> {name} set loss: {test_loss:.4f}")
    return test_loss


parser = argparse.ArgumentParser(description="VAE Example")
parser.add_argument("--data", default="data")
parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="input batch size for training")
parser.add_argument("--epochs", type=int, default=5, metavar="N", help="number of epochs to train")
parser.add_argument("--log-interval", type=int, default=50, metavar="N", help="batches between two lines")
parser.add_argument("--seed", type=int, default=1, metavar="S", help="random seed")
args = parser.parse_args()

torch.manual_seed(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
train_set, test_set = Digits(f"{args.data}/train.npz"), Digits(f"{args.data}/test.npz")
train_loader = DataLoader(
    train_set, sampler=BatchSampler(RandomSampler(train_set), args.batch_size, drop_last=False), batch_size=None
)
eval_loader, test_loader = (
    DataLoader(data, sampler=BatchSampler(SequentialSampler(data), 1000, drop_last=False), batch_size=None)
    for data in (train_set, test_set)
)
model = VAE().to(device)
optimizer = optim.Adam(model.parameters(), lr=1e-3, fused=True)

if __name__ == "__main__":
    for epoch in range(1, args.epochs + 1):
        train(epoch)
        train_elbo = test(eval_loader, "Train")
        test_elbo = test(test_loader, "Test")
    print(f"final test loss: {test_elbo:.4f}")
