"""The search of hyper-parameters: what it asks for, what it ends early, what it hands on, and that it resumes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autoopt.errors import TrialFailed, UsageError
from autoopt.options import Options
from autoopt.options.parsers import parse_tune
from autoopt.records import Curve, CurvePoint, JsonDict, Objective, Plan, Result
from autoopt.records.messages import TrainingRun
from autoopt.registry import load_strategies
from autoopt.search.budget_allocation import BudgetAllocation
from autoopt.search.tuning import distributions, rungs_of, tune
from autoopt.search.verify import FRESH_SEEDS
from autoopt.testing.strategies import sample_facts

EVERY, TARGET = 10, 0.9


def accuracy(lr: float, steps: int) -> float:
    """Grows towards 1, the quicker the nearer the learning rate is to 0.003; diverges above 0.05."""
    from math import exp, log10

    speed = 1.0 / (1.0 + 4.0 * abs(log10(lr / 0.003)))
    return 1.0 - exp(-speed * steps / 40.0)


def run_to(lr: float, steps: int, limit: int, seed: int) -> TrainingRun:
    points, reached, beyond, at = [], None, 0, 0
    while at < steps and beyond < 2:
        at += EVERY
        metric = accuracy(lr, at)
        points.append(CurvePoint(step=at, seconds=at * 0.01, metric=metric))
        beyond = beyond + 1 if metric >= TARGET else 0
        reached = reached or (at if metric >= TARGET else None)
    stopped = "target" if beyond == 2 else "steps" if at >= limit else ""
    return TrainingRun(
        seed=seed, curve=Curve(seed=seed, points=tuple(points), reached=reached is not None, steps_to_target=reached),
        seconds=at * 0.01, training_seconds=at * 0.01, evaluation_seconds=0.0, evaluations=len(points), steps=at,
        samples=at, fixed_seconds=0.0, reached=reached is not None, stopped=stopped,
    )  # fmt: skip


class Machine:
    """Stands in for trials, journal and clock: a step of training takes a hundredth of a second."""

    def __init__(self, budget: float = 100.0) -> None:
        self.seconds = 0.0
        self.budget = budget
        self.journal: dict[str, TrainingRun] = {}
        self.read = 0
        self.started: list[tuple[float, int]] = []
        self.fails: Callable[[float], bool] = lambda lr: False
        self.trained: TrainingRun | None = run_to(0.001, 10_000, 10_000, 0)

    def step(self, kind: str, key: JsonDict, measure: Callable[[], TrainingRun], model: Any) -> TrainingRun:
        name = f"{kind} {sorted(key.items())}"
        if name in self.journal:
            self.read += 1
        else:
            self.journal[name] = measure()
        return self.journal[name]

    @contextlib.contextmanager
    def trial(self, plan: Plan, label: str, seed: int) -> Iterator[Any]:
        lr = (plan.setting("hyperparameters") or {})["lr"]
        self.started.append((lr, seed))
        done = 0

        def call(task: str, *, steps: int, max_steps: int, **_: Any) -> JsonDict:
            nonlocal done
            if self.fails(lr):
                raise TrialFailed("not_finite", "the loss is nan")
            run = run_to(lr, steps, max_steps, seed)
            self.seconds += 0.01 * (run.steps - done)
            done = run.steps
            return run.model_dump()

        yield SimpleNamespace(call=call)

    def search(self, *space: str, **facts: Any) -> Any:
        objective = Objective(metric="accuracy", mode="max", target=TARGET, target_source="user", tolerance=0.005,
                              min_gain=0.01, price_per_hour=3.6)  # fmt: skip
        state = SimpleNamespace(
            facts=sample_facts(**facts), objective=objective, untrainable="", tuning=None, tuned={}, baseline=Plan(),
            trained=self.trained,
        )  # fmt: skip
        warned: list[str] = []
        context = SimpleNamespace(
            seed=0, now=lambda: self.seconds, stopping=lambda: False, warned=warned,
            warn=warned.append, allocation=BudgetAllocation(self.budget, start_seconds=0.1), state=state,
            run=SimpleNamespace(step=self.step), runner=SimpleNamespace(trial=self.trial), registry=load_strategies(),
        )  # fmt: skip
        tune(context, Options(tune=parse_tune(list(space))))  # type: ignore[arg-type]
        state.warned = warned
        return state


def test_it_finds_a_better_learning_rate_and_hands_it_on() -> None:
    machine = Machine()
    state = machine.search("lr=1e-5..1e-1")
    tuning = state.tuning
    own, best = tuning.trial(tuning.default), tuning.trial(tuning.best)
    assert own.values == {"lr": 1e-3}
    assert best.seconds_to_target < own.seconds_to_target
    assert 1e-3 < best.values["lr"] < 1e-2
    assert state.tuned == {"hyperparameters": {"found": best.values}}
    assert best.cost_to_target == pytest.approx(best.seconds_to_target / 1000)
    # hopeless trials end at a rung, and no seed is one of the gate's
    pruned = [trial for trial in tuning.trials if trial.state == "pruned"]
    assert len(pruned) > len(tuning.trials) / 3
    assert all(trial.steps < tuning.rungs[-1] for trial in pruned)
    assert {seed for _, seed in machine.started} == {FRESH_SEEDS - 1}, "nor one of the verification's"


def test_on_a_short_budget_the_baseline_that_waited_is_trained_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its training waits for a plan beside it, and the search's rungs come of it."""
    machine, there = Machine(), Machine().trained

    def train_first(context: Any) -> None:
        context.state.trained = there

    machine.trained = None
    monkeypatch.setattr("autoopt.search.tuning.train_first", train_first)
    assert machine.search("lr=1e-5..1e-1").tuning.best is not None
    there = None
    state = machine.search("lr=1e-5..1e-1")
    assert state.tuning.note == "there was no time to train the baseline"
    assert state.warned == ["--tune: there was no time to train the baseline"]


