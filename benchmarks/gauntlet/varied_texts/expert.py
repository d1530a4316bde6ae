"""The same transformer: texts of like length share a batch, which is as wide as its longest text."""

import argparse
import random
import time

import torch
from torch import nn
from torch.nn import functional as F


class Batches:
    """Batches of a split in random order; within a window of 16 batches, texts are sorted by length."""

    def __init__(self, folder, split, size):
        with open(f"{folder}/{split}.tsv", encoding="utf-8") as file:
            lines = [line.split("\t") for line in file.read().splitlines()]
        self.labels = torch.tensor([int(label) for label, _ in lines])
        texts = [torch.tensor([int(word[1:]) + 1 for word in text.split()]) for _, text in lines]
        self.lengths = torch.tensor([len(text) for text in texts])
        self.ids = nn.utils.rnn.pad_sequence(texts, batch_first=True)
        self.size, self.train = size, split == "train"

    def __iter__(self):
        count = len(self.labels)
        if self.train:
            windows = torch.randperm(count).split(16 * self.size)
            batches = [part for window in windows for part in self.by_length(window).split(self.size)]
            batches = [batches[place] for place in torch.randperm(len(batches)).tolist()]
        else:
            batches = self.by_length(torch.arange(count)).split(self.size)
        for indices in batches:
            yield self.ids[indices, : int(self.lengths[indices].max())], self.labels[indices]

    def by_length(self, indices):
        return indices[self.lengths[indices].argsort()]


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
    return torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)


def evaluate(net, batches, wait):
    net.eval()
    right = 0
    with torch.no_grad():
        for ids, labels in batches:
            time.sleep(wait * len(labels))
            right += (net(ids).argmax(1) == labels).sum().item()
    net.train()
    return right / len(batches.labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--target", type=float, default=0.85)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--wait", type=float, default=0.0, help="placebo: seconds of a device for a sample")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train, test = Batches(args.data, "train", 32), Batches(args.data, "test", 64)
    net = Net(args.width)
    optimizer = optimizer_of(net)
    seen = 0
    for epoch in range(args.epochs):
        for batch in train:
            time.sleep(args.wait * len(batch[1]) * random.uniform(0.5, 1.5))
            loss = loss_of(net, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if seen == 0:
                print(f"first step: loss {loss.item():.4f}", flush=True)
            seen += len(batch[1])
        accuracy = evaluate(net, test, args.wait)
        print(f"epoch {epoch} test accuracy: {accuracy:.4f}", flush=True)
        if accuracy >= args.target:
            break
    print(f"samples seen: {seen}")
    print(f"final accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
