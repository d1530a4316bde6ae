"""Texts padded to 256 tokens, most of which are padding."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS, LENGTH, WIDTH = 8, 256, 96


class Texts(Dataset):
    def __len__(self):
        return 768

    def __getitem__(self, index):
        length = 8 + index * 37 % 56
        ids = torch.zeros(LENGTH, dtype=torch.long)
        ids[:length] = 1 + (torch.arange(length) * 13 + index) % 999
        mask = torch.zeros(LENGTH, dtype=torch.long)
        mask[:length] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": index % 2}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, input_ids, attention_mask):
        x, mask = self.embed(input_ids), attention_mask.unsqueeze(-1).float()
        for layer in self.layers:
            x = x + layer(x)
        return self.head((x * mask).sum(1) / mask.sum(1))


torch.manual_seed(0)
loader = DataLoader(Texts(), batch_size=16, shuffle=True)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(EPOCHS):
    for batch in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch["input_ids"], batch["attention_mask"]), batch["labels"])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
