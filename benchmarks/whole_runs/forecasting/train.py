"""Long-term forecasting by a decomposition and two linear layers, laid out as experiments usually are."""

import argparse
import random
import time

import numpy as np
import pandas as pd
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class StandardScaler:
    def fit(self, data):
        self.mean, self.std = data.mean(0), data.std(0)

    def transform(self, data):
        return (data - self.mean) / self.std


class DatasetHour(Dataset):
    def __init__(self, path, flag, size):
        self.seq_len, self.label_len, self.pred_len = size
        frame = pd.read_csv(path)
        n_train, n_test = int(len(frame) * 0.7), int(len(frame) * 0.15)
        n_val = len(frame) - n_train - n_test
        begins = {"train": 0, "val": n_train - self.seq_len, "test": len(frame) - n_test - self.seq_len}
        ends = {"train": n_train, "val": n_train + n_val, "test": len(frame)}
        values = frame[frame.columns[1:]].values
        scaler = StandardScaler()
        scaler.fit(values[:n_train])
        data = scaler.transform(values)
        stamp = pd.to_datetime(frame["date"])
        marks = np.stack(
            [stamp.dt.month / 12 - 0.5, stamp.dt.day / 31 - 0.5, stamp.dt.weekday / 6 - 0.5, stamp.dt.hour / 23 - 0.5],
            1,
        )
        self.data_x = data[begins[flag] : ends[flag]]
        self.data_y = data[begins[flag] : ends[flag]]
        self.data_stamp = marks[begins[flag] : ends[flag]]

    def __getitem__(self, index):
        s_begin = index
        s_end = s_begin + self.seq_len
        r_begin = s_end - self.label_len
        r_end = r_begin + self.label_len + self.pred_len
        seq_x = self.data_x[s_begin:s_end]
        seq_y = self.data_y[r_begin:r_end]
        return seq_x, seq_y, self.data_stamp[s_begin:s_end], self.data_stamp[r_begin:r_end]

    def __len__(self):
        return len(self.data_x) - self.seq_len - self.pred_len + 1


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
        self.model = Model(args.seq_len, args.pred_len).float().to(self.device)

    def get_data(self, flag):
        args = self.args
        dataset = DatasetHour(f"{args.data}/ETTx.csv", flag, (args.seq_len, args.label_len, args.pred_len))
        loader = DataLoader(
            dataset,
            batch_size=args.batch_size,
            shuffle=flag == "train",
            num_workers=args.num_workers,
            drop_last=True,
        )
        return dataset, loader

    def process(self, batch_x, batch_y):
        batch_x = batch_x.float().to(self.device)
        batch_y = batch_y.float().to(self.device)
        outputs = self.model(batch_x)[:, -self.args.pred_len :, :]
        return outputs, batch_y[:, -self.args.pred_len :, :]

    def vali(self, loader, criterion):
        total_loss = []
        self.model.eval()
        with torch.no_grad():
            for batch_x, batch_y, _, _ in loader:
                pred, true = self.process(batch_x, batch_y)
                total_loss.append(criterion(pred.detach().cpu(), true.detach().cpu()).item())
        self.model.train()
        return np.average(total_loss)

    def train(self):
        args = self.args
        _, train_loader = self.get_data("train")
        _, vali_loader = self.get_data("val")
        _, test_loader = self.get_data("test")
        model_optim = optim.Adam(self.model.parameters(), lr=args.learning_rate)
        criterion = nn.MSELoss()
        for epoch in range(args.train_epochs):
            train_loss = []
            self.model.train()
            epoch_time = time.time()
            for i, (batch_x, batch_y, _, _) in enumerate(train_loader):
                model_optim.zero_grad()
                outputs, batch_y = self.process(batch_x, batch_y)
                loss = criterion(outputs, batch_y)
                train_loss.append(loss.item())
                if (i + 1) % 100 == 0:
                    print(f"\titers: {i + 1}, epoch: {epoch + 1} | loss: {loss.item():.7f}")
                loss.backward()
                model_optim.step()
            print(f"Epoch: {epoch + 1} cost time: {time.time() - epoch_time:.1f}")
            vali_loss = self.vali(vali_loader, criterion)
            test_loss = self.vali(test_loader, criterion)
            print(
                f"Epoch: {epoch + 1} | Train Loss: {np.average(train_loss):.7f} Vali Loss: {vali_loss:.7f} "
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
    parser.add_argument("--num_workers", type=int, default=10)
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
