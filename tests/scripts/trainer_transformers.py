"""The loop is a library's: its Trainer has the loaders, the optimizer and the evaluations."""

import torch
from transformers import Trainer, TrainingArguments
from transformers.utils import logging


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))

    def forward(self, inputs, labels=None):
        logits = self.body(inputs)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


logging.disable_progress_bar()
torch.manual_seed(0)
inputs = torch.randn(256, 12)
data = [{"inputs": row, "labels": int(row.sum() > 0)} for row in inputs]
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=16,
    max_steps=100000,
    report_to=[],
    use_cpu=True,
)
trainer = Trainer(model=Net(), args=arguments, train_dataset=data)
trainer.train()
