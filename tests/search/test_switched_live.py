"""Looks within one real process: of a ``build()``, and of a script by its hook."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoopt.records import Change, Noise, Plan
from autoopt.registry import load_strategies
from autoopt.search.compare.arena import Source
from autoopt.search.compare.comparison import Comparison, Rule
from autoopt.search.compare.contest import Contest
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher
from autoopt.trial.protocol import ScriptSpec, TrialSpec

BUILD = """
import torch, autoopt
from autoopt import Risk, Strategy
from torch.nn import functional as F

class Named(Strategy):
    risk = Risk.NUMERIC
    switchable = True

class Broken(Named):
    name = "broken"
    def apply(self, setup, setting):
        return setup.with_loss(raising)

class NotFinite(Named):
    name = "not_finite"
    def apply(self, setup, setting):
        return setup.with_loss(lost)

def raising(loss):
    def called(model, batch):
        raise RuntimeError("no such kernel")
    return called

def lost(loss):
    return lambda model, batch: loss(model, batch) * float("nan")

def build():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, 32, generator=generator)
    return autoopt.Workload(
        model=torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)),
        train_data=torch.utils.data.TensorDataset(x, x.argmax(1) % 4),
        batch_size=32,
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        max_steps=1000,
    )
"""

SCRIPT = """
import torch
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(512, 32), torch.randint(4, (512,)))
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(100000):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

ABLE = (
    Plan(changes=(Change(strategy="fused_optimizer", setting={"implementation": "fused"}),)),
    Plan(changes=(Change(strategy="amp", setting={"dtype": "bfloat16"}),)),
    Plan(changes=(Change(strategy="threads", setting={"threads": 1}),)),
)
RULE = Rule(min_steps=2, max_pairs=1, warm_up_seconds=2.0)


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


def looked(runner: TrialRunner, plans: tuple[Plan, ...]) -> tuple[list[Comparison | None], int]:
    """The looks at plans, and how many processes they took."""
    started = 0

    def start(plan: Plan, label: str) -> Any:
        nonlocal started
        started += 1
        return runner.start(plan, label)

    contest = Contest(
        Source(start, switched=Plan()), Plan(), plans, "incumbent", RULE, clock=time.monotonic, noise=Noise()
    )
    return contest.run(), started


def check(found: list[Comparison | None]) -> None:
    for seen in found:
        assert seen is not None
        assert seen.mode == "switched"
        assert seen.estimate is not None
        assert 0.02 < seen.estimate.value < 50
        assert seen.candidate.blocks >= 6
        assert seen.candidate.samples_per_step == 32


@pytest.mark.slow
def test_a_build_takes_changes_on_in_one_process_and_broken_ones_harm_nobody(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toggled.py").write_text(BUILD)
    strategies = ("toggled:Broken", "toggled:NotFinite")
    base = TrialSpec(
        workload="toggled:build", strategies=strategies, directory=str(tmp_path), search_path=(str(tmp_path),)
    )
    monkeypatch.syspath_prepend(tmp_path)
    registry = load_strategies(list(strategies))
    monkeypatch.delitem(sys.modules, "toggled")
    runner = TrialRunner(launcher, base, registry, tmp_path / "logs")
    broken = tuple(Plan(changes=(Change(strategy=name),)) for name in ("broken", "not_finite"))
    found, started = looked(runner, (ABLE[0], *broken, *ABLE[1:]))
    check([found[0], *found[3:]])
    assert found[1:3] == [None, None]
    assert started == 1


@pytest.mark.slow
def test_a_script_takes_changes_on_by_its_hook(launcher: Launcher, tmp_path: Path) -> None:
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    script = ScriptSpec(command=(sys.executable, "train.py"), folders=(str(folder),))
    base = TrialSpec(workload="train.py", directory=str(folder), script=script)
    runner = TrialRunner(launcher, base, load_strategies([]), tmp_path / "logs")
    runner.watched()
    found, started = looked(runner, ABLE)
    check(found)
    assert started == 1
