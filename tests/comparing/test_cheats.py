"""Candidates that look faster than they are: each is refused, undecided or failed, and never a pass."""

from __future__ import annotations

import importlib
import itertools
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from autoopt.benchmark.trial_context import TrialContext
from autoopt.comparing.answer import changed_sources, unbelieved
from autoopt.comparing.learning import DRIFTED, IDENTICAL, SAME, Judge, Trials
from autoopt.comparing.watched import SAMPLED, Pairs, WatchedScriptArm, apart
from autoopt.errors import ScriptEnded, TrialFailed
from autoopt.records import Estimate, JsonDict, Objective, Plan
from autoopt.records.comparing import Learning
from autoopt.records.protocol import TrialSpec
from autoopt.registry import Registry
from autoopt.script.tasks import LOSSES
from autoopt.testing.fakes import Behaviour, fake_facts
from tests.comparing.conftest import HONEST

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
        optimizer = lambda p: Lazy(p, lr=0.1)""",
    "its_own_seed": """
        def build():
            torch.manual_seed(1)
            return autoopt.Workload(**fields())""",
    "easier_loss": "loss = lambda m, b: F.cross_entropy(m(b[0][:4]), b[1][:4])",
    "evaluation_data": "from torch.utils.data import ConcatDataset\n"
    "def data(n=256, whole=data):\n    return ConcatDataset([whole(192), whole(64)])",
    "smaller_model": "class Model(Model):\n    def __init__(self):\n        super().__init__()\n"
    "        self.first = torch.nn.Linear(8, 64, bias=False)",
}


ROUNDED = """
def loss(m, b):
    logits = m(b[0])
    return F.cross_entropy(logits + ({rounding}).detach(), b[1])"""
COARSE = ROUNDED.format(rounding="(16 * logits).round() / 16 - logits")


class InProcess:
    """A trial's process: the real tasks on a real training, in this process."""

    def __init__(self, live: TrialContext) -> None:
        self._live = live

    def call(self, task: str, *, timeout: float | None = None, **arguments: Any) -> JsonDict:
        module, name = task.split(":")
        return getattr(importlib.import_module(module), name)(self._live, **arguments)


class Runner:
    def __init__(self, file: Path, seed: int) -> None:
        self._plain = _MapDatasetFetcher.fetch
        self._spec = TrialSpec(workload=f"{file}:build", seed=seed)

    @contextmanager
    def trial(self, plan: Plan, label: str, seed: int | None = None) -> Iterator[InProcess]:
        live = TrialContext(self._spec, Registry())
        try:
            yield InProcess(live)
        finally:
            live.close()
            _MapDatasetFetcher.fetch = self._plain  # type: ignore[method-assign]  # a trial's own process would end

    def draw_alike(self, wanted: bool) -> None:
        self._spec = self._spec.model_copy(update={"same_draws": wanted})

    def ask(
        self, plan: Plan, task: str, *, timeout: float, label: str, disturbed: float = 0.0, **arguments: Any
    ) -> JsonDict:
        with self.trial(plan, label) as process:
            return process.call(task, **arguments)


def judged(tmp_path: Path, name: str, extra: str = "", both: str = "") -> Judge:
    """A judge of the honest build and of the same with something appended."""
    sides = {"baseline": HONEST + both, "candidate": HONEST + both + "\n" + textwrap.dedent(extra) + "\n"}
    runners = {}
    for side, source in sides.items():
        file = tmp_path / f"{name}_{side}.py"
        file.write_text(source)
        runners[side] = Runner(file, seed=4711)
    plans = {"baseline": Plan(), "candidate": Plan()}
    clock = iter(range(10**6))
    objective = Objective(
        metric="accuracy", mode="max", target=0.9, target_source="user", tolerance=0.005, min_gain=0.0
    )
    facts = fake_facts(Behaviour()).model_copy(update={"has_evaluate": True, "metric": "accuracy"})
    trials = Trials(runners, plans, tmp_path, lambda: float(next(clock)), 100.0)  # type: ignore[arg-type]
    return Judge(trials, 80.0, facts, objective=objective)


def test_the_same_training_has_the_same_weights(tmp_path: Path) -> None:
    judge = judged(tmp_path, "same", "unused = 1")
    found = judge.learning()
    assert (found.level, found.again) == ("identical", 0.0)
    assert found.apart <= IDENTICAL
    one, two = (judge.evaluating.values[name] for name in ("baseline", "candidate"))
    assert one is not None
    assert one == two


