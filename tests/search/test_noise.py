"""The A/A control, what a run learns of the luck of processes, and doubts about the machine."""

from __future__ import annotations

import re

import numpy as np
import pytest

from autoopt.errors import TrialFailed
from autoopt.records import Estimate, Noise, Plan
from autoopt.search.compare.comparison import Comparison, Decision, PairOfProcesses, Rule, Side
from autoopt.search.compare.noise import control, doubts, learned
from autoopt.search.state import AAControl, SearchState
from autoopt.testing import Behaviour, FakeMachine, NoiseModel
from autoopt.testing.strategies import sample_case


def measured(process_sd: float, block_sd: float = 0.02, seed: int = 0) -> tuple[Noise, Comparison]:
    fake = FakeMachine(noise=NoiseModel("normal", block_sd, process_sd), seed=seed)
    found = control(fake.start, Plan(), Rule(), clock=fake.clock, rng=np.random.default_rng(seed))
    assert not fake.alive
    return found


def test_control_runs_four_pairs_of_separate_processes_decided_or_not() -> None:
    noise, comparison = measured(0.0)
    assert len(comparison.pairs) == len(noise.ratios) == noise.aa_ratio.n == 4
    assert noise.aa_ratio.low < 1.0 < noise.aa_ratio.high
    assert noise.floor > 0


def test_a_restless_machine_has_a_higher_floor() -> None:
    calm = np.median([measured(0.003, 0.01, seed)[0].floor for seed in range(7)])
    restless = np.median([measured(0.06, 0.06, seed)[0].floor for seed in range(7)])
    assert restless > 2 * calm


@pytest.mark.parametrize("process_sd", [0.005, 0.03])
def test_interval_of_the_ratio_covers(process_sd: float) -> None:
    held = sum(
        noise.aa_ratio.low <= 1.0 <= noise.aa_ratio.high
        for noise, _ in (measured(process_sd, seed=s) for s in range(60))
    )
    assert held >= 55


def test_a_run_learns_the_luck_of_its_processes() -> None:
    noise, _ = measured(0.004, 0.01)
    before = noise.process_dof
    for seed in range(1, 4):
        noise = learned(noise, measured(0.004, 0.01, seed)[1])
    assert before < noise.process_dof <= 12
    assert noise.process_sd < 0.025
    assert noise.aa_ratio is not None


def test_a_baseline_that_fails_says_so_and_gives_no_noise() -> None:
    failing = Behaviour(fails=TrialFailed("crashed", "signal 9"), fails_at=5)
    fake = FakeMachine(behave=lambda plan: failing)
    noise, comparison = control(fake.start, Plan(), Rule(), clock=fake.clock)
    assert comparison.decision is Decision.FAILED
    assert noise == Noise()


def quiet(**fields) -> Comparison:
    pair = PairOfProcesses(log_ratio=0.0, standard_error=0.01, rounds=8)
    return Comparison(**{"decision": Decision.INCONCLUSIVE, "pairs": (pair,) * 4, "disturbed_share": 0.02, **fields})


GOOD = Noise(aa_ratio=Estimate(value=1.0, low=0.97, high=1.03, n=4), floor=0.02)


BIASED = Estimate(value=1.1, low=1.05, high=1.15, n=4)
SLOWER = Side(block_step_seconds=(0.1,) * 10 + (0.12,) * 10 + (0.14,) * 10)


@pytest.mark.parametrize(
    ("noise", "seen", "words"),
    [
        ({"foreign_cores": 0.9}, {}, "other programs used 0.9 cores"),
        ({}, {"disturbed_share": 0.24}, "disturbed 24 % of the block pairs"),
        ({"floor": 0.2}, {}, "noise floor is 20.0 %"),
        ({"aa_ratio": BIASED}, {}, "baseline against itself reads 1.100"),
        ({}, {"incumbent": SLOWER}, "became 40% slower"),
        ({}, {"candidate": Side(recompilations=2)}, "compiled again"),
    ],
)
def test_each_doubt_has_its_reason_and_what_to_do(noise: dict, seen: dict, words: str) -> None:
    (doubt,) = doubts(GOOD.model_copy(update=noise), quiet(**seen))
    assert words in doubt
    advice = re.split(r"[:;] ", doubt)[-1]
    assert advice.split()[0] in ("stop", "a", "run", "ratios", "fix", "compile"), advice


def test_load_that_begins_after_the_control_makes_the_result_a_busy_machines() -> None:
    case = sample_case()
    state = SearchState(case.workload, case.environment, case.objective, noise=GOOD)
    assert not state.noise_throughout.busy
    idle, loaded = (
        quiet(incumbent=side, candidate=side) for side in (Side(foreign_cores=f, seconds=10.0) for f in (0.0, 1.2))
    )
    state.control = AAControl(comparison=idle)
    assert state.noise_throughout.foreign_cores == 0.0
    state.screenings.append(loaded)
    assert state.noise_throughout.foreign_cores == pytest.approx(0.6)
    assert state.noise_throughout.busy
