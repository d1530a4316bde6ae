"""Plans that one process takes on in turn, in simulated time and in real processes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoopt.errors import TrialFailed
from autoopt.records import Change, Noise, Plan
from autoopt.records.protocol import ScriptSpec, TrialSpec
from autoopt.registry import load_strategies
from autoopt.search.compare.arena import Source
from autoopt.search.compare.comparison import Comparison, Decision, Rule
from autoopt.search.compare.contest import Contest
from autoopt.search.compare.statistics import MIN_BLOCKS
from autoopt.search.race import MOST_ROUNDS, Race
from autoopt.search.trial_runner import TrialRunner
from autoopt.testing import Behaviour, FakeMachine, NoiseModel
from autoopt.trial.parent import Launcher

BASE = Behaviour(step_seconds=0.05, startup_seconds=8.0)
NOISE = Noise(process_sd=0.05, process_dof=8.0, block_sd=0.06)


def plan(name: str) -> Plan:
    return Plan(changes=(Change(strategy=name),))


def machine(
    speeds: dict[str, float], noise: NoiseModel | None = None, seed: int = 0, **fails: TrialFailed
) -> FakeMachine:
    def behave(given: Plan) -> Behaviour:
        names = given.names()
        found = replace(BASE, step_seconds=BASE.step_seconds / math.prod(speeds[name] for name in names))
        return replace(found, fails=next((fails[name] for name in names if name in fails), None))

    return FakeMachine(behave=behave, noise=noise or NoiseModel("quiet"), seed=seed)


def screenings(
    on: FakeMachine, names: list[str], seed: int = 0, seconds: float = 1e6, deadline: float = 1e6
) -> list[Comparison | None]:
    contest = Contest(
        Source(on.start, switched=Plan()),
        Plan(),
        [plan(name) for name in names],
        "incumbent",
        Rule(max_pairs=1, max_seconds=seconds),
        clock=on.clock,
        deadline=deadline,
        noise=NOISE,
        rng=np.random.default_rng(seed),
        most_rounds=MOST_ROUNDS,
    )
    found = contest.run()
    assert not on.alive, "processes were left behind"
    return found


def before_blocks(on: FakeMachine, tell: Callable[[int, tuple[str, ...]], None]) -> None:
    """Tells of each switched block, before it is measured, the number of its process and the names of its plan."""
    start = on.start

    def started(given: Plan, label: str):
        arm, number = start(given, label), len(on.started)
        usual = arm.switched_block

        def switched(wanted: Plan, *length):
            tell(number, wanted.names())
            return usual(wanted, *length)

        arm.switched_block = switched
        return arm

    on.start = started


def test_one_start_serves_all_candidates_and_the_truth_is_seen() -> None:
    speeds = {"faster": 1.3, "same": 1.0, "slower": 0.7}
    on = machine(speeds)
    for name, seen in zip(speeds, screenings(on, list(speeds)), strict=True):
        assert seen.mode == "switched"
        assert seen.estimate.value == pytest.approx(speeds[name], rel=1e-3)
    assert len(on.started) == 1
    other = machine(speeds)
    with closing(Race(other.start, Plan(), Rule(), clock=other.clock, rng=np.random.default_rng(0))) as race:
        for name in speeds:
            race.screen(plan(name), NOISE)
    assert on.clock() < 0.7 * other.clock()


def test_a_look_never_accepts_and_refuses_what_is_plainly_slow() -> None:
    faster, slower = screenings(machine({"faster": 1.5, "slower": 0.6}), ["faster", "slower"])
    assert faster.decision is Decision.INCONCLUSIVE
    assert slower.decision in (Decision.HARMFUL, Decision.REJECT)


def errors(kind: str) -> float:
    """Root mean square error (log) of looks at a candidate of 1.1 on a machine whose processes differ by much."""
    found = []
    for seed in range(40):
        on = machine({"candidate": 1.1}, NoiseModel("normal", block_sd=0.03, process_sd=0.06), seed=seed)
        if kind == "one process":
            seen = screenings(on, ["candidate"], seed)[0]
        else:
            rule = Rule(max_seconds=60)
            with closing(Race(on.start, Plan(), rule, clock=on.clock, rng=np.random.default_rng(seed))) as race:
                seen = race.screen(plan("candidate"), NOISE)
        found.append(math.log(seen.estimate.value / 1.1))
    return math.sqrt(float(np.mean(np.square(found))))


def test_what_makes_a_process_faster_than_another_cancels() -> None:
    assert errors("one process") < errors("two processes") / 3


def test_a_drift_of_the_machine_cancels() -> None:
    on = machine({"candidate": 1.1}, NoiseModel("drifting", block_sd=0.001))
    seen = screenings(on, ["candidate"])[0]
    assert seen.estimate.value == pytest.approx(1.1, rel=0.02)


def test_one_that_fails_or_is_not_finite_takes_nothing_from_the_others() -> None:
    speeds = {"a": 1.2, "fails": 1.5, "nan": 1.5, "b": 0.9}
    on = machine(speeds, fails=TrialFailed("error", "no such kernel"))
    usual = on.behave
    on.behave = lambda given: replace(usual(given), loss=lambda _: None if "nan" in given.names() else 1.0)
    a, fails, nan, b = screenings(on, list(speeds))
    assert (fails, nan) == (None, None), "looks of their own tell what they are"
    assert [seen.estimate.value for seen in (a, b)] == pytest.approx([1.2, 0.9], rel=1e-3)
    assert len(on.started) == 1


def test_one_that_ends_the_process_leaves_the_others_another_one() -> None:
    speeds = {"a": 1.2, "crashes": 1.5, "b": 0.9}
    on, dead = machine(speeds), set[int]()

    def crash(process: int, names: tuple[str, ...]) -> None:
        dead.update([process] if "crashes" in names else [])
        if process in dead:
            raise TrialFailed("crashed", "signal 11")

    before_blocks(on, crash)
    a, crashes, b = screenings(on, list(speeds))
    assert [seen is None for seen in (a, crashes, b)] == [False, True, False]
    assert len(on.started) == 2


def test_what_cannot_start_or_was_not_seen_by_the_deadline_is_not_told() -> None:
    on = FakeMachine(behave=lambda _: replace(BASE, fails=TrialFailed("error", "gone")), noise=NoiseModel("quiet"))
    assert screenings(on, ["a"]) == [None], "looks of its own say why"
    assert screenings(machine({"a": 1.2}), ["a"], deadline=BASE.startup_seconds + 1.5) == [None]


def test_a_process_that_was_started_gets_the_fewest_rounds_that_count() -> None:
    """Past the time it goes on where that takes no longer than what was spent already."""
    on = machine({"a": 1.2})
    seconds = BASE.startup_seconds + 1.0
    (seen,) = screenings(on, ["a"], seconds=seconds)
    assert seen.pairs[0].rounds == MIN_BLOCKS
    assert on.clock() > seconds


def test_orders_are_reversed_so_that_none_is_always_first() -> None:
    on = machine({"a": 1.0, "b": 1.0, "c": 1.0}, NoiseModel("normal", block_sd=0.05))
    asked = list[str]()
    before_blocks(on, lambda process, names: asked.extend(names))
    screenings(on, ["a", "b", "c"])
    names = [name for name in asked if name]
    assert names[3:6] == names[2::-1]
    assert max(names.count(name) for name in "abc") <= MOST_ROUNDS


# Looks within one real process, of a script by its hook; a ``build()`` is switched in tests/benchmark.


SCRIPT = """
import torch
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(512, 32), torch.randint(4, (512,)))
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(100000):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