@pytest.mark.parametrize("cheat", CHEATS)
def test_another_training_is_not_called_the_same(tmp_path: Path, cheat: str) -> None:
    found = judged(tmp_path, cheat, CHEATS[cheat]).learning()
    assert found.level == "undecided"
    assert found.apart is None or found.apart > SAME
    assert found.detail


@pytest.mark.parametrize(
    ("extra", "level"),
    [("", "equivalent"), (COARSE, "equivalent"), (CHEATS["smaller_model"], "undecided")],
    ids=["draws alone", "rounded as well", "another model"],
)
def test_other_draws_of_augmentation_are_made_the_same(tmp_path: Path, extra: str, level: str) -> None:
    """A loader worker draws other numbers than the process that trains."""
    both = """
WORKERS = 0
class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 256
    def __getitem__(self, index):
        x = torch.randn(8, generator=torch.Generator().manual_seed(index)) + 0.1 * torch.randn(8)
        return x, int(x.sum() > 0)
def fields(whole=fields):
    kept = {name: value for name, value in whole().items() if name != "batch_size"}
    return {**kept, "train_data": torch.utils.data.DataLoader(Noisy(), batch_size=16, num_workers=WORKERS)}
"""
    found = judged(tmp_path, "draws", extra + "\nWORKERS = 1\n", both).learning()
    assert found.level == level, found.detail
    assert ("was made the same" in found.detail) is (level == "equivalent")


def test_the_evaluator_is_the_baselines(tmp_path: Path) -> None:
    judge = judged(tmp_path, "evaluator", "evaluate = lambda m, b: {'accuracy': 1.0}")
    assert judge.learning().level == "identical", "it trains the same; what it says of itself is not asked"
    assert judge.evaluating.values["candidate"] == judge.evaluating.values["baseline"]


@pytest.mark.parametrize(
    "extra",
    [COARSE, ROUNDED.format(rounding="0.15 * torch.sin(1e4 * b[0][:, :2])")],
    ids=["known from the usual batches", "known from more of them"],
)
def test_rounding_is_told_from_another_training(tmp_path: Path, extra: str) -> None:
    """Logits that are rounded coarsely: weights part a little on their way, gradients hardly differ."""
    judge = judged(tmp_path, "rounding", extra)
    judge.trials.clock = time.monotonic
    found = judge.learning()
    assert IDENTICAL < found.apart < DRIFTED
    assert found.level == "equivalent", found.detail
    assert found.gradient_error > 0


def test_validation_data_are_pinned(tmp_path: Path) -> None:
    """A candidate that makes the evaluation's file easier while it is compared."""
    torch.save(torch.randn(64, 8), tmp_path / "valid.pt")
    stored = f"""
def data(n=256, whole=data):
    return whole(n) if n == 256 else TensorDataset(torch.load({str(tmp_path / "valid.pt")!r}), torch.zeros(64).long())
"""
    cheat = f"""
def build():
    torch.save(torch.zeros(64, 8), {str(tmp_path / "valid.pt")!r})
    return autoopt.Workload(**fields())
"""
    for name, extra in (("honest", ""), ("tampering", cheat)):
        judge = judged(tmp_path, name, extra, stored)
        found = judge.learning()
        assert found.level == "identical"
        assert (found.evaluation is None) == bool(judge.evaluating.tampered) == bool(extra)
    assert "was changed while it was compared" in judge.evaluating.tampered


@pytest.mark.parametrize(
    ("kind", "told"), [("timeout", "no answer in 120 s"), ("error", "no loss was captured"), ("not_finite", "")]
)
def test_a_candidate_that_hangs_or_shows_no_loss_or_a_broken_one_failed(tmp_path: Path, kind: str, told: str) -> None:
    judge = judged(tmp_path, kind, "loss = lambda m, b: m(b[0]).sum() * float('nan')")
    if kind != "not_finite":
        judge.trials.runners["candidate"] = Ending(kind, told)  # type: ignore[assignment]
    with pytest.raises(TrialFailed, match=told or None) as failed:
        judge.learning()
    assert (failed.value.kind, failed.value.where) == (kind, "candidate")


class Ending:
    """Trials that hang, or that train without a loss."""

    def __init__(self, kind: str, told: str) -> None:
        self._kind, self._told = kind, told

    @contextmanager
    def trial(self, plan: Plan, label: str, seed: int | None = None) -> Iterator[Ending]:
        yield self

    def call(self, task: str, *, timeout: float | None = None, **arguments: Any) -> JsonDict:
        if self._kind == "timeout":
            raise TrialFailed("timeout", self._told)
        return {"losses": [], "steps": 0}


