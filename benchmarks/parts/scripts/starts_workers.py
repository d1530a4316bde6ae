"""Short epochs, each of which starts its workers anew, and a checkpoint after each."""

import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        row = torch.randn(64, generator=generator)
        return row, (row.sum() > 0).long()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train = DataLoader(Rows(), batch_size=32, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(30):
            for x, y in train:
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            torch.save(model.state_dict(), f"{folder}/model.pt")
            print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
