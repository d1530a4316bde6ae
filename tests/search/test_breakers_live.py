"""The planted breakers in real trials: trained by the engine in their own processes, judged, named ``quality_lost``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autoopt.records import Change, Estimate, Noise, Objective, Plan, Quality, Verdict
from autoopt.records.messages import Block, Startup, TrainingRun
from autoopt.search.accept.evidence import Evidence
from autoopt.search.compare.comparison import Comparison, Decision, LossPath, Side
from autoopt.trial.parent import Launcher
from autoopt.trial.protocol import TrialSpec
from made_up import judge_as, required_as
from workloads.breakers import BREAKERS

pytestmark = pytest.mark.slow

WORKLOADS = Path(__file__).parent.parent / "workloads"
TASKS = "autoopt.benchmark.tasks"
OBJECTIVE = Objective(metric="accuracy", mode="max", target=0.82, target_source="user", tolerance=0.005, min_gain=0.01)
BATCH = 32
LEVEL = Quality(method="probe", level="equivalent", passed=True, detail="what a probe overlooks")
OVERLOOKED = [breaker for breaker in BREAKERS if breaker.name != "fewer_evaluated"]


class Trials:
    """Trains plans of the breakers' workload in trials, each plan and seed once."""

    def __init__(self, launcher: Launcher, logs: Path) -> None:
        self._launcher, self._logs = launcher, logs
        self._runs: dict[tuple[str, int], TrainingRun] = {}

    def _start(self, plan: Plan, seed: int):
        names = tuple(f"breakers:{type(breaker).__name__}" for breaker in BREAKERS)
        spec = TrialSpec(
            workload="breakers:build",
            plan=plan,
            strategies=names,
            seed=seed,
            directory=str(WORKLOADS),
            search_path=(str(WORKLOADS),),
        )
        return self._launcher.start(spec, log=self._logs / "trial.log", timeout=120)

    def train(self, plan: Plan, seed: int) -> TrainingRun:
        key = (plan.model_dump_json(), seed)
        if key not in self._runs:
            with self._start(plan, seed) as trial:
                answer = trial.call(f"{TASKS}:train", timeout=120, max_seconds=60, target=OBJECTIVE.target)
            self._runs[key] = TrainingRun.model_validate(answer)
        return self._runs[key]

    def side(self, plan: Plan, rate: float) -> Side:
        """The losses of the first steps, as a comparison captures them."""
        with self._start(plan, 0) as trial:
            startup = Startup.model_validate(trial.call(f"{TASKS}:warm_up", timeout=120, max_seconds=1.0))
            block = Block.model_validate(trial.call(f"{TASKS}:run_block", timeout=120, seconds=0.1, min_steps=64))
        losses = startup.losses + block.losses
        samples = block.samples / block.steps
        return Side(
            plan=plan,
            samples_per_second=rate,
            samples_per_step=samples,
            startup=startup,
            fixed_seconds=(1.0,),
            losses=LossPath.of(losses),
        )


@pytest.fixture(scope="module")
def trials(tmp_path_factory) -> Iterator[Trials]:
    with Launcher() as launcher:
        yield Trials(launcher, tmp_path_factory.mktemp("logs"))


@pytest.mark.parametrize(
    "breaker",
    [*OVERLOOKED, None],
    ids=lambda breaker: breaker.name if breaker else "honest",
)
def test_breaker_in_a_real_trial(breaker, trials) -> None:
    plan = Plan(changes=(Change(strategy=breaker.name),)) if breaker else Plan()
    risk = breaker.risk if breaker else BREAKERS[0].risk
    comparison = Comparison(
        decision=Decision.ACCEPT,
        reason="faster",
        estimate=Estimate(value=1.4, low=1.35, high=1.45, n=3),
        incumbent=trials.side(Plan(), 3200.0),
        candidate=trials.side(plan, 4480.0),
    )
    evidence = Evidence(deterministic=True, planned_steps=256, level=LEVEL)
    for _ in range(4):
        wanted = required_as(risk, comparison, evidence, OBJECTIVE, Noise())
        if not wanted or wanted.seeds > 3:
            break
        evidence = evidence.model_copy(
            update={
                "baseline_runs": tuple(trials.train(Plan(), seed) for seed in range(wanted.seeds)),
                "candidate_runs": tuple(trials.train(plan, seed) for seed in range(wanted.seeds)),
            }
        )
    found = judge_as(risk, comparison, evidence, OBJECTIVE, Noise())
    assert found.verdict is (Verdict.QUALITY_LOST if breaker else Verdict.KEPT), found.reason
