"""Stage profiles: readings of a CUDA device while a plan trains, doubts about them, and disturbed ones taken again."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest

from autoopt.records import Environment, Plan
from autoopt.records.messages import Block, Startup
from autoopt.search.outcome import configuration
from autoopt.simplify.stage_profile import (
    FOREIGN_CORES,
    StageProfile,
    doubt_of,
    least_doubtful,
    profile_stages,
    reason_to_doubt,
)

BLOCK = {"steps": 10, "samples": 80, "seconds": 1.0, "step_seconds": [0.1] * 10}
STARTUP = Startup(build_seconds=0.1, setup_seconds=0.1, warmup_seconds=0.1, warmup_steps=1, fixed_seconds=0.3)


class FakeTrials:
    """Trials that answer from a table, a list one by one, and note what they were asked, as the tasks take it."""

    registry: tuple[str, ...] = ()

    def __init__(self, **answers: Any) -> None:
        self.answers = {"warm_up": STARTUP.model_dump(), "running": {"block": BLOCK, "reference": None}, **answers}
        self.asked: list[str] = []

    @contextmanager
    def trial(self, plan: Plan, label: str) -> Any:
        yield self

    def call(self, task: str, *, timeout: float, **arguments: Any) -> Any:
        module, _, name = task.partition(":")
        inspect.signature(getattr(import_module(module), name)).bind(self, **arguments)
        self.asked.append(name)
        answer = self.answers.get(name, {})
        return answer.pop(0) if isinstance(answer, list) else answer


def profile(trials: FakeTrials, **options: Any) -> StageProfile:
    return profile_stages(trials, Plan(), seconds=4.0, advise=False, **options)  # type: ignore[arg-type]


def test_a_trace_is_written_where_one_is_asked_for() -> None:
    trials = FakeTrials()
    assert not profile(trials, trace="folder").missing
    assert trials.asked[-1] == "trace"


MONITOR = {"device_utilization": 0.8, "energy_joules": 50.0, "throttled": 0.5}


@pytest.mark.parametrize(
    ("device", "monitor", "shown", "doubts"),
    [
        ("cuda", MONITOR, (0.8, 5.0), ("pid 7", "50%")),
        pytest.param("cuda", {}, (None, None), ("pid 7",), id="what it does not tell is none"),
        pytest.param("cpu", MONITOR, (None, None), (), id="a CPU is not watched"),
    ],
)
def test_a_cuda_device_is_watched(
    device: str, monitor: dict[str, float], shown: tuple[float | None, float | None], doubts: tuple[str, ...]
) -> None:
    watched = {"block": BLOCK, "monitor": monitor, "other_users": [7]}
    found = profile(FakeTrials(measure_stages={"device": device}, monitored_block=watched))
    told = configuration(Plan(), Environment(python="3.12", device=device), profile=found)
    assert (told.device_utilization, told.energy_joules_per_step) == shown
    assert len(found.doubts) == len(doubts)
    assert all(word in doubt for word, doubt in zip(doubts, found.doubts, strict=True))


def test_steps_that_were_tried_with_other_threads_are_in_seconds_of_the_block() -> None:
    tried = {"workers": 0, "threads": 1, "seconds": 0.5, "spread": 0.2}
    fed = {"workers": 2, "threads": 1, "seconds": 0.3, "spread": 0.0}
    stages = {"device": "cpu", "overlaps": [fed], "threads": 2, "compute_by_threads": {2: 1e-4, 1: 2e-4}}
    found = profile(FakeTrials(measure_stages=stages, try_threads={"steps": [tried]}))
    step = found.step_seconds
    (workers, threads) = found.timings["overlaps"]
    assert workers == fed
    assert threads == pytest.approx({**tried, "seconds": 0.5 * step})


RUNNING = {"forward": 0.3, "backward": 0.2, "optimizer": 0.05, "other": 0.25, "data": 0.2}
HELD = {"forward": {"seconds": 0.02}, "backward": {"seconds": 0.01}, "optimizer": {"seconds": 0.004}}


@pytest.mark.parametrize(
    ("changed", "left_out", "added"),
    [
        pytest.param({}, True, 0.08 - 0.036, id="a script"),
        pytest.param({"stalled_seconds": 0.2}, True, 0.08 - 0.02 - 0.036, id="its threads waited for a core"),
        pytest.param({"backward": None}, True, 0.03, id="its functions are known, its stages are not"),
        pytest.param({"backward": None, "inputs": {}}, True, 0.01, id="functions that make its batches, too"),
        pytest.param({"device": "cuda"}, True, 0.03, id="a device"),
        pytest.param({}, False, 0.0, id="a build"),
    ],
)
def test_steps_on_held_batches_leave_out_a_part_of_a_script(
    changed: dict[str, Any], left_out: bool, added: float
) -> None:
    """What it takes would look like contention, which other workers and threads end."""
    function = {"name": "targets", "kind": "line", "seconds": 0.03, "file": "train.py", "line": 9}
    fed = [{"workers": 2, "threads": threads, "seconds": 0.05, "spread": 0.0} for threads in (1, 2)]
    stages = {"device": "cpu", "overlaps": fed, "threads": 2, "compute_by_threads": {2: 1e-4, 1: 2e-4}, **HELD}
    stages |= {"inputs": {"sample": {"seconds": 1e-3}}, "host": {"seconds": 0.002}, **changed}
    block = {**BLOCK, "stage_seconds": RUNNING, "stalled_seconds": stages.pop("stalled_seconds", None)}
    found = profile(
        FakeTrials(
            measure_stages=stages,
            running={"block": block, "reference": None},
            own_code={"functions": [function], "left_out": left_out},
            try_threads={"steps": [{"workers": 2, "threads": 1, "seconds": 0.9, "spread": 0.1}]},
        )
    )
    assert found.timings["host"]["seconds"] == pytest.approx(0.002 + added)
    steps = {(one["workers"], one["threads"]): one["seconds"] for one in found.timings["overlaps"]}
    assert steps == pytest.approx({(2, 2): 0.05 + added, (2, 1): 0.9 * found.step_seconds}), (
        "a step itself, where it ran"
    )


@pytest.mark.parametrize(("worked", "times"), [(None, 1.0), (0.2, 1.0), (0.84, 2.0)])
def test_a_sample_takes_its_workers_what_they_worked(worked: float | None, times: float) -> None:
    sample = {"seconds": 3e-3, "cpu_seconds": 2e-3, "wait_seconds": 1e-3}
    inputs = {"sample": sample, "collate": {"seconds": 1e-3}, "deeper": [{"name": "decode", "seconds": 1e-3}]}
    stages = {"device": "cpu", "batch_size": 10, "accumulation": 2, "threads": 2, "inputs": inputs}
    block = {**BLOCK, "worker_cpu_seconds": worked}
    found = profile(FakeTrials(measure_stages=stages, running={"block": block, "reference": None})).timings["inputs"]
    more, reference = (times - 1) * 2e-3, {} if times == 1 else {"reference": None}
    slower = {**sample, "seconds": 3e-3 + more, "cpu_seconds": 2e-3 + more, **reference}
    assert found["sample"] == pytest.approx(slower)
    assert found["deeper"][0]["seconds"] == pytest.approx(times * 1e-3)
    assert found["collate"] == inputs["collate"]


def test_threads_whose_compute_alone_takes_longer_than_the_step_are_not_tried() -> None:
    trials = FakeTrials(measure_stages={"device": "cpu", "threads": 2, "compute_by_threads": {2: 1e-4, 1: 1e3}})
    found = profile(trials)
    assert "measure_stages" in trials.asked
    assert "try_threads" not in trials.asked
    assert not found.missing


def seen(step: float, foreign: float | None = None) -> StageProfile:
    block = Block(steps=10, samples=80, seconds=10 * step)
    return StageProfile(plan=Plan(), startup=STARTUP, block=block, foreign_cores=foreign)


@pytest.mark.parametrize(
    ("profile", "usual", "watched", "word"),
    [
        (seen(0.1, 0.0), 0.1, None, ""),
        (seen(0.12, FOREIGN_CORES), 0.1, None, ""),
        (seen(0.2), 0.1, None, "200 ms"),
        (seen(0.05), 0.1, None, "50 ms"),
        (seen(0.1, 0.9), 0.1, None, "0.9 cores"),
        (seen(0.1, None), None, None, ""),
        (seen(0.1, 1.0), None, None, "1.0 cores"),
        (seen(0.1), None, 0.1, ""),
        (seen(0.05), None, 0.1, ""),
        (seen(0.4), None, 0.1, "400 ms while its stages were measured, and 100 ms in the first steps"),
        (seen(0.1, 0.9), None, 0.1, "0.9 cores"),
    ],
)
def test_what_speaks_against_a_profile(
    profile: StageProfile, usual: float | None, watched: float | None, word: str
) -> None:
    """Steps of another length than usual, slower ones than were watched, and other programs."""
    found = reason_to_doubt(profile, usual, watched_step=watched)
    assert word in found
    assert bool(found) == bool(word)


def erring(*errors: float | None) -> list[tuple[StageProfile, float | None]]:
    return [(seen(0.1), error) for error in errors]


@pytest.mark.parametrize(
    ("looks", "kept"),
    [
        ([(seen(0.1), None)], 0),
        ([(seen(0.3), None), (seen(0.1), None)], 1),
        ([(seen(0.3), None), (seen(0.2), None)], 1),
        ([(seen(0.2), None), (seen(0.3), None)], 0),
        ([(seen(0.1, 1.0), None), (seen(0.1, 0.5), None)], 1),
        (erring(0.19), 0),
        (erring(-0.2), 0),
        (erring(0.5, -0.1), 1),
        (erring(-0.3, 0.4), 0),
        (erring(0.3, None), 1),
    ],
)
def test_a_second_look_where_the_first_was_disturbed_or_its_stages_do_not_add_up_to_its_step(
    looks: list[tuple[StageProfile, float | None]], kept: int
) -> None:
    rest = iter(looks)
    found = least_doubtful(lambda: next(rest), lambda look: doubt_of(look[0], 0.1, look[1]))
    assert found is looks[kept]
    assert next(rest, None) is None


@pytest.mark.parametrize(
    ("after", "cores"),
    [
        ({"own": 15.0, "busy": 130.0, "at": 10.0}, 1.5),
        ({"own": 35.0, "busy": 120.0, "at": 10.0}, 0.0),
        ({"own": 15.0, "busy": None, "at": 10.0}, None),
        ({"own": 15.0, "busy": 130.0, "at": 0.0}, None),
    ],
)
def test_what_others_used_meanwhile(after: dict[str, float | None], cores: float | None) -> None:
    assert profile(FakeTrials(cpu_clock=[{"own": 0.0, "busy": 100.0, "at": 0.0}, after])).foreign_cores == cores


@pytest.mark.parametrize(
    ("limit", "missing", "left_out"),
    [
        (27.0, ["stage ceilings", "what strategies ask"], {"measure_stages", "try_threads", "inspect"}),
        (60.0, [], set[str]()),
    ],
)
def test_slow_steps_leave_out_what_a_short_budget_has_no_time_for(
    limit: float, missing: list[str], left_out: set[str]
) -> None:
    slow = Block.model_validate(BLOCK).model_copy(update={"seconds": 6.0, "steps": 4, "step_seconds": (1.5,) * 4})
    stages = {"device": "cpu", "threads": 2, "compute_by_threads": {2: 1.0, 1: 1.4}}
    trials = FakeTrials(running={"block": slow.model_dump(), "reference": None}, measure_stages=stages)
    found = profile(trials, limit=limit)
    assert [text.partition(":")[0] for text in found.missing] == missing
    assert {"try_threads", "measure_stages", "inspect"} - set(trials.asked) == left_out
    assert found.step_seconds == 1.5
