"""A graph network: a loader and a batch class of its own, in the shape of PyTorch Geometric's."""

import weakref

import torch
from torch import nn
from torch.utils.data import DataLoader


class Graph:
    def __init__(self, **values):
        self._store = dict(values)
        self._owner = weakref.ref(self)  # as stores have it

    def __getattr__(self, name):
        store = self.__dict__.get("_store", {})
        if name not in store:
            raise AttributeError(name)
        return store[name]

    def __getstate__(self):
        return {"_store": self._store}

    def __setstate__(self, state):
        self.__dict__.update(state, _owner=weakref.ref(self))

    def keys(self):
        return self._store.keys()

    def __len__(self):
        return len(self._store)

    def to(self, device):
        return type(self)(**{key: value.to(device) for key, value in self._store.items()})


class Batch(Graph):
    @property
    def num_graphs(self):
        return len(self.y)


def collated(graphs):
    starts = torch.tensor([0, *(len(graph.x) for graph in graphs)]).cumsum(0)
    return Batch(
        x=torch.cat([graph.x for graph in graphs]),
        edges=torch.cat([graph.edges + start for graph, start in zip(graphs, starts)], dim=1),
        batch=torch.cat([torch.full((len(graph.x),), number) for number, graph in enumerate(graphs)]),
        y=torch.stack([graph.y for graph in graphs]),
    )


class GraphLoader(DataLoader):
    def __init__(self, dataset, batch_size=1, shuffle=False, **options):
        super().__init__(dataset, batch_size, shuffle, collate_fn=collated, **options)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 32), nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, data):
        x = self.first(data.x).relu()
        source, target = data.edges
        x = self.second(torch.zeros_like(x).index_add_(0, target, x[source])).relu()
        pooled = torch.zeros(data.num_graphs, 32, device=x.device).index_add_(0, data.batch, x)
        return self.head(pooled)


def graph(number):
    draw = torch.Generator().manual_seed(number)
    nodes = 4 + number % 5
    x = torch.randn(nodes, 6, generator=draw)
    return Graph(x=x, edges=torch.randint(nodes, (2, 3 * nodes), generator=draw), y=(x.sum() > 0).long())


if __name__ == "__main__":
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    graphs = [graph(number) for number in range(200)]
    train, test = GraphLoader(graphs[:160], 32, True), GraphLoader(graphs[160:], 32)
    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(400):
        model.train()
        total = 0
        for data in train:
            data = data.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data), data.y)
            loss.backward()
            optimizer.step()
            total += loss.item() * data.num_graphs
        model.eval()
        right = 0
        with torch.no_grad():
            for data in test:
                data = data.to(device)
                right += int((model(data).argmax(1) == data.y).sum())
        print(f"Epoch {epoch} loss {total / 160:.4f} test acc {right / 40:.4f}")
