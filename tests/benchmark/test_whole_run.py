"""The whole run from its parts: a table of runs, and what each part adds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autoopt.benchmark.steady import epoch_start
from autoopt.benchmark.target import Parts, whole_run_seconds
from autoopt.records import RunParts

STEPS = RunParts(step_seconds=0.1, steps=100)
START = {"imports_seconds": 3.0, "build_seconds": 2.0, "first_batch_seconds": 0.5, "warm_up_seconds": 0.25}


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 10.0),
        (START, 15.75),
        ({"steps_per_epoch": 25, "epoch_seconds": 2.0}, 16.0),  # the first epoch's start is the first batch's
        ({"steps_per_epoch": 30, "epoch_seconds": 2.0}, 16.0),  # the fourth epoch is broken off
        ({"steps_per_epoch": 100, "epoch_seconds": 2.0}, 10.0),
        ({"evaluation_seconds": 4.0, "evaluate_every": 10}, 50.0),
        ({"evaluation_seconds": 4.0, "evaluate_every": 30}, 26.0),  # and once at the end
        ({"evaluation_seconds": 4.0, "evaluate_every": 1000}, 14.0),
        ({"evaluation_seconds": 4.0}, 10.0),  # how often is not known
        ({"checkpoint_seconds": 1.0, "checkpoint_every": 50}, 12.0),
        ({"end_seconds": 1.5}, 11.5),
        ({"steps": 200}, 20.0),
    ],
)
def test_each_part_adds_its_seconds(changes: dict[str, float], seconds: float) -> None:
    found = whole_run_seconds(STEPS.model_copy(update=changes))
    assert found.seconds == pytest.approx(seconds)
    assert sum(part.seconds for part in found.parts) == pytest.approx(seconds)
    assert sum(part.share for part in found.parts) == pytest.approx(1.0)
    assert all(part.seconds == pytest.approx(part.each * part.count) for part in found.parts)


def test_what_was_not_measured_is_named_and_counts_as_nothing() -> None:
    found = whole_run_seconds(STEPS.model_copy(update=START))
    assert found.missing == ("later epochs' starts", "evaluations", "checkpoints", "end")
    assert found.part("evaluations") is None
    assert found.part("imports").count == 1  # type: ignore[union-attr]
    seen = whole_run_seconds(STEPS.model_copy(update={**START, "evaluation_seconds": 2.0}))
    assert seen.seconds == found.seconds
    assert "evaluations" in seen.missing, "nobody knows how many there will be"


@pytest.mark.parametrize("missing", ["steps", "step_seconds"])
def test_without_a_length_or_a_step_there_is_no_run(missing: str) -> None:
    with pytest.raises(ValueError, match="got None"):
        whole_run_seconds(STEPS.model_copy(update={missing: None}))
    assert whole_run_seconds(STEPS.model_copy(update={"steps": None}), steps=50).seconds == pytest.approx(5.0)


def test_the_parts_of_a_training_are_summed_by_the_same_model() -> None:
    parts = Parts(2.0, 0.1, 100, 4.0, 10, epoch_seconds=1.0, steps_per_epoch=50, checkpoint_seconds=0.5,
                  checkpoint_every=100)  # fmt: skip
    assert parts.seconds == pytest.approx(2 + 10 + 40 + 1 + 0.5)
    assert parts.planned(200).seconds == pytest.approx(2 + 20 + 80 + 3 + 1)


@pytest.mark.parametrize(
    ("openings", "workers", "persistent", "seconds"),
    [
        ([], 0, False, None),
        ([2.0], 4, False, 1.9),  # the first epoch's start stands for the next
        ([2.0], 4, True, 0.0),
        ([2.0], 0, False, 0.0),
        ([2.0, 0.6, 0.8], 4, True, 0.6),
        ([2.0, 0.05], 0, False, 0.0),
    ],
)
def test_a_later_epoch_starts_as_long_as_was_seen(
    openings: list[float], workers: int, persistent: bool, seconds: float | None
) -> None:
    loader = SimpleNamespace(num_workers=workers, persistent_workers=persistent)
    found = epoch_start(openings, loader, usual=0.1)
    assert found == (seconds if seconds is None else pytest.approx(seconds))
