"""Long-term forecasting by a decomposition and two linear layers, laid out as experiments usually are."""

import argparse
import random
import time

import numpy as np
import pandas as pd
import torch
from torch import nn, optim
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler


class StandardScaler:
    def fit(self, data):
        self.mean, self.std = data.mean(0), data.std(0)

    def transform(self, data):
        return (data - self.mean) / self.std


class DatasetHour(Dataset):
    """Windows of the series, cut out of one tensor for a whole batch of indices."""

    def __init__(self, frame, flag, size):
        self.seq_len, self.label_len, self.pred_len = size
        n_train, n_test = int(len(frame) * 0.7), int(len(frame) * 0.15)
        n_val = len(frame) - n_train - n_test
        begins = {"train": 0, "val": n_train - self.seq_len, "test": len(frame) - n_test - self.seq_len}
        ends = {"train": n_train, "val": n_train + n_val, "test": len(frame)}
        values = frame[frame.columns[1:]].values
        scaler = StandardScaler()
        scaler.fit(values[:n_train])
        data = scaler.transform(values)
        part = torch.from_numpy(data[begins[flag] : ends[flag]]).float()
        self.windows = part.unfold(0, self.seq_len + self.pred_len, 1).transpose(1, 2)

    def __getitem__(self, index):
        window = self.windows[index]
        return window[:, : self.seq_len], window[:, self.seq_len :]

    def __len__(self):
        return len(self.windows)


class MovingAverage(nn.Module):
    def __init__(self, kernel_size):
        super().__init__()
        self.kernel_size = kernel_size
        self.avg = nn.AvgPool1d(kernel_size=kernel_size, stride=1, padding=0)

    def forward(self, x):
        front = x[:, 0:1, :].repeat(1, (self.kernel_size - 1) // 2, 1)
        end = x[:, -1:, :].repeat(1, (self.kernel_size - 1) // 2, 1)
        x = torch.cat([front, x, end], dim=1)
        return self.avg(x.permute(0, 2, 1)).permute(0, 2, 1)


class Model(nn.Module):
    def __init__(self, seq_len, pred_len):
        super().__init__()
        self.moving_avg = MovingAverage(25)
        self.seasonal = nn.Linear(seq_len, pred_len)
        self.trend = nn.Linear(seq_len, pred_len)

    def forward(self, x):
        trend = self.moving_avg(x)
        seasonal = (x - trend).permute(0, 2, 1)
        out = self.seasonal(seasonal) + self.trend(trend.permute(0, 2, 1))
        return out.permute(0, 2, 1)


class Exp:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.frame = pd.read_csv(f"{args.data}/ETTx.csv")
        self.model = Model(args.seq_len, args.pred_len).float().to(self.device)

    def get_data(self, flag):
        args = self.args
        dataset = DatasetHour(self.frame, flag, (args.seq_len, args.label_len, args.pred_len))
        if flag == "train":
            batches = BatchSampler(RandomSampler(dataset), args.batch_size, drop_last=True)
        else:  # the windows that whole batches hold, as before, in batches of 1024
            seen = range(len(dataset) // args.batch_size * args.batch_size)
            batches = BatchSampler(SequentialSampler(seen), 1024, drop_last=False)
        return dataset, DataLoader(dataset, sampler=batches, batch_size=None)

    def process(self, batch_x, batch_y):
        return self.model(batch_x.to(self.device)), batch_y.to(self.device)

    def vali(self, loader, criterion):
        total_loss, count = 0.0, 0
        self.model.eval()
        with torch.no_grad():
            for batch_x, batch_y in loader:
                pred, true = self.process(batch_x, batch_y)
                total_loss += criterion(pred, true).item() * len(batch_x)
                count += len(batch_x)
        self.model.train()
        return total_loss / count

    def train(self):
        args = self.args
        _, train_loader = self.get_data("train")
        _, vali_loader = self.get_data("val")
        _, test_loader = self.get_data("test")
        model_optim = optim.Adam(self.model.parameters(), lr=args.learning_rate, fused=True)
        criterion = nn.MSELoss()
        for epoch in range(args.train_epochs):
            train_loss = []
            self.model.train()
            epoch_time = time.time()
            for i, (batch_x, batch_y) in enumerate(train_loader):
                model_optim.zero_grad()
                outputs, batch_y = self.process(batch_x, batch_y)
                loss = criterion(outputs, batch_y)
                train_loss.append(loss.detach())
                if (i + 1) % 100 == 0:
                    print(f"\titers: {i + 1}, epoch: {epoch + 1} | loss: {loss.item():.7f}")
                loss.backward()
                model_optim.step()
            print(f"Epoch: {epoch + 1} cost time: {time.time() - epoch_time:.1f}")
            vali_loss = self.vali(vali_loader, criterion)
            test_loss = self.vali(test_loader, criterion)
            mean_loss = torch.stack(train_loss).mean().item()
            print(
                f"Epoch: {epoch + 1} | Train Loss: {mean_loss:.7f} Vali Loss: {vali_loss:.7f} "
                f"Test Loss: {test_loss:.7f}"
            )
            for group in model_optim.param_groups:
                group["lr"] = args.learning_rate * 0.8**epoch
        return test_loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--seq_len", type=int, default=96)
    parser.add_argument("--label_len", type=int, default=48)
    parser.add_argument("--pred_len", type=int, default=24)
    parser.add_argument("--train_epochs", "--epochs", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=2021)
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    test_loss = Exp(args).train()
    print(f"final test mse: {test_loss:.5f}")


if __name__ == "__main__":
    main()
