"""A click model on rows that lie by key in a file, one pickled dictionary each."""

import argparse
import pickle
import sqlite3

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RowDataset(Dataset):
    def __init__(self, path):
        self.path = path
        self.db = None
        connection = sqlite3.connect(path)
        self.length = pickle.loads(
            connection.execute("select value from rows where key = ?", (b"__len__",)).fetchone()[0]
        )
        connection.close()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.db is None:  # each worker opens the file itself
            self.db = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        key = f"{index:08d}".encode()
        (value,) = self.db.execute("select value from rows where key = ?", (key,)).fetchone()
        row = pickle.loads(value)
        return {
            "numbers": torch.tensor(row["numbers"], dtype=torch.float32),
            "categories": torch.tensor(row["categories"], dtype=torch.long),
            "label": torch.tensor(row["label"], dtype=torch.float32),
        }


class TabularNet(nn.Module):
    def __init__(self, numbers=24, categories=8, levels=40, dim=8, hidden=256):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(levels, dim) for _ in range(categories)])
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
        embedded = [embedding(categories[:, i]) for i, embedding in enumerate(self.embeddings)]
        return self.mlp(torch.cat([numbers, *embedded], dim=1)).squeeze(1)


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
    parser.add_argument("--num-workers", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set = RowDataset(f"{args.data}/train.db")
    valid_set = RowDataset(f"{args.data}/valid.db")
    generator = torch.Generator().manual_seed(args.seed)
    train_loader = DataLoader(
        train_set,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.num_workers,
        pin_memory=torch.cuda.is_available(),
        generator=generator,
    )
    valid_loader = DataLoader(valid_set, batch_size=args.batch_size, num_workers=args.num_workers)

    model = TabularNet().to(device)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)
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
            running += loss.item()
        scheduler.step()
        valid_loss, accuracy = evaluate(model, valid_loader, criterion, device)
        print(
            f"epoch {epoch + 1}/{args.epochs} train loss {running / len(train_loader):.4f} "
            f"valid loss {valid_loss:.4f} valid acc {accuracy:.4f}"
        )
    print(f"final valid accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