class Short:
    """A script of 40 steps, whose weights are those of its step."""

    def __init__(self, warm: int) -> None:
        self._warm, self._steps = warm, 0

    def call(self, task: str, *, timeout: float | None = None, steps: int = 0, **arguments: Any) -> JsonDict:
        if task == SAMPLED:
            return {"values": [float(self._steps)]}
        first, self._steps = self._steps, self._steps + (self._warm if task.endswith(":warm_up") else steps)
        if self._steps > 40:
            raise ScriptEnded(first)
        block = {"steps": steps, "first_step": first, "seconds": 1.0, "samples": steps, "losses": []}
        started = dict.fromkeys(("build_seconds", "setup_seconds", "warmup_seconds", "fixed_seconds"), 0.0)
        return {**started, "warmup_steps": self._warm} if task.endswith(":warm_up") else block

    def close(self) -> None:
        pass


def test_runs_of_scripts_that_end_are_compared_from_the_same_step() -> None:
    pairs, clock = Pairs(1.0, 1.0), itertools.count()
    for side, label, warm in (("baseline", "incumbent", 3), ("candidate", "candidate", 7)):
        WatchedScriptArm(
            lambda warm=warm: Short(warm), Plan(), clock=lambda: float(next(clock)), began=0.0,  # type: ignore[misc]
            side=side, label=label, pair=pairs.joined(label), pairs=pairs,
        ).warm_up(1.0)  # fmt: skip
    (pair,) = pairs.all
    for _ in range(12):
        for arm in pair.arms.values():
            arm.block(6.0, 6, 0.0)
    assert {run for run, _ in pair.seen["candidate"]} == {0, 1, 2}
    assert apart(pairs.all) == 0.0


def test_files_of_a_side_are_pinned() -> None:
    assert changed_sources("candidate", {"job.py": "a"}, {"job.py": "a"}) == ""
    assert "the candidate's job.py was changed" in changed_sources("candidate", {"job.py": "a"}, {"job.py": "b"})


def test_the_baseline_is_pinned_before_the_candidate_runs(tmp_path: Path) -> None:
    judge = judged(tmp_path, "order")
    judge.trials.runners["candidate"] = Ending("error", "")  # type: ignore[assignment]
    judge.fix_baseline()
    assert judge.evaluating.pinned is not None
    assert judge.trained["baseline"].weights


def test_without_an_evaluation_the_loss_of_the_same_batches_is_told(tmp_path: Path) -> None:
    both = "def fields(whole=fields):\n    kept = whole()\n" + "".join(
        f"    del kept[{name!r}]\n" for name in ("valid_data", "evaluate", "target")
    )
    judge = judged(tmp_path, "bare", "unused = 1", both + "    return kept\n")
    judge.evaluating._evaluates = False
    assert judge.learning().level == "identical"
    assert judge.evaluating.values["baseline"] is None
    assert judge.evaluating.note == "the workload has no evaluation"
    assert judge.evaluating.loss_batches == LOSSES
    loss = judge.evaluating.loss("baseline")
    assert loss is not None
    assert loss == judge.evaluating.loss("candidate")


def test_rare_and_long_work_counts() -> None:
    """Most blocks are quicker, and now and then one pays for all of them."""
    pairs = Pairs()
    assert pairs.whole is None
    for side, seconds in (("baseline", 4.0), ("baseline", 6.0), ("candidate", 11.0)):
        pairs.trained(side, 40 if side == "candidate" else 20, seconds)
    assert pairs.whole == pytest.approx(0.909, abs=1e-3)


@pytest.mark.parametrize(
    ("ratio", "level", "apart", "again", "refused"),
    [
        (1.3, "identical", 0.0, 0.0, None),
        (1.3, "identical", 1e-4, 0.0, None),
        (1.3, "identical", 0.05, 0.0, False),
        (1.3, "identical", 0.4, 0.0, True),
        (1.3, "identical", None, 0.0, False),
        (1.3, "identical", 0.015, 0.01, None),  # a baseline that does not repeat itself is no measure
        (1.3, "equivalent", 0.05, 0.0, None),
        (1.3, "equivalent", 0.2, 0.0, False),
        (1.3, "equivalent", 0.4, 0.0, True),
        (1.03, "equivalent", 0.05, 0.0, False),
    ],
)
def test_steps_that_were_left_out_are_not_believed(
    ratio: float, level: Any, apart: float | None, again: float, refused: bool | None
) -> None:
    speed = Estimate(value=ratio, low=ratio * 0.98, high=ratio * 1.02, n=3)
    found = unbelieved(speed, Learning(level=level, again=again, measured_apart=apart), 1.0)
    assert (found[0] if found else None) == refused
