"""Policy gradients in one file: what is trained on next depends on the weights."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
value = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
groups = [{"params": policy.parameters()}, {"params": value.parameters(), "lr": 0.02}]
optimizer = torch.optim.Adam(groups, lr=0.01)
pushes = torch.randn(2, 4)
state = torch.randn(64, 4)
for iteration in range(int(sys.argv[1])):
    states, actions, rewards = [], [], []
    for _ in range(8):
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=policy(state)).sample()
        states.append(state)
        actions.append(action)
        state = 0.9 * state + 0.5 * pushes[action] + 0.2 * torch.randn_like(state)
        rewards.append(-state.square().sum(1))
    x, taken, gain = torch.cat(states), torch.cat(actions), torch.cat(rewards)
    gain = (gain - gain.mean()) / gain.std()
    order = torch.randperm(len(x))
    for part in order.split(64):
        optimizer.zero_grad()
        chosen = F.cross_entropy(policy(x[part]), taken[part], reduction="none")
        told = value(x[part]).squeeze(1)
        loss = ((gain[part] - told.detach()) * chosen).mean() + F.mse_loss(told, gain[part])
        loss.backward()
        optimizer.step()
    print(f"iteration {iteration} loss {loss.item():.4f}")
