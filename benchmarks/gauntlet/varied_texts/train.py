"""A transformer that classifies texts; every text is padded to the longest that there may be."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

LONGEST = 240


class Data(Dataset):
    def __init__(self, folder, split):
        with open(f"{folder}/{split}.tsv", encoding="utf-8") as file:
            self.lines = file.read().splitlines()

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        label, text = self.lines[index].split("\t")
        ids = [int(word[1:]) + 1 for word in text.split()]
        padded = ids + [0] * (LONGEST - len(ids))
        return torch.tensor(padded), int(label)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class Net(nn.Module):
    def __init__(self, width=64, heads=4, layers=2):
        super().__init__()
        self.words = nn.Embedding(4001, width, padding_idx=0)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 4)

    def forward(self, ids):
        mask = ids != 0
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, mask)
        x = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(x)


def loss_of(net, batch):
    ids, labels = batch
    return F.cross_entropy(net(ids), labels)


def optimizer_of(net):
    return torch.optim.AdamW(net.parameters(), lr=1e-3)


def evaluate(net, loader):
    net.eval()
    right = 0
    with torch.no_grad():
        for ids, labels in loader:
            right += (net(ids).argmax(1) == labels).sum().item()
    net.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--target", type=float, default=0.85)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = DataLoader(Data(args.data, "train"), batch_size=32, shuffle=True)
    test_loader = DataLoader(Data(args.data, "test"), batch_size=32)
    net = Net()
    optimizer = optimizer_of(net)
    seen = 0
    for epoch in range(args.epochs):
        for batch in train_loader:
            loss = loss_of(net, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if seen == 0:
                print(f"first step: loss {loss.item():.4f}", flush=True)
            seen += len(batch[1])
        accuracy = evaluate(net, test_loader)
        print(f"epoch {epoch} test accuracy: {accuracy:.4f}", flush=True)
        if accuracy >= args.target:
            break
    print(f"samples seen: {seen}")
    print(f"final accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
