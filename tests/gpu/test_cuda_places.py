"""Pairs on several CUDA devices at once: each sees its own alone, and the control measures what the others cost it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from autoopt.records import Plan
from autoopt.records.protocol import TrialSpec
from autoopt.registry import load_strategies
from autoopt.search.compare.comparison import Rule
from autoopt.search.race import Neighbours
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher
from autoopt.trial.places import places_of, visible_devices

pytestmark = [pytest.mark.gpu, pytest.mark.cuda_only]

WORKLOADS = Path(__file__).parent / "cuda_workloads.py"


def test_devices_are_counted_as_torch_counts_them() -> None:
    assert len(visible_devices()) == torch.cuda.device_count()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two CUDA devices")
def test_each_place_trains_on_its_own_device_and_neighbours_are_measured(tmp_path: Path) -> None:
    with Launcher() as launcher:
        places = places_of(launcher, 2, 1, "cuda", cores=2)
        spec = TrialSpec(workload=f"{WORKLOADS}:build", directory=str(tmp_path), device="cuda")
        runner = TrialRunner(launcher, spec, load_strategies(), tmp_path / "logs", places)
        before = [torch.cuda.mem_get_info(number)[0] for number in (0, 1)]
        workers = runner.workers()
        neighbours = Neighbours(runner.placed(), Plan(), Rule(max_seconds=60, warm_up_seconds=5.0), workers)
        rng = np.random.default_rng(0)
        names = [place.name for place in places]
        found = neighbours.sharing(names, 5.0, clock=time.monotonic, deadline=1e9, rng=rng)
        assert all(torch.cuda.mem_get_info(number)[0] < before[number] for number in (0, 1))
        neighbours.close()
        workers.close()
    assert found.allowed, found.reason
    assert all(each is not None for each in found.beside)
