"""Patched scripts run bare: what a patch calls is in the patch, and trains as it should; all of them in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from autoopt.records import Change
from modules import printed_by
from scripted import changed_lines, put, sites_in

TRAINING = """\
import math

import torch
from torch import nn

{definitions}
torch.manual_seed(0)
loader = torch.utils.data.DataLoader(torch.randn({shape}), batch_size=10)
model = {model}
optimizer = {optimizer}
for epoch in range({epochs}):
    losses = []
    for x in loader:
        loss = nn.functional.cross_entropy(model(x), (x.flatten(1).mean(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(*losses)
"""
"""Prints the losses of its last epoch."""

Losses = list[float]


def learns_as_well(before: Losses, after: Losses) -> bool:
    """With other draws of dropout."""
    return fmean(after) < 2 * fmean(before) + 0.1


def learns(before: Losses, after: Losses) -> bool:
    """0.69 by chance."""
    return fmean(after) < 0.5


def same(before: Losses, after: Losses) -> bool:
    return after == pytest.approx(before, rel=1e-5)


def script(model: str, definitions: str = "", epochs: int = 5, shape: str = "400, 16", optimizer: str = "") -> str:
    usual = "torch.optim.SGD(model.parameters(), lr=0.5)"
    parts = {"model": model, "definitions": definitions, "epochs": epochs, "shape": shape}
    return TRAINING.format(**parts, optimizer=optimizer or usual)


CALLING = script(
    "Net(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))",
    "class Net(nn.Sequential):\n    def forward(self, x):\n"
    "        return self[2](nn.functional.dropout(self[1](self[0](x)), 0.1, self.training))\n\n",
)
LAYERS = script("nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))")
ADAMW = script(
    "nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))",
    "def optimizer_of(net):\n    return torch.optim.AdamW(net.parameters(), lr=0.02)\n\n",
    epochs=3, optimizer="optimizer_of(model)",
)  # fmt: skip
CONVOLVING = script(
    "Net()",
    '''
class NewGELU(nn.Module):
    def forward(self, x):
        inner = x + 0.044715 * torch.pow(x, 3.0)
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * inner))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(1, 6, (size, 16)) for size in (2, 3)])
        self.act = NewGELU()
        self.out = nn.Linear(12, 2)

    def forward(self, x):
        x = [self.act(conv(x[:, None])).squeeze(3).amax(2) for conv in self.convs]
        return self.out(torch.cat(x, 1))

''',
    epochs=1, shape="40, 9, 16", optimizer="torch.optim.SGD(model.parameters(), lr=0.1)",
)  # fmt: skip
WRITTEN_OUT = {
    "functions": [{"file": "train.py", "module": "__main__", "function": "NewGELU.forward", "native": "gelu_tanh"}],
    "convolutions": {
        "paths": ["convs.0", "convs.1"],
        "places": [
            {
                "file": "train.py",
                "line": 1 + CONVOLVING[: CONVOLVING.index("conv(x[")].count("\n"),
                "called": "conv",
            }
        ],
    },
}
FUSED = ("fused_optimizer", {"implementation": "fused"})
UPDATE = "torch.optim.AdamW(net.parameters(), lr=0.02, fused=True)"
ROWS: dict[str, tuple[str, str, list[tuple[str, dict[str, Any]]], list[str], Callable[[Losses, Losses], bool]]] = {
    "layers": (LAYERS, "nn.Sequential(", [("native_operators", {"dropout": True})],
        ["+from prepared import draw_by_bits", "+draw_by_bits(model)"], learns_as_well),
    "functions": (CALLING, "Net(nn", [("native_operators", {"dropout": "functions"})],
        ["+from prepared import functions_by_bits", "+functions_by_bits(model)"], learns_as_well),
    "muon": (ADAMW, "nn.Sequential(", [FUSED, ("muon", {"besides": [4], "factor": 2.0})],
        ["+    return matrices_by_muon(", f"+        {UPDATE}, besides=(4,), factor=2", "+    )"], learns),
    "lamb": (ADAMW, "nn.Sequential(", [FUSED, ("rates_by_layer", {"rule": "lamb", "by": 2.0})],
        [f"+    return lamb({UPDATE}, 2)"], learns),
    "operators": (CONVOLVING, "Net()", [("native_operators", WRITTEN_OUT)], ["+from prepared import convolved",
        '+        return nn.functional.gelu(x, approximate="tanh")',
        "+        x = [self.act(convolved(conv, x[:, None])).squeeze(3).amax(2) for conv in self.convs]"], same),
}  # fmt: skip
"""A script, its model's call, what is changed, lines of the patch, and what holds of the losses before and after."""


def test_they_train_as_they_should(tmp_path: Path) -> None:
    for name, (text, model, changes, lines, _) in ROWS.items():
        plain, patched = tmp_path / name, tmp_path / name / "patched"
        patched.mkdir(parents=True)
        sites = sites_in(plain, text, model=model)
        found = put(sites, *(Change(strategy=strategy, setting=setting) for strategy, setting in changes))
        assert [change.how for change in found.changes] == ["patched"] * len(changes), name
        assert [line for line in changed_lines(found.patch.diff) if line in lines] == lines, name
        assert "autoopt" not in found.texts["prepared.py"], name
        for file, made in found.texts.items():
            (patched / file).write_text(made)
    printed = printed_by(*(tmp_path / name / which for name in ROWS for which in (".", "patched")))
    losses = [[float(word) for word in text.split()] for text in printed]
    for (name, row), before, after in zip(ROWS.items(), losses[::2], losses[1::2], strict=True):
        assert row[-1](before, after), (name, before, after)
