"""Five trainings for a cross-validation, each of which reads rows of a table one by one in every epoch."""

import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import KFold
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS = 5


class Rows(Dataset):
    def __init__(self, table):
        self.table = table.reset_index(drop=True)

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index):
        row = self.table.iloc[index]
        return torch.tensor(row.drop("wanted").values, dtype=torch.float32), torch.tensor(row["wanted"] > 0).float()


draw = np.random.default_rng(0)
table = pd.DataFrame(draw.normal(size=(4000, 12)), columns=[f"column {number}" for number in range(12)])
table["wanted"] = table["column 0"] * table["column 1"] + table["column 2"] + 0.3 * draw.normal(size=4000)
folds, found = KFold(5, shuffle=True, random_state=0), []
for fold, (some, others) in enumerate(folds.split(table)):
    torch.manual_seed(fold)
    train = DataLoader(Rows(table.iloc[some]), batch_size=64, shuffle=True)
    valid = DataLoader(Rows(table.iloc[others]), batch_size=64)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(EPOCHS):
        model.train()
        for x, y in train:
            loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = [((model(x).squeeze(1) > 0) == y.bool()).float() for x, y in valid]
        found.append(torch.cat(right).mean().item())
        print(f"fold {fold} epoch {epoch} valid accuracy {found[-1]:.4f}")
print(f"mean accuracy {np.mean(found[EPOCHS - 1 :: EPOCHS]):.4f}")
