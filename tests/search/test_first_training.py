"""When the baseline's first training waits for a plan to be trained beside it, and what then names a metric."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autoopt.errors import TrialFailed
from autoopt.records import Objective, Percentiles, Plan, Site, Sites
from autoopt.records.facts import WorkloadFacts
from autoopt.search import first_training
from autoopt.search.budget_allocation import BudgetAllocation
from autoopt.search.first_training import begin
from autoopt.search.trial_runner import BaselineFailed
from autoopt.testing import Behaviour
from autoopt.testing.fakes import fake_facts
from simulated import training_run

EVALUATION = Site(file="train.py", line=9, end_line=9, function="main", kind="evaluation", call="Net", name="Net")
LOSS = "val loss ([0-9.]+)"


class Begun:
    """The beginning of a run of a script whose steps take 0.4 s, and what it trained.

    Attributes:
        short: steps of trainings that looked for the metric alone.
        whole: first trainings.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        budget: float,
        epoch: int | None,
        *seen: Site,
        metric: str | None = None,
        told: tuple[str, ...] | TrialFailed = (),
        step: float = 0.4,
        start: float = 2.0,
    ) -> None:
        self.told, self.short, self.whole, self.read = told, [], 0, []
        self.notes: list[str] = []
        monkeypatch.setattr(first_training, "train_first", self._train_first)
        side = SimpleNamespace(step_seconds=Percentiles(p50=step, p95=step, p99=step), peak_memory_bytes=None)
        facts: WorkloadFacts = fake_facts(Behaviour()).model_copy(update={"steps_per_epoch": epoch})
        self.state: Any = SimpleNamespace(
            aa=SimpleNamespace(side=side, start_seconds=start, pair_seconds=8.0),
            sites=Sites(command=("python", "train.py"), cwd="/", sites=seen),
            objective=Objective(
                metric=metric, mode="min", target=None, target_source="baseline", tolerance=0.01, min_gain=0.01
            ),
            facts=facts,
            planned_steps=None,
            baseline=Plan(),
        )
        self.context: Any = SimpleNamespace(
            allocation=BudgetAllocation(budget=budget),
            gate=SimpleNamespace(memory_limit_bytes=None),
            runner=SimpleNamespace(train=self._train, reads=self.read.append),
            run=SimpleNamespace(step=lambda kind, key, measure, model: measure()),
            now=lambda: 20.0,
            note=lambda state, *texts: self.notes.extend(texts),
            warn=lambda state, *texts: None,
            seed=0,
        )
        begin(self.context, self.state)

    def _train(self, plan: Plan, *, max_steps: int, max_seconds: float, **_: Any) -> Any:
        if isinstance(self.told, TrialFailed):
            raise self.told
        self.short.append(max_steps)
        run = training_run(Behaviour(), 0, (), max_steps, reached=False)
        return run.model_copy(update={"told": self.told})

    def _train_first(self, context: Any, state: Any) -> None:
        self.whole += 1

    @property
    def waits(self) -> bool:
        return not self.whole and not self.context.allocation.trained


@pytest.mark.parametrize(
    ("epoch", "seen", "wait"),
    [(5000, (), True), (20, (), False), (None, (), False), (5000, (EVALUATION,), False)],
    ids=["hours to an epoch's end", "an epoch ends in it", "no epoch is known", "it was seen to evaluate"],
)
def test_a_training_that_shows_no_metric_waits(
    monkeypatch: pytest.MonkeyPatch, epoch: int | None, seen: tuple[Site, ...], wait: bool
) -> None:
    begun = Begun(monkeypatch, 240.0, epoch, *seen)
    assert begun.waits is wait
    assert not begun.short, "two epochs take as long as the training itself, or nobody knows how long"
    assert Begun(monkeypatch, 240.0, epoch, *seen, metric="val loss").waits
    assert not Begun(monkeypatch, 7200.0, epoch, *seen).waits


def test_a_metric_that_nobody_named_is_found_in_two_short_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Begun(monkeypatch, 300.0, 20, EVALUATION, told=(LOSS,), step=0.04)
    assert begun.waits
    assert begun.short == [41], "two epochs, and the step after which the second one's line has been printed"
    assert begun.read == [LOSS]
    assert (begun.state.objective.metric, begun.state.objective.mode) == ("val loss", "min")


def test_a_slow_start_is_not_paid_for_to_find_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Begun(monkeypatch, 300.0, 20, EVALUATION, told=(LOSS,), step=0.04, start=12.0)
    assert (begun.short, begun.whole) == ([], 1)


def test_a_script_that_prints_nothing_in_them_is_trained_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Begun(monkeypatch, 300.0, 20, EVALUATION, step=0.04)
    assert (begun.short, begun.whole) == ([41], 1)
    assert not begun.read


@pytest.mark.parametrize("budget", [90.0, 300.0])
def test_a_metric_is_looked_for_where_the_budget_holds_a_training_that_is_judged_by_it(
    monkeypatch: pytest.MonkeyPatch, budget: float
) -> None:
    begun = Begun(monkeypatch, budget, 20, EVALUATION, told=(LOSS,), step=0.04)
    assert bool(begun.short) is (budget > 90.0)
    assert (first_training.NOT_LOOKED_FOR in begun.notes) is (budget == 90.0)
    assert begun.waits


def test_a_baseline_that_fails_in_them_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BaselineFailed, match="gone"):
        Begun(monkeypatch, 300.0, 20, told=TrialFailed("crashed", "gone", where="training"), step=0.04)
