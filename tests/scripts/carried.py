"""A language model whose recurrent state is handed from step to step; batches are slices of one text."""

import sys

import torch
from torch import nn

torch.manual_seed(1)
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
LENGTH, COUNT = 8, 16
text = torch.randint(0, 32, (COUNT, 4000))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 24)
        self.rnn = nn.LSTM(24, 24, batch_first=True)
        self.head = nn.Linear(24, 32)

    def forward(self, tokens, state):
        seen, state = self.rnn(self.embed(tokens), state)
        return self.head(seen), state


def get_batch(place):
    return text[:, place : place + LENGTH], text[:, place + 1 : place + LENGTH + 1]


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
state = (torch.zeros(1, COUNT, 24), torch.zeros(1, COUNT, 24))
for step in range(STEPS):
    tokens, wanted = get_batch(step * LENGTH % 3900)
    state = tuple(part.detach() for part in state)
    optimizer.zero_grad()
    output, state = net(tokens, state)
    loss = nn.functional.cross_entropy(output.flatten(0, 1), wanted.flatten())
    loss.backward()
    optimizer.step()
print("done")
