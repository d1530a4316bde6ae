"""Candidates that look faster than they are: each is refused, undecided or failed, and never a pass."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autoopt.benchmark.trial_context import TrialContext
from autoopt.comparing import tasks
from autoopt.comparing.compare import refusal
from autoopt.comparing.learning import SAME, Judge
from autoopt.comparing.watched import WatchedArm
from autoopt.errors import TrialFailed
from autoopt.records import Estimate, JsonDict, Plan
from autoopt.records.comparing import Learning
from autoopt.records.messages import Block
from autoopt.registry import Registry
from autoopt.search.compare.comparison import Comparison, Decision, Side
from autoopt.trial.protocol import TrialSpec

HONEST = """
import torch, autoopt
from torch.nn import functional as F
from torch.utils.data import TensorDataset

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 2)
    def forward(self, x):
        return self.net(x)

def data(n=256):
    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.sum(1) > 0).long())

def evaluate(model, batches):
    hits = total = 0
    for x, y in batches:
        hits += int((model(x).argmax(1) == y).sum())
        total += len(y)
    return {"accuracy": hits / total}

def fields():
    return dict(model=Model(), train_data=data(), batch_size=16, loss=lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1), valid_data=data(64), evaluate=evaluate,
        target=autoopt.Target("accuracy", at_least=0.9), max_steps=500)

def build():
    return autoopt.Workload(**fields())
"""

CHEATS = {
    "fewer_samples": "def data(n=256, whole=data):\n    return whole(n // 2)",
    "cached_batch": """
        class Same(torch.utils.data.Dataset):
            def __len__(self):
                return 256
            def __getitem__(self, index):
                return self.rows[0]
        def data(n=256, whole=data):
            same = Same()
            same.rows = whole(n)
            return same""",
    "every_other_step": """
        class Lazy(torch.optim.SGD):
            count = 0
            def step(self, closure=None):
                self.count += 1
                if self.count % 2:
                    return super().step(closure)
        def build():
            return autoopt.Workload(**{**fields(), "optimizer": lambda p: Lazy(p, lr=0.1)})""",
    "its_own_seed": """
        def build():
            torch.manual_seed(1)
            return autoopt.Workload(**fields())""",
    "easier_loss": """
        def build():
            return autoopt.Workload(**{**fields(), "loss": lambda m, b: F.cross_entropy(m(b[0][:4]), b[1][:4])})""",
    "smaller_model": "class Model(Model):\n    def __init__(self):\n        super().__init__()\n"
    "        self.net = torch.nn.Linear(8, 2, bias=False)",
}


class InProcess:
    """A trial's process: the real tasks on a real training, in this process."""

    def __init__(self, live: TrialContext) -> None:
        self._live = live

    def call(self, task: str, *, timeout: float | None = None, **arguments: Any) -> JsonDict:
        found: JsonDict = getattr(tasks, task.rpartition(":")[2])(self._live, **arguments)
        return found


class Runner:
    def __init__(self, file: Path, seed: int) -> None:
        self._spec = TrialSpec(workload=f"{file}:build", seed=seed)

    @contextmanager
    def trial(self, plan: Plan, label: str, seed: int | None = None) -> Iterator[InProcess]:
        live = TrialContext(self._spec, Registry())
        try:
            yield InProcess(live)
        finally:
            live.close()


def judged(tmp_path: Path, name: str, extra: str = "") -> Judge:
    """A judge of the honest build and of the same with something appended."""
    sides = {"baseline": HONEST, "candidate": HONEST + "\n" + textwrap.dedent(extra) + "\n"}
    runners = {}
    for side, source in sides.items():
        file = tmp_path / f"{name}_{side}.py"
        file.write_text(source)
        runners[side] = Runner(file, seed=4711)
    plans = {"baseline": Plan(), "candidate": Plan()}
    clock = iter(range(10**6))
    return Judge(runners, plans, tmp_path, lambda: float(next(clock)), 320.0)  # type: ignore[arg-type]


