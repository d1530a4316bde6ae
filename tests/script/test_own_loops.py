"""Functions that a script without a loader calls for the same in every epoch: found, kept, and decorated in a patch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoopt.records import Change, Plan
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_case
from scripted import REGISTRY, patched
from tests.script.conftest import StartScript, block_of
from tests.strategies.stand_ins import promised

STRATEGY = REGISTRY["prepared_samples"]
TEXT = '''"""Graphs that are prepared anew in every epoch, by the script's own lines."""

import random

import torch
from torch import nn


def work():
    for _ in range(30000):
        pass


def features(graph):
    work()
    return torch.tensor(graph["values"])


def joined(graphs):
    return torch.stack([features(graph) for graph in graphs])


def noisy(graph):
    work()
    return random.random()


def scored(graph):
    work()
    with torch.no_grad():
        return model(features(graph)).item()


def counted(graph):
    work()
    graph["count"] += 1
    return graph["count"]


def in_place(graph):
    work()
    return list(graph["text"])


class Words:
    known = {letter: index for index, letter in enumerate("abc")}

    def encode(self, text, offset=0):
        work()
        return [self.known[letter] + offset for letter in text]


random.seed(0)
torch.manual_seed(0)
graphs = [
    {"values": [random.random() for _ in range(4)], "text": random.choice("abc") * 2, "count": 0} for _ in range(16)
]
words = Words()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10000):
    for begin in range(0, 16, 4):
        batch = graphs[begin : begin + 4]
        x = joined(batch)
        y = torch.tensor([float(words.encode(graph["text"], offset=1)[0]) for graph in batch])
        for graph in batch:
            noisy(graph)
            scored(graph)
            counted(graph)
            in_place(graph).append(1)
        loss = (model(x).squeeze(1) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
'''
KEPT = ["features", "Words.encode"]


@pytest.fixture
def found(start_script: StartScript, folder: Path) -> dict[str, Any]:
    (folder / "train.py").write_text(TEXT)
    with start_script("train.py", sites=start_script.watch("train.py", steps=12)) as process:
        asked = process.call("autoopt.benchmark.tasks:inspect", timeout=120.0, strategies=["prepared_samples"])
    return dict(asked["prepared_samples"])


def test_functions_that_make_the_same_of_what_lasts_are_found(found: dict[str, Any]) -> None:
    """Not those that draw, call a model, count, are given what lasts for a step, or whose result is changed."""
    assert sorted(each["function"] for each in found["steps"]["functions"]) == sorted(KEPT)


def test_they_are_kept_in_trials_and_decorated_in_a_patch(
    found: dict[str, Any], start_script: StartScript, folder: Path
) -> None:
    sites = start_script.watch("train.py", steps=12)
    case = replace(sample_case(inspected={"prepared_samples": found}), sites=sites)
    assert STRATEGY.applies(case)
    (setting,) = STRATEGY.settings(case)
    assert promised(STRATEGY, case, setting).value > 1.0
    assert not STRATEGY.apply(Setup(), setting).dataset
    change = Change(strategy="prepared_samples", setting=setting)
    losses = []
    for plan in (Plan(), Plan(changes=(change,))):
        with start_script("train.py", sites=sites, plan=plan) as process:
            losses.append(block_of(process, 12).losses)
    assert losses[0] == losses[1]
    after, patch = patched(folder, TEXT, change, sites=sites)
    assert [each.how for each in patch.changes] == ["patched"], patch.changes
    assert "@kept_by_arguments\ndef features(graph):\n" in after
    assert "    @kept_by_arguments\n    def encode(self, text, offset=0):\n" in after