def test_a_resumed_search_reads_what_was_trained_and_goes_on_alike() -> None:
    machine = Machine()
    first = machine.search("lr=1e-5..1e-1").tuning
    whole, machine.seconds = len(machine.started), 0.0
    half = dict(list(machine.journal.items())[: len(machine.journal) // 2])
    machine.journal, machine.started = dict(half), []
    again = machine.search("lr=1e-5..1e-1").tuning
    assert machine.read == len(half)
    assert 0 < len(machine.started) < whole + len(again.trials)
    shared = min(len(first.trials), len(again.trials))
    assert [t.values for t in again.trials[:shared]] == [t.values for t in first.trials[:shared]]


def test_a_training_that_fails_is_a_trial_and_not_the_end() -> None:
    machine = Machine()
    machine.fails = lambda lr: lr > 0.01
    tuning = machine.search("lr=1e-5..1e-1").tuning
    failed = [trial for trial in tuning.trials if trial.state == "failed"]
    assert failed
    assert all(trial.reason == "not_finite: the loss is nan" for trial in failed)
    assert tuning.best is not None


def test_values_that_are_not_better_are_not_handed_on() -> None:
    state = Machine().search("lr=1e-7..1e-6")
    assert state.tuning.best is None
    assert "none of" in state.tuning.note
    assert not state.tuned
    with pytest.raises(UsageError, match="--tune momentum: AdamW has no such number") as caught:
        Machine().search("momentum=0.8|0.9")
    assert "lr" in caught.value.hint


def test_rungs_lie_at_evaluations() -> None:
    assert rungs_of(95, 10) == (10, 30, 100)
    assert rungs_of(10, 10) == (10,)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("lr=1e-4..1e-2", ("lr=log:0.0001..0.01",)),
        ("lr=1e-3..5e-3", ("lr=linear:0.001..0.005",)),
        ("lr=log:1e-3..5e-3,momentum=0.8|0.9", ("lr=log:0.001..0.005", "momentum=0.8|0.9")),
        ("weight_decay=0..0.1", ("weight_decay=linear:0..0.1",)),
        ("lr = .5..1", ("lr=linear:0.5..1",)),
    ],
)
def test_ranges(text: str, found: tuple[str, ...]) -> None:
    assert parse_tune(text) == found
    assert set(distributions(dict(part.split("=") for part in found))) == {part.split("=")[0] for part in found}


@pytest.mark.parametrize(
    "text",
    ["lr", "lr=", "lr=1e-4", "lr=1..1", "lr=2..1", "lr=log:0..1", "lr=a..b", "lr=1..2,lr=3..4", "lr=nan..1", "lr=1|1",
     "=1..2", "lr=1e-400..1e-300..1", "LR=1..2", ""],
)  # fmt: skip
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_tune(text)
    assert caught.value.hint


def test_groups_keep_their_proportion() -> None:
    import torch

    from autoopt_model.hyperparameters import with_values

    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(3)]
    groups = [
        {"params": weights[:1]},
        {"params": weights[1:2], "lr": 2e-3},
        {"params": weights[2:], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.01)
    assert with_values(optimizer, ("lr", 5e-3), ("weight_decay", 0.1)) is optimizer
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([5e-3, 1e-2, 5e-3])
    assert [group["weight_decay"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.1, 0.0])


def test_a_report_with_a_tuning_shows_its_trials_and_only_what_the_document_holds() -> None:
    import sample
    from autoopt_reports import html

    tuning = Machine().search("lr=1e-5..1e-1", "weight_decay=log:1e-6..1e-1", optimizer=_adamw()).tuning
    page = html.render(sample.win().model_copy(update={"tuning": tuning}))
    assert 'id="tuning"' in page
    assert page.count("ended early") > 1
    assert 'data-p="/tuning/trials/0/values/lr"' in page
    assert tuning.importance is None or "Which parameter mattered" in page
    assert 'id="tuning"' not in html.render(sample.win())


def _adamw() -> Any:
    return sample_facts().optimizer.model_copy(update={"options": {"lr": 1e-3, "weight_decay": 1e-2}})


@pytest.mark.slow
def test_the_command_searches_and_its_report_says_what_it_found(tmp_path: Path) -> None:
    tiny = Path(__file__).parents[1] / "workloads" / "tiny.py"
    done = subprocess.run(
        [sys.executable, "-m", "autoopt", "optimize", f"{tiny}:build", "--tune", "lr=1e-3..1", "--budget", "60s",
         "--only", "hyperparameters", "--out", "run", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = Result.model_validate_json(done.stdout)
    assert len(result.tuning.trials) >= 2
    assert result.tuning.trials[0].values == {"lr": 0.2}
    assert {trial.strategy for trial in result.trials if trial.verdict != "not_tried"} <= {"hyperparameters"}
    assert 'id="tuning"' in (tmp_path / "run" / "report.html").read_text()
    assert result.baseline.trained_parameters == 16 * 32 + 32 + 32 * 2 + 2
