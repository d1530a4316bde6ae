"""A small net learns what a large one answers, which is asked for the same pictures in every epoch."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 10


def net(width, depth):
    layers = [nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


torch.manual_seed(0)
templates = torch.randn(10, 3, 32, 32)
labels = torch.randint(0, 10, (2560,))
pictures = templates[labels] + 2.0 * torch.randn(2560, 3, 32, 32)
train = DataLoader(TensorDataset(pictures[:2048], labels[:2048]), batch_size=64, shuffle=True)
valid = DataLoader(TensorDataset(pictures[2048:], labels[2048:]), batch_size=256)
teacher, student = net(64, 4).eval(), net(16, 1)
optimizer = torch.optim.Adam(student.parameters(), lr=2e-3)
for epoch in range(EPOCHS):
    student.train()
    for inputs, classes in train:
        with torch.no_grad():
            answers = teacher(inputs)
        outputs = student(inputs)
        loss = F.cross_entropy(outputs, classes) + F.mse_loss(outputs, answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    student.eval()
    with torch.no_grad():
        right = sum((student(inputs).argmax(1) == classes).sum().item() for inputs, classes in valid)
    print(f"epoch {epoch} valid accuracy {right / 512:.4f}")
