"""Two processes that train together, started once for the tests of a module where they can share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autoopt.records import Plan
from autoopt.records.messages import TrainingRun
from autoopt.records.protocol import TrialSpec
from autoopt.trial.parent import Launcher
from autoopt.trial.process import LocalTrial
from tests.script.conftest import block_of, plan_of

HERE = Path(__file__).parent

Start = Callable[..., LocalTrial]

TWO = plan_of("ddp", processes=2)


@pytest.fixture
def start(launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """``start(plan, name="build", **spec)`` starts the points workload; ``POINTS_...`` are environment variables."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    started: list[LocalTrial] = []

    def begin(plan: Plan = TWO, name: str = "build", timeout: float = 90.0, **options: Any) -> LocalTrial:
        for variable in [key for key in options if key.startswith("POINTS_")]:
            monkeypatch.setenv(variable, str(options.pop(variable)))
        spec = TrialSpec(
            workload=f"{HERE / 'points.py'}:{name}",
            plan=plan,
            directory=str(tmp_path),
            processes=plan.setting("ddp")["processes"] if plan.setting("ddp") else 1,  # type: ignore[index]
            **options,
        )
        started.append(launcher.start(spec, log=tmp_path / "logs" / f"{len(started)}.log", timeout=timeout))
        return started[-1]

    yield begin
    for trial in started:
        trial.close()


def trained(start: Start, plan: Plan, **how: Any) -> TrainingRun:
    """A whole training under a plan."""
    with start(plan) as trial:
        found = trial.call("autoopt.benchmark.tasks:train", timeout=90, max_seconds=60.0, **how)
    return TrainingRun.model_validate(found)


def losses(
    start: Start, plan: Plan = TWO, *, name: str = "accumulating", steps: int = 12, device: str = "cpu"
) -> list[float]:
    """Losses of the first steps of a plan, in a trial of its own."""
    with start(plan, name=name, device=device) as trial:
        block = block_of(trial, steps)
    assert block.steps == steps
    return [loss for loss in block.losses if loss is not None]


_ALONE: dict[tuple[str, int], list[float]] = {}


def alone(start: Start, name: str = "accumulating", steps: int = 12) -> list[float]:
    """Losses of one process, which trains the same every time."""
    if (name, steps) not in _ALONE:
        _ALONE[name, steps] = losses(start, Plan(), name=name, steps=steps)
    return _ALONE[name, steps]


@pytest.fixture
def two(start: Start) -> LocalTrial:
    return start()