def test_the_same_training_has_the_same_weights(tmp_path: Path) -> None:
    judge = judged(tmp_path, "same", "unused = 1")
    found = judge.learning()
    assert (found.level, found.again) == ("identical", 0.0)
    assert found.apart is not None
    assert found.apart <= SAME
    assert judge.metrics["baseline"] == judge.metrics["candidate"]


@pytest.mark.parametrize("cheat", CHEATS)
def test_another_training_is_not_called_the_same(tmp_path: Path, cheat: str) -> None:
    found = judged(tmp_path, cheat, CHEATS[cheat]).learning()
    assert found.level == "undecided"
    assert found.apart is None or found.apart > SAME
    assert found.detail


def test_the_evaluator_is_the_baselines(tmp_path: Path) -> None:
    extra = """
        def build():
            return autoopt.Workload(**{**fields(), "evaluate": lambda m, b: {"accuracy": 1.0}})"""
    judge = judged(tmp_path, "evaluator", extra)
    assert judge.learning().level == "identical", "it trains the same; what it says of itself is not asked"
    assert judge.metrics["candidate"] == judge.metrics["baseline"]


def test_a_loss_that_is_not_finite_is_a_failure(tmp_path: Path) -> None:
    extra = """
        def build():
            return autoopt.Workload(**{**fields(), "loss": lambda m, b: m(b[0]).sum() * float("nan")})"""
    with pytest.raises(TrialFailed) as failed:
        judged(tmp_path, "nan", extra).learning()
    assert (failed.value.kind, failed.value.where) == ("not_finite", "candidate")


class Liar:
    """A process that takes a second for what it says took a tenth."""

    can_freeze = True

    def __init__(self) -> None:
        self.now = 0.0

    def call(self, task: str, *, timeout: float | None = None, **arguments: Any) -> JsonDict:
        self.now += 1.0
        claimed = Block(steps=4, samples=64, seconds=0.1, late_seconds=0.9, losses=(1.0,))
        return claimed.model_dump(mode="json")

    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def close(self) -> None: ...


def test_a_patched_clock_changes_nothing() -> None:
    process = Liar()
    arm = WatchedArm(process, Plan(), lambda: process.now, began=0.0)
    block = arm.block(0.3, 4, 0.1)
    assert block.seconds == 1.0
    assert block.late_seconds == 0.0


def measured(ratio: float, samples: float = 16.0) -> Comparison:
    one = Side(samples_per_second=1600.0, samples_per_step=16.0)
    other = Side(samples_per_second=1600.0 * ratio, samples_per_step=samples)
    estimate = Estimate(value=ratio, low=ratio * 0.98, high=ratio * 1.02, n=3)
    return Comparison(decision=Decision.ACCEPT, estimate=estimate, incumbent=one, candidate=other)


@pytest.mark.parametrize(
    ("found", "ceiling", "trained", "refused"),
    [
        (measured(1.3), 1e-4, (1.0, 0.8), None),
        (measured(1.3, samples=32.0), 1e-4, (1.0, 0.8), "it counts 32 samples a step where 16"),
        (measured(4.0), 1e-4, (1.0, 0.9), "its blocks say 4.00x"),
        (measured(1.3), 0.05, (1.0, 0.8), "at the highest rate that this machine"),
        (measured(4.0), None, (0.01, 0.01), None),
    ],
)
def test_work_that_was_not_done_is_refused(
    found: Comparison, ceiling: float | None, trained: tuple[float, float], refused: str | None
) -> None:
    judge = Judge({}, {}, Path(), lambda: 0.0, 1.0)
    for name, seconds in zip(("baseline", "candidate"), trained, strict=True):
        judge.trained[name].seconds.append(seconds)
    why = refusal(found, Learning(level="identical"), judge, ceiling)
    assert (why is None) == (refused is None)
    assert refused is None or refused in str(why)