ABLE = (
    Plan(changes=(Change(strategy="fused_optimizer", setting={"implementation": "fused"}),)),
    Plan(changes=(Change(strategy="amp", setting={"dtype": "bfloat16"}),)),
    Plan(changes=(Change(strategy="threads", setting={"threads": 1}),)),
)


@pytest.mark.slow
def test_a_script_takes_changes_on_by_its_hook(launcher: Launcher, tmp_path: Path) -> None:
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    script = ScriptSpec(command=(sys.executable, "train.py"), folders=(str(folder),))
    base = TrialSpec(workload="train.py", directory=str(folder), script=script)
    runner = TrialRunner(launcher, base, load_strategies([]), tmp_path / "logs")
    runner.watched()
    started: list[Plan] = []

    def start(plan: Plan, label: str) -> Any:
        started.append(plan)
        return runner.start(plan, label)

    rule = Rule(min_steps=2, max_pairs=1, warm_up_seconds=2.0)
    source = Source(start, switched=Plan())
    for seen in Contest(source, Plan(), ABLE, "incumbent", rule, clock=time.monotonic, noise=Noise()).run():
        assert seen.mode == "switched"
        assert 0.02 < seen.estimate.value < 50
        assert seen.candidate.blocks >= 6
        assert seen.candidate.samples_per_step == 32
    assert len(started) == 1
