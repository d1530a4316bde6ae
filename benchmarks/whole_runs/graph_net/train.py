"""GIN for graph classification, in the style of PyTorch Geometric's examples."""

import argparse
import copy
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn import BatchNorm1d, Linear, ReLU, Sequential


class Data:
    """One graph."""

    def __init__(self, x=None, edge_index=None, y=None):
        self.x = x
        self.edge_index = edge_index
        self.y = y

    @property
    def num_nodes(self):
        return self.x.size(0)


class Batch(Data):
    """Many graphs as one: nodes and edges one after the other, ``batch`` tells whose a node is."""

    @classmethod
    def from_data_list(cls, graphs):
        self = cls()
        xs, edges, ys, batch = [], [], [], []
        offset = 0
        for i, graph in enumerate(graphs):
            xs.append(graph.x)
            edges.append(graph.edge_index + offset)
            ys.append(graph.y)
            batch.append(torch.full((graph.num_nodes,), i, dtype=torch.long))
            offset += graph.num_nodes
        self.x = torch.cat(xs, dim=0)
        self.edge_index = torch.cat(edges, dim=1)
        self.y = torch.cat(ys, dim=0)
        self.batch = torch.cat(batch, dim=0)
        self._num_graphs = len(graphs)
        return self

    @property
    def num_graphs(self):
        return self._num_graphs

    def to(self, device):
        for key, value in self.__dict__.items():
            if torch.is_tensor(value):
                setattr(self, key, value.to(device))
        return self


class GraphDataset(torch.utils.data.Dataset):
    """All graphs in one file: long tensors, and where each graph begins in them."""

    def __init__(self, path, indices=None):
        self.data, self.slices = torch.load(path)
        self.indices = indices if indices is not None else range(len(self.slices["y"]) - 1)

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, idx):
        idx = int(self.indices[idx])
        graph = Data()
        for key, item in self.data.items():
            start, end = self.slices[key][idx].item(), self.slices[key][idx + 1].item()
            dim = 1 if key == "edge_index" else 0
            setattr(graph, key, item.narrow(dim, start, end - start))
        return copy.copy(graph)

    def split(self, indices):
        part = copy.copy(self)
        part.indices = indices
        return part


class DataLoader(torch.utils.data.DataLoader):
    def __init__(self, dataset, batch_size=1, shuffle=False, **kwargs):
        super().__init__(dataset, batch_size, shuffle, collate_fn=Batch.from_data_list, **kwargs)


class GINConv(nn.Module):
    def __init__(self, mlp):
        super().__init__()
        self.nn = mlp
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(self, x, edge_index):
        source, target = edge_index
        messages = x[source]
        index = target.view(-1, 1).expand_as(messages)
        out = torch.zeros_like(x).scatter_add_(0, index, messages)
        return self.nn((1 + self.eps) * x + out)


def global_add_pool(x, batch, size):
    index = batch.view(-1, 1).expand_as(x)
    return x.new_zeros(size, x.size(1)).scatter_add_(0, index, x)


class GIN(nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, num_layers):
        super().__init__()
        self.convs = nn.ModuleList()
        for _ in range(num_layers):
            mlp = Sequential(
                Linear(in_channels, hidden_channels),
                BatchNorm1d(hidden_channels),
                ReLU(),
                Linear(hidden_channels, hidden_channels),
                ReLU(),
            )
            self.convs.append(GINConv(mlp))
            in_channels = hidden_channels
        self.lin1 = Linear(hidden_channels, hidden_channels)
        self.lin2 = Linear(hidden_channels, out_channels)

    def forward(self, data):
        x = data.x
        for conv in self.convs:
            x = conv(x, data.edge_index)
        x = global_add_pool(x, data.batch, data.num_graphs)
        x = self.lin1(x).relu()
        return self.lin2(x)


def train(model, loader, optimizer, device):
    model.train()
    total_loss = 0
    for data in loader:
        data = data.to(device)
        optimizer.zero_grad()
        out = model(data)
        loss = F.cross_entropy(out, data.y)
        loss.backward()
        optimizer.step()
        total_loss += loss.item() * data.num_graphs
    return total_loss / len(loader.dataset)


@torch.no_grad()
def test(model, loader, device):
    model.eval()
    correct = 0
    for data in loader:
        data = data.to(device)
        pred = model(data).argmax(dim=-1)
        correct += int((pred == data.y).sum())
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    dataset = GraphDataset(f"{args.data}/data.pt")
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(42)).tolist()
    train_dataset, test_dataset = dataset.split(order[:2000]), dataset.split(order[2000:])
    train_loader = DataLoader(train_dataset, args.batch_size, shuffle=True)
    test_loader = DataLoader(test_dataset, args.batch_size)

    model = GIN(16, args.hidden, 3, args.layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    test_accs = []
    for epoch in range(1, args.epochs + 1):
        loss = train(model, train_loader, optimizer, device)
        train_acc = test(model, train_loader, device)
        test_acc = test(model, test_loader, device)
        test_accs.append(test_acc)
        print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Train Acc: {train_acc:.4f}, Test Acc: {test_acc:.4f}")
    print(f"final test accuracy: {np.mean(test_accs[-5:]):.4f}")


if __name__ == "__main__":
    main()
