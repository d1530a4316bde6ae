"""The interference model between and beyond what was measured, and the flow at its speeds. Pure."""

from __future__ import annotations

import pytest

from autoopt.records import Contention
from autoopt.simplify.pipeline import Demand, InterferenceModel, period

SEEN = (
    Contention(threads=0, workers=2, prepare=0.9),
    Contention(threads=1, workers=1, prepare=0.95, step=0.8),
    Contention(threads=1, workers=2, prepare=0.6, step=0.5),
    Contention(threads=2, workers=1, prepare=0.7, step=0.4),
    Contention(threads=2, workers=2, prepare=0.5, step=0.2),
)
TWO_CORES = InterferenceModel(2, SEEN)


@pytest.mark.parametrize("item", [item for item in SEEN if item.threads], ids=str)
def test_what_was_measured_is_what_is_said(item: Contention) -> None:
    assert TWO_CORES.speeds(item.workers, item.threads) == (item.prepare, item.step)


def test_alone_nothing_is_slower() -> None:
    assert TWO_CORES.speeds(0, 2) == (1.0, 1.0)
    assert TWO_CORES.speeds(1, 0) == (1.0, 1.0)


def test_workers_alone_share_the_cores_there_are() -> None:
    assert TWO_CORES.speeds(2, 0)[0] == pytest.approx(0.9)
    assert TWO_CORES.speeds(4, 0)[0] == pytest.approx(0.45)


def test_beyond_what_was_measured_cores_are_shared_fairly() -> None:
    prepare, step = TWO_CORES.speeds(4, 2)
    assert prepare == pytest.approx(0.5 * 4 / 6)
    assert step == pytest.approx(0.2 * 4 / 6)


def test_in_between_lies_a_line() -> None:
    seen = (
        Contention(threads=4, workers=2, prepare=0.9, step=0.8),
        Contention(threads=4, workers=6, prepare=0.5, step=0.4),
    )
    assert InterferenceModel(8, seen).speeds(4, 4) == (pytest.approx(0.7), pytest.approx(0.6))
    assert InterferenceModel(8, seen).speeds(1, 4) == (pytest.approx(0.9), pytest.approx(0.9))
    assert InterferenceModel(8, seen).speeds(3, 4) == (pytest.approx(0.8), pytest.approx(0.7)), "a quarter of the way"


def test_other_threads_are_judged_by_a_combination_of_their_kind() -> None:
    """Cores enough or not: whoever was not measured takes what one of its kind got beyond its fair share."""
    many = InterferenceModel(
        8,
        (
            Contention(threads=4, workers=4, prepare=0.95, step=0.9),
            Contention(threads=8, workers=8, prepare=0.5, step=0.3),
        ),
    )
    assert many.speeds(2, 6) == (pytest.approx(0.95), pytest.approx(0.9))
    assert many.speeds(4, 6)[1] == pytest.approx(0.3 * (8 / 10) / (8 / 16))
    assert InterferenceModel(2, ()).speeds(1, 3) == (0.5, 0.5)


def test_the_flow_runs_at_the_measured_speeds() -> None:
    """One worker beside one thread: the dearer of the two decides, as slow as it was seen to be."""
    demand = Demand(prepare=0.01, compute=0.002, workers=1, cores=2, threads=1, contention=SEEN)
    alone = 1 - 0.002 / 0.8 * 0.95 / 0.01  # of a sample's work is done while the step does not run
    assert period(demand) == pytest.approx(0.002 / 0.8 + alone * 0.01, rel=0.02)


def test_one_thread_tells_nothing_of_several_where_a_team_was_measured() -> None:
    """Threads that wait for each other lose what one alone does not, though the numbers are nearer."""
    seen = (
        Contention(threads=1, workers=4, prepare=0.9, step=0.8),
        Contention(threads=4, workers=2, prepare=0.7, step=0.6),
    )
    assert InterferenceModel(8, seen).speeds(3, 2) == (0.7, 0.6)
