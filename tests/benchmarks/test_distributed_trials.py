"""The benchmark of scheduling, small: every trial is a process of its own, every place has its share."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.distributed.trials import measured, places


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [False, True])
def test_trials_are_shared_out_over_places_and_leave_nothing(tmp_path: Path, fresh: bool) -> None:
    with places("local", 2, tmp_path) as where:
        found = measured(where, 6, 0.01, tmp_path, fresh=fresh)
    assert (found["trials"], found["places"], sum(found["by_place"])) == (6, 2, 6)
    assert 0.0 < found["efficiency"] <= 1.0
    assert found["wall_seconds"] >= 0.03
