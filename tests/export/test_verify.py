"""Verification: agreement of two estimates, comparison of runs, and the script measured for real."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import sample
from autoopt.errors import DocumentError, EnvironmentLacks, UsageError
from autoopt.export.script import script
from autoopt.export.verify import (
    Checked,
    compare_runs,
    joined,
    judged,
    prediction,
    summed_up,
    verify,
    verify_run,
    with_headline,
    with_sessions,
)
from autoopt.records import Change, CurvePoint, Estimate, Plan, Result, Sites
from autoopt.records.headline import Session, Sessions
from autoopt.records.messages import TrainingRun
from autoopt.registry import load_strategies
from autoopt.testing.fakes import Behaviour
from simulated import training_run

sys.path.insert(0, str(Path(__file__).parent))

from script_running import facts_of

WORKLOAD = Path(__file__).parents[1] / "train" / "train_workload.py"


def estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=4)


def result(throughput: Estimate | None = None, **changes: object) -> Result:
    document = sample.win()
    speedup = document.speedup.model_copy(update={"throughput": throughput})
    return document.model_copy(update={"speedup": speedup, **changes})


@pytest.mark.parametrize(
    ("measured", "reported", "holds"),
    [
        ((1.5, 1.45, 1.55), (1.5, 1.4, 1.6), True),
        ((1.7, 1.55, 1.85), (1.5, 1.4, 1.6), False),
        ((1.62, 1.5, 1.75), (1.5, 1.4, 1.6), True),
        ((1.0, 0.98, 1.02), (1.5, 1.4, 1.6), False),
        ((2.4, 2.3, 2.5), (1.5, 1.4, 1.6), False),
    ],
)
def test_estimates_agree_within_their_noise(measured: tuple, reported: tuple, holds: bool) -> None:
    found = judged(estimate(*measured), estimate(*reported))
    assert found.holds is holds
    assert "reported" in found.detail


def test_gate_between_two_runs() -> None:
    good, bad = result(estimate(1.5, 1.4, 1.6)), result(estimate(1.1, 1.05, 1.15))
    assert compare_runs(good, bad, "old").holds
    assert compare_runs(good, good, "old").holds
    worse = compare_runs(bad, good, "old")
    assert not worse.holds
    assert "worse" in worse.detail
    other = good.model_copy(update={"workload": good.workload.model_copy(update={"spec": "else:build"})})
    with pytest.raises(UsageError, match="another workload"):
        compare_runs(good, other, "old")


def test_what_cannot_be_verified_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no optimized_train\.py"):
        verify_run(tmp_path, result(), seconds=5.0)
    (tmp_path / "optimized_train.py").write_text("")
    old = result()
    old = old.model_copy(update={"environment": old.environment.model_copy(update={"torch": "1.0"})})
    with pytest.raises(EnvironmentLacks, match=r"torch 1\.0"):
        verify_run(tmp_path, old, seconds=5.0)
    script = result().model_copy(update={"sites": Sites(command=("python", "train.py"), cwd="/work")})
    with pytest.raises(UsageError, match="holds no patch"):
        verify_run(tmp_path, script, seconds=5.0)


def trained(steps: int, seconds: float, *, reached: bool = True) -> TrainingRun:
    """A training that is evaluated every ten steps and has the target in the last of them."""
    points = tuple(
        CurvePoint(step=step, seconds=step * seconds / steps, metric=0.9 if reached and step == steps else 0.1)
        for step in range(10, steps + 1, 10)
    )
    behaviour = Behaviour(step_seconds=seconds / steps, startup_seconds=0.0)
    return training_run(behaviour, 0, points, steps, reached=reached)


def headline_of(before: tuple[float, ...], after: tuple[float, ...], **how: bool):
    document = result(estimate(2.0, 1.9, 2.1))
    objective = document.objective.model_copy(update={"metric": "accuracy", "mode": "max", "target": 0.9})
    document = document.model_copy(update={"objective": objective})
    pairs = [(trained(50, b), trained(50, a, **how)) for b, a in zip(before, after, strict=True)]
    return summed_up(pairs, document), document


def test_a_headline_that_its_own_trainings_do_not_show_does_not_hold() -> None:
    headline, document = headline_of((20.0, 20.4), (10.1, 10.3))
    throughput = judged(estimate(2.0, 1.95, 2.05), document.speedup.throughput)
    reported = document.speedup.model_copy(update={"time_to_target": estimate(1.32, 1.23, 1.40)})
    found = with_headline(throughput, headline, document.model_copy(update={"speedup": reported}))
    assert throughput.holds
    assert not found.holds
    assert found.headline_measured.value == pytest.approx(1.98, abs=0.02)
    assert "20.0 s to 10.1 s" in found.detail
    honest = document.speedup.model_copy(update={"time_to_target": estimate(1.95, 1.8, 2.1)})
    assert with_headline(throughput, headline, document.model_copy(update={"speedup": honest})).holds


def test_a_script_that_misses_the_target_fails() -> None:
    headline, _ = headline_of((20.0, 20.4), (10.1, 10.3), reached=False)
    assert not headline.holds
    assert "does not reach accuracy 0.9" in headline.detail


def a_script(folder: Path, **more: dict[str, object]) -> tuple[Result, Path]:
    """The result of a run that kept one compute thread, and its script."""
    plan = Plan(changes=(Change(strategy="threads", setting={"threads": 1}),))
    spec, document = f"{WORKLOAD}:build", result(estimate(1.0, 0.2, 5.0))
    path = folder / "optimized_train.py"
    path.write_text(script(spec, plan, load_strategies(), facts=facts_of(spec)))
    parts = {
        "workload": {"spec": spec},
        "environment": {"device": "cpu", "torch": torch.__version__},
        "best": {"plan": plan},
        "reproduce": {"strategies": ()},
    }
    changed = {
        name: getattr(document, name).model_copy(update=parts.get(name, {}) | more.get(name, {}))
        for name in parts | more
    }
    return document.model_copy(update=changed), path


@pytest.mark.slow
def test_script_is_trained_to_the_target_interleaved(tmp_path: Path) -> None:
    some = {"time_to_target_seconds": estimate(1.0, 0.9, 1.1)}
    document, path = a_script(
        tmp_path,
        best=some,
        baseline=some,
        objective={"metric": "accuracy", "mode": "max", "target": 0.2},
        speedup={"time_to_target": estimate(1.0, 0.05, 20.0)},
    )
    found = verify(document, path, seconds=60.0, logs=tmp_path / "logs")
    assert found.headline_measured is not None, found.detail
    assert found.measured is not None
    assert "baseline to script by seed" in found.detail
    assert found.holds, found.detail


@pytest.mark.slow
def test_script_is_measured_against_the_baseline(tmp_path: Path) -> None:
    document, path = a_script(tmp_path)
    found = verify(document, path, seconds=40.0, logs=tmp_path / "logs")
    assert found.measured is not None, found.detail
    assert found.holds, found.detail
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('no script')")
    assert not verify(document, broken, seconds=40.0, logs=tmp_path / "logs").holds


def session(began: str, value: float, n: int = 2) -> Session:
    return Session(began=began, ended=began, kind="to_target", value=value, n=n)


def test_a_verification_on_another_day_is_a_session_and_predicts_the_next(tmp_path: Path) -> None:
    document = result(
        estimate(2.3, 2.2, 2.4), created="2026-11-01T10:00:00+00:00", finished="2026-11-01T12:00:00+00:00"
    )
    checked = Checked(holds=True, detail="measured", headline_measured=estimate(2.0, 1.8, 2.2))

    def verified(at: str) -> Checked:
        return with_sessions(tmp_path, document, checked, began=at, ended=at)

    soon = verified("2026-11-01T12:30:00+00:00")
    assert len(soon.sessions) == 1, "the same hour is the same session"
    assert soon.next_session is None
    assert "this machine and this hour" in soon.detail
    later = verified("2026-11-02T09:00:00+00:00")
    assert [one.run for one in later.sessions] == [True, False]
    assert later.next_session.low < 2.0 < later.next_session.high
    assert "95 % prediction interval" in later.detail
    again = verified("2026-11-03T09:00:00+00:00")
    assert len(again.sessions) == 3
    assert Sessions.model_validate_json((tmp_path / "sessions.json").read_text()).sessions == again.sessions
    (tmp_path / "sessions.json").write_text("{")
    with pytest.raises(DocumentError, match="not a document of sessions"):
        verified("2026-11-04T09:00:00+00:00")


def test_a_verification_that_measured_nothing_is_no_session(tmp_path: Path) -> None:
    found = with_sessions(tmp_path, result(), Checked(holds=False, detail="failed"), began="x", ended="x")
    assert len(found.sessions) == 1
    assert not (tmp_path / "sessions.json").exists()


def test_sessions_are_pooled_by_their_repeats_and_kinds_are_kept_apart() -> None:
    early = session("2026-11-01T10:00:00+00:00", 1.2, n=1)
    (one,) = joined([early], session("2026-11-01T10:10:00+00:00", 1.5, n=3))
    assert (one.n, one.value) == (4, pytest.approx(1.2**0.25 * 1.5**0.75))
    step = early.model_copy(update={"kind": "per_step"})
    assert prediction([early, step], None) is None
    assert prediction([early, session("2026-11-02T10:00:00+00:00", 1.5)], None) is not None
