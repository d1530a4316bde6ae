"""Samples kept up to their first random draw: where they are divided, in trials and in the patch."""

from __future__ import annotations

import importlib
import pickle
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from autoopt import Setup
from autoopt.export.script_patch import placed
from autoopt.records import Change, Plan, Site, SiteKind, Sites
from autoopt.testing.strategies import sample_case
from autoopt_strategies.compute.rewriting.source import Refused
from autoopt_strategies.input.prepared_samples import PreparedSamples
from autoopt_strategies.input.unaugmented import KeepUnaugmented, probe, split
from scripted import REGISTRY, changed_lines, patched
from tests.strategies.stand_ins import promised

HEADER = """\
import random

import numpy as np
import torch
from torch.utils.data import Dataset


class Pictures(Dataset):
    def __init__(self, flips=True):
        self.flips, self.__dark, self.reads = flips, 3, 0

    def __len__(self):
        return 40

    def decoded(self, idx):
        self.reads += 1
        return torch.linspace(0, 1, 12).reshape(3, 4) * (idx + self.__dark)

"""
FLIPPED = '''\
    def __getitem__(self, idx):
        """A picture and its class."""
        # it is read
        picture = self.decoded(idx)
        label = idx % 2

        if self.flips and torch.rand(1).item() < 0.5:  # mirrored
            picture = picture.flip(-1)
        return {"picture": picture, "label": label}
'''
MIRRORED = "        if self.flips and torch.rand(1).item() < 0.5:  # mirrored"
SPLIT = """\
-    def __getitem__(self, idx):
-        \"\"\"A picture and its class.\"\"\"
+    @kept_by_index
+    def unaugmented(self, idx):
         # it is read
         picture = self.decoded(idx)
         label = idx % 2
+        return picture, label
+
+    def __getitem__(self, idx):
+        \"\"\"A picture and its class.\"\"\"
+        picture, label = self.unaugmented(idx)
"""
DRAWN_BY = {
    "torch's numbers": "        picture = picture + torch.randn(1)\n",
    "numpy's": "        picture = picture + np.random.rand()\n",
    "Python's": "        picture = picture + random.random()\n",
    "another name, rarely": "        if self.rng_of(idx):\n            picture = picture.flip(0)\n",
}


def imported(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch, name: str = "pictures") -> ModuleType:
    (folder / f"{name}.py").write_text(HEADER + body)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(importlib.sys.modules, name, raising=False)  # type: ignore[attr-defined]
    return importlib.import_module(name)


def drawn(dataset: Any, seed: int = 5) -> list[Any]:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    return [batch["picture"] for _ in range(2) for batch in DataLoader(dataset, batch_size=4, shuffle=True)]


@pytest.mark.parametrize("threads", [0, 4])
def test_samples_are_divided_before_the_first_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    module = imported(tmp_path, FLIPPED, monkeypatch)
    dataset = Subset(module.Pictures(), range(5, 25))
    found = probe(dataset)
    line = 1 + (HEADER + FLIPPED).splitlines().index(MIRRORED)
    assert found["where"] == {"file": "pictures.py", "function": "Pictures.__getitem__", "line": line}
    assert found["sample_bytes"] >= 48
    kept = KeepUnaugmented(line, threads)(dataset)
    read = dataset.dataset.reads
    assert all(torch.equal(one, other) for one, other in zip(drawn(dataset), drawn(kept), strict=True))
    assert dataset.dataset.reads == read + 40, "the dataset itself reads as before"
    assert kept.dataset.reads == read + 20, "the other one reads each sample of its subset once"
    assert isinstance(kept.dataset, module.Pictures)
    assert type(pickle.loads(pickle.dumps(kept)).dataset) is module.Pictures


