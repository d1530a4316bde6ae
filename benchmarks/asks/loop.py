"""A worked loop: ten edits by a scripted agent, each judged by ``autoopt judge`` and kept or taken back.

Three are true gains, five do nothing, two are cheats.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autoopt.cli.judge import CODES
from benchmarks.asks import git

SCRIPT = '''"""Classifies rows that are made from text, with a small network."""
import sys
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

LINES = [",".join(str((i * 37 + j * 11) % 97) for j in range(64)) for i in range(2048)]


class Rows(Dataset):
    def __len__(self):
        return len(LINES)

    def __getitem__(self, index):
        values = [float(word) / 97 for word in LINES[index].split(",")]
        return torch.tensor(values), index % 4


def norm(model):
    total = 0.0
    for p in model.parameters():
        for row in p.detach().reshape(-1, p.shape[-1]):
            total += float(row.square().sum())
    return total ** 0.5


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
loader = DataLoader(Rows(), batch_size=64, shuffle=True)
largest = 0.0
for epoch in range(int(sys.argv[1])):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        largest = max(largest, norm(model))
        hits = sum(int(a) == int(b) for a, b in zip(model(x).argmax(1), y))
    print(f"epoch {epoch} loss {loss.item():.4f} norm {largest:.2f} hits {hits}", flush=True)
'''

STEP = "        optimizer.step()\n"
EDITS: tuple[tuple[str, str, str, str], ...] = (
    ("gain", "parse every row once",
     '''        values = [float(word) / 97 for word in LINES[index].split(",")]
        return torch.tensor(values), index % 4
''',
     '''        return PARSED[index], index % 4


PARSED = [torch.tensor([float(word) / 97 for word in line.split(",")]) for line in LINES]
'''),
    ("nothing", "add a comment", "torch.manual_seed(0)\n", "# one seed for all\ntorch.manual_seed(0)\n"),
    ("cheat", "every other step leaves out its work after a warm-up",
     "        loss.backward()\n        optimizer.step()\n",
     "        calls = globals().get('calls', 0) + 1\n        if calls > 300 and calls % 2:\n"
     "            loss = loss.detach().requires_grad_()\n        loss.backward()\n        optimizer.step()\n"),
    ("nothing", "name the gradients' reset", "optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=True)"),
    ("gain", "the norm of a parameter at once",
     "        for row in p.detach().reshape(-1, p.shape[-1]):\n            total += float(row.square().sum())\n",
     "        total += float(p.detach().square().sum())\n"),
    ("nothing", "rename a variable", "largest", "highest"),
    ("nothing", "pin no memory, explicitly", "shuffle=True)", "shuffle=True, pin_memory=False)"),
    ("cheat", "half of each batch", "F.cross_entropy(model(x), y)", "F.cross_entropy(model(x[:32]), y[:32])"),
    ("gain", "count hits without a loop",
     "sum(int(a) == int(b) for a, b in zip(model(x).argmax(1), y))", "int((model(x).argmax(1) == y).sum())"),
    ("nothing", "import in another order", "import sys\nimport torch\n", "import torch\nimport sys\n"),
)  # fmt: skip
"""What each is, its message, and the text that it puts in the place of another."""


def loop(seconds: float) -> dict[str, Any]:
    """The transcript: each edit with what it is, the judge's line, and what the agent did."""
    asks: list[dict[str, Any]] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="autoopt-loop-") as above:
        folder, session = Path(above) / "work", Path(above) / "session.json"
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT)
        git(folder, "init", "-q", "-b", "main")
        git(folder, "add", "train.py")
        git(folder, "commit", "-qm", "the script as it is")
        for kind, message, old, new in EDITS:
            text = (folder / "train.py").read_text()
            assert old in text, message
            (folder / "train.py").write_text(text.replace(old, new))
            words = ["judge", "--baseline", "HEAD", "--seconds", f"{seconds:g}", "--session", str(session), "--quiet"]
            done = subprocess.run(
                [sys.executable, "-P", "-m", "autoopt", *words, "--", sys.executable, "train.py", "100000"],
                cwd=folder, capture_output=True, text=True, check=False,
            )  # fmt: skip
            answer = json.loads(done.stdout) if done.stdout.strip() else {"verdict": "error", "reason": done.stderr}
            assert done.returncode == CODES.get(answer["verdict"], done.returncode)
            kept = answer["verdict"] == "keep"
            git(folder, *(("commit", "-qam", message) if kept else ("checkout", "-q", "--", "train.py")))
            asks.append({"kind": kind, "edit": message, **answer, "exit_code": done.returncode})
            sys.stderr.write(f"{kind}: {message}: {answer['verdict']}: {answer['reason']}\n")
    return {"asks": asks, "seconds_each": seconds, "seconds": time.monotonic() - began}
