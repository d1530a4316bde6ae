"""Kim's convolutional sentence classifier, evaluated on the whole development set every 100 steps."""

import argparse
import random
import re
from collections import Counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAD, UNK = 0, 1


def clean_str(string):
    string = re.sub(r"[^A-Za-z0-9(),!?\'\`]", " ", string)
    string = re.sub(r"\s{2,}", " ", string)
    return string.strip().lower()


def read_lines(path):
    with open(path) as f:
        return [line.rstrip("\n").split("\t") for line in f]


def build_vocab(lines, max_size):
    counter = Counter()
    for _, text in lines:
        counter.update(clean_str(text).split())
    return {word: i + 2 for i, (word, _) in enumerate(counter.most_common(max_size - 2))}


class TextDataset(Dataset):
    def __init__(self, lines, vocab, max_len):
        self.lines, self.vocab, self.max_len = lines, vocab, max_len

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, idx):
        label, text = self.lines[idx]
        tokens = clean_str(text).split()[: self.max_len]
        return [self.vocab.get(token, UNK) for token in tokens], int(label)


class Collate:
    def __init__(self, max_len):
        self.max_len = max_len

    def __call__(self, samples):
        texts = torch.full((len(samples), self.max_len), PAD, dtype=torch.long)
        labels = torch.zeros(len(samples), dtype=torch.long)
        for i, (ids, label) in enumerate(samples):
            texts[i, : len(ids)] = torch.tensor(ids)
            labels[i] = label
        return texts, labels


class TextCNN(nn.Module):
    def __init__(self, vocab_size, classes, dim=64, kernels=48, sizes=(3, 4, 5), dropout=0.5):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim, padding_idx=PAD)
        self.convs = nn.ModuleList([nn.Conv2d(1, kernels, (size, dim)) for size in sizes])
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(len(sizes) * kernels, classes)

    def forward(self, x):
        x = self.embed(x).unsqueeze(1)
        x = [F.relu(conv(x)).squeeze(3) for conv in self.convs]
        x = [F.max_pool1d(i, i.size(2)).squeeze(2) for i in x]
        return self.fc(self.dropout(torch.cat(x, 1)))


def evaluate(model, loader, device):
    model.eval()
    corrects, total_loss, size = 0, 0.0, 0
    for texts, labels in loader:
        texts, labels = texts.to(device), labels.to(device)
        logits = model(texts)
        total_loss += F.cross_entropy(logits, labels, reduction="sum").item()
        corrects += (logits.argmax(1) == labels).sum().item()
        size += len(labels)
    model.train()
    return total_loss / size, 100.0 * corrects / size


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-len", type=int, default=56)
    parser.add_argument("--vocab-size", type=int, default=4000)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--eval-interval", type=int, default=100)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_lines, dev_lines = read_lines(f"{args.data}/train.tsv"), read_lines(f"{args.data}/dev.tsv")
    vocab = build_vocab(train_lines, args.vocab_size)
    collate = Collate(args.max_len)
    train_iter = DataLoader(
        TextDataset(train_lines, vocab, args.max_len), args.batch_size, shuffle=True, collate_fn=collate
    )
    dev_iter = DataLoader(TextDataset(dev_lines, vocab, args.max_len), args.batch_size, collate_fn=collate)

    model = TextCNN(args.vocab_size, 4).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    steps, best_acc = 0, 0
    model.train()
    for epoch in range(1, args.epochs + 1):
        for texts, labels in train_iter:
            texts, labels = texts.to(device), labels.to(device)
            optimizer.zero_grad()
            logits = model(texts)
            loss = F.cross_entropy(logits, labels)
            loss.backward()
            optimizer.step()
            steps += 1
            if steps % args.log_interval == 0:
                corrects = (logits.argmax(1) == labels).sum().item()
                print(f"Batch[{steps}] - loss: {loss.item():.6f}  acc: {100.0 * corrects / len(labels):.4f}%")
            if steps % args.eval_interval == 0:
                dev_loss, dev_acc = evaluate(model, dev_iter, device)
                print(f"Evaluation - epoch {epoch} loss: {dev_loss:.6f}  dev acc: {dev_acc:.4f}%")
                if dev_acc > best_acc:
                    best_acc = dev_acc
                    torch.save(model.state_dict(), "best.pt")
    dev_loss, dev_acc = evaluate(model, dev_iter, device)
    print(f"Final dev loss: {dev_loss:.4f} acc: {dev_acc:.2f}%")
    print(f"final dev accuracy: {dev_acc:.2f}")


if __name__ == "__main__":
    main()