@pytest.mark.parametrize("draw", DRAWN_BY)
def test_whoever_draws(draw: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        "    def rng_of(self, idx):\n        return False\n\n"
        f"    def __getitem__(self, idx):\n        picture = self.decoded(idx)\n        picture = picture * 2\n"
        f"{DRAWN_BY[draw]}        return picture\n"
    )
    module = imported(tmp_path, body, monkeypatch)
    text = HEADER + body
    assert probe(module.Pictures())["where"]["line"] == 1 + text.splitlines().index(DRAWN_BY[draw].splitlines()[0])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("        x = torch.rand(1)\n        return x\n", "its first statement"),
        ("        if idx < 0:\n            return None\n        return torch.rand(1)\n", "may end it"),
        ("        self.last = idx\n        x = torch.rand(1)\n        return x + self.last\n", "changes what it reads"),
        ("        x = self.decoded(idx)\n        x += torch.rand(1)\n        return x\n", "other samples"),
        ("        x = self.decoded(idx) * self.reads\n        return x + torch.rand(1)\n", "other samples"),
    ],
    ids=["from the start", "an early end", "by way of the dataset", "in place", "another one each time"],
)
def test_what_cannot_be_divided_says_why(
    body: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = imported(tmp_path, f"    def __getitem__(self, idx):\n{body}", monkeypatch)
    assert reason in probe(module.Pictures())["reason"]


def test_a_file_that_was_changed_is_refused() -> None:
    for line in (1, len(HEADER.splitlines()) + 1):
        with pytest.raises(Refused):
            split(HEADER + FLIPPED, "Pictures.__getitem__", line)


@pytest.mark.parametrize("threads", [{}, {"threads": 4}])
def test_the_patch_divides_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: dict[str, int]) -> None:
    text = HEADER + FLIPPED + "\n\nprint(sum(sample['picture'].sum() for sample in map(Pictures().__getitem__, [3])))\n"
    (tmp_path / "train.py").write_text(text)
    line = 1 + text.splitlines().index(MIRRORED)
    where = {"file": "train.py", "function": "Pictures.__getitem__", "line": line}
    setting = {"form": "unaugmented", "where": "memory", "split": where, **threads}
    change = Change(strategy="prepared_samples", setting=setting)
    sites = Sites(command=("python", "train.py"), cwd=str(tmp_path))
    after, patch = patched(tmp_path, text, change, sites=sites)
    assert [each.how for each in patch.changes] == ["patched"], patch.changes
    assert SPLIT in patch.diff or threads, patch.diff
    assert "from prepared import kept_by_index" in after
    assert "def kept_by_index(" in patch.diff
    assert ("        return read_by_threads(self, indices, threads=4)\n" in after) is bool(threads)
    assert ("def read_by_threads(" in patch.diff) is bool(threads)
    assert len([each for each in changed_lines(patch.diff) if not each.startswith("+")]) <= 3


@pytest.mark.parametrize(("dataset", "left_out"), [("Pictures", True), ("Others", False)])
def test_the_patch_leaves_out_the_workers_of_evaluations_that_read_the_same(
    tmp_path: Path, dataset: str, left_out: bool
) -> None:
    """A worker that is started for an evaluation would make kept samples once more each time."""
    made = [
        "train = DataLoader(Pictures(), batch_size=8, num_workers=2)",
        "valid = DataLoader(Pictures(False), batch_size=4, num_workers=2)",
    ]
    text = HEADER + FLIPPED + "\n\n" + "\n".join(made) + "\n"
    (tmp_path / "train.py").write_text(text)
    lines = text.splitlines()
    where = {"file": "train.py", "function": "Pictures.__getitem__", "line": 1 + lines.index(MIRRORED)}
    kinds: tuple[tuple[SiteKind, str], ...] = (("loader_training", "Pictures"), ("loader_validation", dataset))
    sites = tuple(
        Site(kind=kind, file="train.py", line=1 + lines.index(line), end_line=1 + lines.index(line), call="DataLoader",
             options={"dataset": name, "num_workers": 2})
        for (kind, name), line in zip(kinds, made, strict=True)
    )  # fmt: skip
    setting = {"form": "unaugmented", "where": "memory", "split": where}
    changes = (
        Change(strategy="workers", setting={"num_workers": 0}),
        Change(strategy="prepared_samples", setting=setting),
    )
    found = placed(
        Sites(command=("python", "train.py"), cwd=str(tmp_path), sites=sites), Plan(changes=changes), REGISTRY, "cpu"
    )
    assert [each.how for each in found.patch.changes] == ["patched", "patched"], found.patch.changes
    after = found.texts["train.py"]
    assert "train = DataLoader(Pictures(), batch_size=8, num_workers=0)" in after
    assert ("valid = DataLoader(Pictures(False), batch_size=4, num_workers=0)" in after) is left_out


def test_the_strategy_offers_it_where_samples_are_not_the_same(tmp_path: Path) -> None:
    strategy = PreparedSamples()
    where = {"file": "train.py", "function": "Pictures.__getitem__", "line": 9}
    probed = {"where": where, "sample_seconds": 0.01, "sample_bytes": 4096, "hit": 0.05}
    random_samples = {"deterministic": False, "reason": "samples are random"}

    def forms(**forms: Any) -> list[str]:
        case = sample_case(inspected={"prepared_samples": forms})
        return [setting["form"] for setting in strategy.settings(case)]

    assert "unaugmented" in forms(kept=random_samples, unaugmented=probed)
    assert "unaugmented" not in forms(kept={"deterministic": True}, unaugmented=probed)
    assert "unaugmented" not in forms(kept={**random_samples, "prefix": 1, "sample_bytes": 9}, unaugmented=probed)
    case = sample_case(inspected={"prepared_samples": {"kept": random_samples, "unaugmented": probed}})
    setting = next(each for each in strategy.settings(case) if each["form"] == "unaugmented")
    assert promised(strategy, case, setting).value > 1.0
    assert strategy.apply(Setup(), setting).dataset
    assert strategy.recipe(setting).edits[0].at == "function"
