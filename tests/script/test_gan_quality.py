"""A GAN in bfloat16 trains as well as it does; what is broken in one of its halves does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoopt.records import Change, Objective, Plan, Quality
from autoopt.records.messages import Probe, TrainingRun
from autoopt.search.accept.data import ProbeResult
from autoopt.search.accept.evidence import Evidence
from autoopt.search.accept.fidelity import Arrays
from autoopt.search.accept.gate import judge_runs
from autoopt.search.accept.levels import level_of
from autoopt.search.accept.losses import ROUNDING
from autoopt.strategy import Risk
from tests.script.conftest import StartScript

OBJECTIVE = Objective(metric=None, mode="min", target=None, target_source="baseline", tolerance=0.005, min_gain=0.01)
BFLOAT16 = Plan(changes=(Change(strategy="amp", setting={"dtype": "bfloat16"}),))
STEPS = 400
UNCHANGED = Plan()


class Gan:
    """Probes and trainings of the small DCGAN."""

    def __init__(self, start: StartScript, out: Path) -> None:
        self._start, self._out, self._count = start, out, 0
        self.sites = start.watch("dcgan.py", "100000", steps=18)

    def probed(self, plan: Plan = UNCHANGED, *broken: str) -> ProbeResult:
        self._count += 1
        out = self._out / f"{self._count}.npz"
        with self._start("dcgan.py", "100000", *broken, sites=self.sites, plan=plan) as process:
            arguments = {"out": str(out), "steps": 64, "seconds": 20.0, "weights": [], "batches": "", "reading": 0.5}
            found = process.call("autoopt.benchmark.tasks:probe", timeout=120.0, **arguments)
        return ProbeResult(Probe.model_validate(found), Arrays.read(out))

    def trained(self, seed: int, plan: Plan = UNCHANGED, *broken: str) -> TrainingRun:
        words = (str(STEPS), *broken)
        with self._start(
            "dcgan.py", *words, sites=self.sites, plan=plan, seed=seed, disturbed=ROUNDING["bfloat16"]
        ) as process:
            arguments = {"max_seconds": 300.0, "max_steps": STEPS - 1}
            return TrainingRun.model_validate(process.call("autoopt.benchmark.tasks:train", timeout=300.0, **arguments))


@pytest.mark.slow
def test_bfloat16_passes_and_halves_that_are_broken_do_not(start_script: StartScript, tmp_path: Path) -> None:
    gan = Gan(start_script, tmp_path)
    before, honest = gan.probed(), gan.probed(BFLOAT16)
    level = level_of(Risk.NUMERIC, before, honest, OBJECTIVE)
    assert (level.level, level.passed) == ("equivalent", True), level.detail
    for broken in ("half", "dropped", "detached"):
        found = level_of(Risk.NUMERIC, before, gan.probed(UNCHANGED, broken), OBJECTIVE)
        assert found.passed is False, f"{broken}: {found.detail}"

    baseline = tuple(gan.trained(seed) for seed in (1, 2))
    assert baseline[0].losses[0] != baseline[1].losses[0], "other samples first, and weights a rounding apart"
    assert baseline[0].losses[0] == pytest.approx(baseline[1].losses[0], rel=0.1), "the script's own weights"

    def verified(*runs: TrainingRun) -> Quality:
        known = {"objective": OBJECTIVE, "level": level, "deterministic": True}
        return judge_runs(Evidence(baseline_runs=baseline, candidate_runs=runs, **known))

    assert verified(*(gan.trained(seed, BFLOAT16) for seed in (1, 2))).passed is True
    for broken in ("half", "detached"):  # were a probe not to see it
        found = verified(*(gan.trained(seed, UNCHANGED, broken) for seed in (1, 2)))
        assert found.passed is False, f"{broken}: {found.detail}"
