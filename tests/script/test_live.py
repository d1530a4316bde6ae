"""A ``build()`` and a script are one kind of training to tasks: each task runs on both, through the protocol alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autoopt.benchmark import tasks as benchmark_tasks
from autoopt.benchmark.trial_context import TrialContext
from autoopt.profilers import tasks as profilers_tasks
from autoopt.records import JsonDict
from autoopt.records.protocol import TrialSpec
from autoopt.registry import load_strategies
from autoopt.simplify import tasks as simplify_tasks
from tests.script import in_process
from tests.script.conftest import StartScript

TINY = str(Path(__file__).parents[1] / "workloads" / "tiny.py") + ":build"
PLAN: JsonDict = {"changes": [{"strategy": "channels_last", "setting": {}}]}
TRAIN: JsonDict = {"max_seconds": 60.0, "max_steps": 60}

MEASURING: tuple[tuple[str, JsonDict], ...] = (
    ("benchmark:ready", {}),
    ("benchmark:facts", {}),
    ("benchmark:environment", {}),
    ("benchmark:cpu_clock", {}),
    ("benchmark:warm_up", {"max_seconds": 0.5}),
    ("benchmark:run_block", {"seconds": 0.05}),
    ("benchmark:switched_block", {"plan": PLAN, "seconds": 0.05}),
    ("benchmark:monitored_block", {"seconds": 0.05}),
    ("benchmark:probe_losses", {"steps": 3}),
    ("benchmark:evaluations", {"count": 1, "seconds": 5.0}),
    ("benchmark:flops", {}),
    ("benchmark:inspect", {"strategies": ["channels_last", "amp", "fused_optimizer", "flash_attention", "workers"]}),
    ("benchmark:trace", {"directory": ".", "steps": 2}),
    ("simplify:measure_peaks", {}),
    ("simplify:running", {"seconds": 0.05}),
    ("simplify:measure_stages", {"seconds": 1.0}),
    ("simplify:own_code", {"seconds": 0.05}),
    ("simplify:try_threads", {"counts": [1], "seconds": 0.2}),
    ("simplify:measure_messages", {}),
    ("simplify:advise", {}),
    ("benchmark:largest_batch", {"batches": 4}),
)
TRAINING: tuple[tuple[str, JsonDict], ...] = (
    ("benchmark:train_leg", {"seconds": 0.01, **TRAIN}),
    ("benchmark:train", {"steps": 20, **TRAIN}),
    ("benchmark:train", TRAIN),
)
PROBING: tuple[tuple[str, JsonDict], ...] = (
    ("benchmark:probe", {"out": "probe.npz", "steps": 12, "seconds": 2.0, "until": 20}),
)
PROFILING: tuple[tuple[str, JsonDict], ...] = tuple(
    (f"profilers:{tool}", {"folder": ".", "steps": 3}) for tool in ("cprofile", "memory", "lines", "torch_profiler")
)

Ask = Callable[[str, JsonDict], JsonDict]


def _tasks(module: ModuleType) -> set[str]:
    room = module.__name__.split(".")[1]
    own = (name for name, found in vars(module).items() if getattr(found, "__module__", "") == module.__name__)
    return {f"{room}:{name}" for name in own if not name.startswith("_")}


def test_every_task_is_asked_below() -> None:
    there = _tasks(benchmark_tasks) | _tasks(simplify_tasks) | _tasks(profilers_tasks)
    assert there == {name for name, _ in (*MEASURING, *TRAINING, *PROBING, *PROFILING)}


@pytest.fixture(params=["build", "script"])
def ask(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Asks one live training, of which only the protocol can be reached."""
    if request.param == "build":
        monkeypatch.chdir(tmp_path)
        live = TrialContext(TrialSpec(workload=TINY, device="cpu"), load_strategies())
        assert in_process.narrow(live)["missing"] == []
        rooms = {"benchmark": benchmark_tasks, "simplify": simplify_tasks, "profilers": profilers_tasks}

        def here(task: str, arguments: JsonDict) -> JsonDict:
            room, _, name = task.partition(":")
            found: JsonDict = getattr(rooms[room], name)(live, **arguments)
            return found

        yield here
        live.close()
        return
    start: StartScript = request.getfixturevalue("start_script")
    with start("plain.py", "100000") as process:
        assert process.call("tests.script.in_process:narrow")["missing"] == []

        def there(task: str, arguments: JsonDict) -> JsonDict:
            room, _, name = task.partition(":")
            found: JsonDict = process.call(f"autoopt.{room}.tasks:{name}", timeout=120.0, **arguments)
            return found

        yield there


@pytest.mark.parametrize(
    "asked", [MEASURING, TRAINING, PROBING, PROFILING], ids=["measure", "train", "probe", "profile"]
)
def test_tasks_reach_nothing_of_a_training_but_the_protocol(ask: Ask, asked: tuple[tuple[str, JsonDict], ...]) -> None:
    timings: Any = None
    for task, arguments in asked:
        if task.startswith("profilers:"):
            pytest.importorskip(
                {"lines": "line_profiler", "torch_profiler": "torch_tb_profiler"}.get(task[10:], "torch")
            )
        given = {**arguments, "timings": timings} if task == "simplify:advise" else arguments
        found = ask(task, given)
        assert isinstance(found, dict), task
        if task == "simplify:measure_stages":
            timings = found
