"""Trainings that have the form which the first word names; the second one is how many steps they take."""

import itertools
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

torch.manual_seed(1)
HOW, STEPS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100000
x = torch.randn(96, 10)
y = (x.sum(1) > 0).long()
net = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 2))
sgd = torch.optim.SGD(net.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)


def step(inputs, labels, model=net, optimizer=sgd):
    optimizer.zero_grad()
    loss = cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss


def epochs(read=loader):
    done = 0
    while done < STEPS:
        for batch in read:
            yield batch
            done += 1
            if done >= STEPS:
                return


@dataclass
class Pair:
    inputs: torch.Tensor
    labels: torch.Tensor


class Wrapped:
    """A loader of its own around torch's."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __iter__(self):
        for inputs, labels in self.inner:
            yield Pair(inputs, labels)


class Words:
    """An encoder that is not a module, and texts as the batch."""

    def __call__(self, texts):
        return torch.tensor([[float(len(text) + place) for place in range(10)] for text in texts])


class Silent(IterableDataset):
    """Gives objects that do not tell how many samples they hold."""

    def __iter__(self):
        for start in range(0, 96, 12):
            yield SimpleNamespace(grid=lambda start=start: (x[start : start + 12], y[start : start + 12]))


def evaluates_long():
    for number, (inputs, labels) in enumerate(epochs()):
        step(inputs, labels)
        if number % 8 == 7:
            net.eval()
            with torch.no_grad():
                for _ in range(60):
                    right = sum((net(a).argmax(1) == b).sum().item() for a, b in loader)
            net.train()
            print(f"accuracy {right / 96:.3f}")


def tells_nothing():
    for inputs, labels in epochs():
        step(inputs, labels)


def forks():
    for number, (inputs, labels) in enumerate(epochs()):
        step(inputs, labels)
        if number % 8 == 7:
            child = os.fork()
            if child == 0:
                with torch.no_grad():
                    net(x)
                os._exit(0)
            os.waitpid(child, 0)
            subprocess.run([sys.executable, "-c", "print('a plot')"], check=True)


def leaves():
    tells_nothing()
    sys.exit(0)


def leaves_with_words():
    tells_nothing()
    sys.exit("done: see model.pt")


def leaves_within():
    for number, (inputs, labels) in enumerate(epochs()):
        step(inputs, labels)
        if number >= 40:
            sys.exit(0)


def fails_after():
    tells_nothing()
    raise RuntimeError("no plot without a display")


def asks_after():
    tells_nothing()
    if input("keep it? ") == "y":
        torch.save(net.state_dict(), "kept.pt")


def in_two():
    """A pretraining with another model, then what is to be measured too."""
    decoder = nn.Linear(24, 10)
    encoder = nn.Sequential(net[0], nn.Tanh())
    adam = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    for _ in range(3):
        for (inputs,) in DataLoader(TensorDataset(x), batch_size=8):
            adam.zero_grad()
            mse_loss(decoder(encoder(inputs)), inputs).backward()
            adam.step()
    tells_nothing()


def compiled():
    model = torch.compile(net, backend="eager")
    for inputs, labels in epochs():
        step(inputs, labels, model)


def taken_by_hand():
    iterator = iter(loader)
    for _ in range(STEPS):
        try:
            inputs, labels = next(iterator)
        except StopIteration:
            iterator = iter(loader)
            inputs, labels = next(iterator)
        step(inputs, labels)


def cycled():
    for inputs, labels in itertools.islice(itertools.cycle(loader), STEPS):
        step(inputs, labels)


def wrapped():
    for batch in epochs(Wrapped(loader)):
        step(batch.inputs, batch.labels)


def texts():
    words = DataLoader([("word " * (n % 7), n % 2) for n in range(96)], batch_size=12, shuffle=True)
    encode = Words()
    for batch, labels in epochs(words):
        step(encode(batch), labels)


def silent():
    for batch in epochs(DataLoader(Silent(), batch_size=None)):
        step(*batch.grid())


def nothing_counted():
    """Parameters without any input: a field that is fitted to what its own points say."""
    field = Field()
    adam = torch.optim.Adam(field.parameters(), lr=1e-2)
    for _ in range(STEPS):
        adam.zero_grad()
        field().backward()
        adam.step()


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.values = nn.Parameter(torch.randn(32, 32))

    def forward(self):
        return (self.values[1:] - self.values[:-1]).pow(2).mean() + (self.values[0] - 1).pow(2).mean()


def physics():
    """Points are drawn in the step; the loss has a derivative of the model in it."""
    model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        points = torch.rand(64, 1, requires_grad=True)
        out = model(points)
        (slope,) = torch.autograd.grad(out.sum(), points, create_graph=True)
        loss = mse_loss(slope, -out) + (model(torch.zeros(1, 1)) - 1).pow(2).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()


def ode():
    """A neural ODE: the model is called as often as its solver likes."""
    model = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 2))
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number in range(STEPS):
        state, steps = torch.randn(20, 2), 4 + number % 3
        for place in range(steps):
            time_ = torch.full((20, 1), place / steps)
            state = state + model(torch.cat([time_, state], 1)) / steps
        loss = state.pow(2).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()


def policy():
    """Proximal policy optimization: rollouts without gradients, then epochs over their minibatches."""
    actor, critic = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 2)), nn.Linear(4, 1)
    adam = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
    done = 0
    while done < STEPS:
        states, actions, rewards = [], [], []
        state = torch.randn(4)
        for _ in range(64):
            with torch.no_grad():
                action = torch.distributions.Categorical(logits=actor(state)).sample()
            states.append(state)
            actions.append(action)
            rewards.append(float(state.sum()) * (1 if action else -1))
            state = roll(state, action)
        states, actions = torch.stack(states), torch.stack(actions)
        returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0) / 64
        for _ in range(4):
            for rows in torch.randperm(64).split(16):
                advantage = returns[rows] - critic(states[rows]).squeeze(1)
                chances = torch.distributions.Categorical(logits=actor(states[rows])).log_prob(actions[rows])
                loss = -(chances * advantage.detach()).mean() + advantage.pow(2).mean()
                adam.zero_grad()
                loss.backward()
                adam.step()
                done += 1


def roll(state, action):
    time.sleep(0.0002)  # the world takes its time
    return 0.9 * state + 0.1 * torch.randn(4) * (1 + action)


globals()[HOW]()
