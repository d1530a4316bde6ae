"""A neural ODE learns a spiral from pieces of its trajectories; the solver is Runge and Kutta's, written out."""

import argparse
from itertools import pairwise

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim


def rk4_step(func, t, dt, y):
    k1 = func(t, y)
    k2 = func(t + dt / 3, torch.add(y, k1, alpha=dt / 3))
    k3 = func(t + dt * 2 / 3, y.add(k2, alpha=dt).sub(k1, alpha=dt / 3))
    k4 = func(t + dt, torch.add(y, k1 - k2 + k3, alpha=dt))
    return torch.add(y, k1.add(k2 + k3, alpha=3).add_(k4), alpha=dt * 0.125)


def odeint(func, y0, t):
    """Values at the times ``t``, one step of the three-eighths rule between two of them."""
    solution = [y0]
    times = t.tolist()
    for now, then in pairwise(times):
        solution.append(rk4_step(func, now, then - now, solution[-1]))
    return torch.stack(solution)


class Spiral(nn.Module):
    def __init__(self):
        super().__init__()
        self.true_A = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])

    def forward(self, t, y):
        return torch.mm(y**3, self.true_A)


class ODEFunc(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 2))
        for m in self.net.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, mean=0, std=0.1)
                nn.init.constant_(m.bias, val=0)

    def forward(self, t, y):
        first, _, second = self.net
        return F.linear(F.linear(y * y * y, first.weight, first.bias).tanh(), second.weight, second.bias)


def get_batch(true_y, t, batch_time, batch_size, device):
    """Pieces of the trajectories: starts, their times, and what follows each start."""
    rows = torch.randint(true_y.shape[1], (batch_size,))
    starts = torch.randint(true_y.shape[0] - batch_time, (batch_size,))
    batch_y = true_y[starts + torch.arange(batch_time).unsqueeze(1), rows]
    return batch_y[0].to(device), t[:batch_time].to(device), batch_y.to(device)


def evaluate(func, test_y0, test_y, t):
    """Mean absolute error of the whole trajectories from the test's starts."""
    with torch.no_grad():
        return torch.mean(torch.abs(odeint(func, test_y0, t) - test_y)).item()  # all trajectories at once


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data", help="unused; every script of this folder takes it")
    parser.add_argument("--niters", "--steps", type=int, default=300)
    parser.add_argument("--data_size", type=int, default=300)
    parser.add_argument("--batch_time", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=50)
    parser.add_argument("--test_freq", type=int, default=20)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)  # products of 64 rows are too small to share
    torch.manual_seed(args.seed)
    t = torch.linspace(0.0, 7.5, args.data_size).to(device)
    y0 = torch.cat([torch.tensor([[2.0, 0.0]]), torch.rand(15, 2) * 2 - 1]).to(device)
    test_y0 = (torch.rand(8, 2) * 2 - 1).to(device)
    with torch.no_grad():
        true_y = odeint(Spiral().to(device), y0, t)
        test_y = odeint(Spiral().to(device), test_y0, t)

    func = ODEFunc(args.hidden).to(device)
    optimizer = optim.Adam(func.parameters(), lr=args.lr, fused=True)
    running = 0.0
    for itr in range(1, args.niters + 1):
        optimizer.zero_grad()
        batch_y0, batch_t, batch_y = get_batch(true_y, t, args.batch_time, args.batch_size, device)
        pred_y = odeint(func, batch_y0, batch_t)
        loss = torch.mean(torch.abs(pred_y - batch_y))
        loss.backward()
        optimizer.step()
        running = 0.97 * running + 0.03 * loss.detach()
        if itr % args.test_freq == 0 or itr == args.niters:
            test_loss = evaluate(func, test_y0, test_y, t)
            print(f"Iter {itr:04d} | Loss {running:.6f} | Test Loss {test_loss:.6f}")
    print(f"final test loss: {test_loss:.6f}")


if __name__ == "__main__":
    main()
