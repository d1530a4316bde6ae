"""A LightningModule: forward and loss are its own, the loop and the backward pass the Trainer's."""

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


L.seed_everything(0)
inputs = torch.randn(256, 12)
loader = DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=16, shuffle=True)
trainer = L.Trainer(max_steps=100000, accelerator="cpu", logger=False, enable_progress_bar=False)
trainer.fit(Module(), loader)
