"""A click model on rows that lie by key in a file, one pickled dictionary each."""

import argparse
import pickle
import sqlite3

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler


class RowTensors(Dataset):
    """All rows of the file in three tensors; an index may be a list, the rows of a whole batch."""

    def __init__(self, path):
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        values = connection.execute("select value from rows where key != ? order by key", (b"__len__",))
        rows = [pickle.loads(value) for (value,) in values]
        connection.close()
        self.numbers = torch.from_numpy(np.stack([row["numbers"] for row in rows])).float()
        self.categories = torch.from_numpy(np.stack([row["categories"] for row in rows])).long()
        self.label = torch.tensor([row["label"] for row in rows], dtype=torch.float32)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, index):
        return {"numbers": self.numbers[index], "categories": self.categories[index], "label": self.label[index]}


class TabularNet(nn.Module):
    def __init__(self, numbers=24, categories=8, levels=40, dim=8, hidden=256):
        super().__init__()
        self.embeddings = nn.Embedding(categories * levels, dim)  # one table of all columns, found by an offset
        self.register_buffer("offsets", torch.arange(categories) * levels)
        self.mlp = nn.Sequential(
            nn.Linear(numbers + categories * dim, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, numbers, categories):
        embedded = self.embeddings(categories + self.offsets).flatten(1)
        return self.mlp(torch.cat([numbers, embedded], dim=1)).squeeze(1)


@torch.no_grad()
def evaluate(model, loader, criterion, device):
    model.eval()
    loss_sum, correct, count = 0.0, 0, 0
    for batch in loader:
        labels = batch["label"].to(device)
        outputs = model(batch["numbers"].to(device), batch["categories"].to(device))
        loss_sum += criterion(outputs, labels).item() * len(labels)
        correct += ((outputs > 0).float() == labels).sum().item()
        count += len(labels)
    return loss_sum / count, correct / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set = RowTensors(f"{args.data}/train.db")
    valid_set = RowTensors(f"{args.data}/valid.db")
    generator = torch.Generator().manual_seed(args.seed)
    train_batches = BatchSampler(RandomSampler(train_set, generator=generator), args.batch_size, drop_last=False)
    train_loader = DataLoader(train_set, sampler=train_batches, batch_size=None, generator=generator)
    valid_loader = DataLoader(
        valid_set, sampler=BatchSampler(SequentialSampler(valid_set), 4096, drop_last=False), batch_size=None
    )

    model = TabularNet().to(device)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)

    for epoch in range(args.epochs):
        model.train()
        running = 0.0
        for batch in train_loader:
            numbers = batch["numbers"].to(device)
            categories = batch["categories"].to(device)
            labels = batch["label"].to(device)
            optimizer.zero_grad()
            loss = criterion(model(numbers, categories), labels)
            loss.backward()
            optimizer.step()
            running += loss.detach()
        scheduler.step()
        valid_loss, accuracy = evaluate(model, valid_loader, criterion, device)
        print(
            f"epoch {epoch + 1}/{args.epochs} train loss {running / len(train_loader):.4f} "
            f"valid loss {valid_loss:.4f} valid acc {accuracy:.4f}"
        )
    print(f"final valid accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
