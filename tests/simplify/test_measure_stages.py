"""Measuring the stages leaves a training as it was, and gives the round what it needs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from autoopt.records import Peaks, Plan, Round
from autoopt.records.messages import Block
from autoopt.setup import Setup
from autoopt.simplify import drilldown
from autoopt.simplify.analyse import analyse
from autoopt.simplify.batches import ChildFailed, Fetch, in_child
from autoopt.simplify.drilldown import measure_inputs
from autoopt.simplify.microbenchmarks import Microbenchmark, interleaved
from autoopt.simplify.pipeline import Pipeline
from autoopt.simplify.stage_timings import StageTimings
from autoopt.simplify.tasks import measure_stages

PEAKS = Peaks(
    matmul_fp32_flops_per_second=1e12, matmul_bf16_flops_per_second=4e12, memory_bytes_per_second=1e11,
    launch_seconds=1e-6, 
)  # fmt: skip

NOISY = """
    class Noisy(Rows):
        def __init__(self):
            super().__init__()
            self.read = 0

        def __getitem__(self, index):
            self.read += 1
            x, y = super().__getitem__(index)
            return x + 0.1 * torch.randn(16), y

    class Dropping(Net):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(16)
            self.drop = nn.Dropout(0.3)

        def forward(self, x):
            return super().forward(self.drop(self.norm(x)))

    def build():
        return workload(model=Dropping(), train_data=Noisy(), accumulation=2, clip_grad_norm=1.0,
                        scheduler=lambda optimizer, total: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total))
"""


def round_of(timings: StageTimings, peaks: Peaks = PEAKS) -> Round:
    return analyse(0, Plan(), timings, Block(steps=1, samples=8, seconds=0.005), peaks)


def measured(training: Any, seconds: float = 0.5) -> StageTimings:
    return StageTimings.model_validate(measure_stages(SimpleNamespace(training=training), seconds=seconds))


def steps(training: Any, count: int) -> list[float]:
    return [float(training.step(training.next())) for _ in range(count)]


def test_measuring_leaves_no_trace(plant: Callable[[str], Any]) -> None:
    """The losses that follow are those of a training that was never looked at, and the dataset was not read."""
    planted = plant(NOISY)
    plain, looked = planted.training(), planted.training()
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    expected = steps(plain, 3), steps(plain, 5)
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    first = steps(looked, 3)
    read = looked.loader.loader.dataset.read
    mode = [module.training for module in looked.model.modules()]
    found = measured(looked)
    assert looked.loader.loader.dataset.read == read
    assert [module.training for module in looked.model.modules()] == mode
    assert all(parameter.grad is None for parameter in looked.model.parameters())
    assert (first, steps(looked, 5)) == expected
    assert found.accumulation == 2
    assert found.notes == ()


def test_every_stage_of_a_small_workload_is_timed(plant: Callable[[str], Any]) -> None:
    found = measured(plant(NOISY).training(setup=Setup().with_cadence(checkpoint_every=5)))
    assert found.batch_size == 8
    assert found.batch_bytes == 8 * (16 * 4 + 8)
    assert found.launches
    flops = sum(operator.flops or 0 for operator in found.operators)
    assert flops == pytest.approx(3 * 2 * 8 * (16 * 32 + 32 * 3), rel=0.01)
    block = Block(steps=10, samples=160, seconds=0.02, stage_seconds={"data": 0.005, "forward": 0.005})
    round_ = analyse(0, Plan(), found, block, PEAKS)
    assert Round.model_validate_json(round_.model_dump_json()) == round_
    names = [stage.name for stage in round_.stages]
    assert names == ["storage", "preparation", "collate", "copy", "forward", "backward", "optimizer", "host",
                     "evaluate", "checkpoint"]  # fmt: skip
    assert all(
        stage.seconds > 0 for stage in round_.stages if stage.name not in ("storage", "copy", "backward", "host")
    )
    assert min(round_.simulation.handover_seconds, round_.simulation.receive_seconds) > 0
    assert round_.bottleneck in names
    assert round_.step_seconds == pytest.approx(0.002)
    assert all(stage.ceiling_seconds is None or stage.ceiling_seconds <= stage.seconds for stage in round_.stages)


def test_lines_that_wait_and_lines_that_compute_are_told_apart(plant: Callable[[str], Any]) -> None:
    planted = plant("""
        class Waiting(Rows):
            def __getitem__(self, index):
                time.sleep(0.004)  # planted
                end = time.thread_time() + 0.001
                while time.thread_time() < end:  # busy
                    pass
                return super().__getitem__(index)

        def build():
            return workload(train_data=Waiting())
    """)
    found = measure_inputs(planted.training().loader.loader, 1.0)
    assert found.waiting[-1].line == planted.line("planted")
    assert found.waiting[-1].file == str(planted.path)
    assert found.deeper[-1].line in (planted.line("busy"), planted.line("busy") + 1)


class Machine:
    """Clocks that move by what a sample costs: ``wait`` seconds asleep, ``cpu`` on a core, ``ready`` without one."""

    def __init__(self, wait: float, cpu: float, ready: float) -> None:
        self.wait, self.work, self.ready = wait, cpu, ready
        self.wall = self.cpu = self.delay = 0.0
        self.switches = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        self.wall += self.wait + self.work + self.ready
        self.cpu += self.work
        self.delay += self.ready
        self.switches += self.wait > 0
        return torch.zeros(2)


@pytest.mark.parametrize("wait", [0.0, 0.004])
def test_waiting_is_what_is_neither_on_a_core_nor_ready_for_one(wait: float, monkeypatch: pytest.MonkeyPatch) -> None:
    machine: Any = Machine(wait, 0.001, 0.002)
    clocks = {"perf_counter": lambda: machine.wall, "process_time": lambda: machine.cpu}
    monkeypatch.setattr(drilldown, "time", SimpleNamespace(**clocks))
    monkeypatch.setattr(drilldown, "_run_delay", lambda: machine.delay)
    usage = SimpleNamespace(RUSAGE_THREAD=0, getrusage=lambda who: SimpleNamespace(ru_nvcsw=machine.switches))
    monkeypatch.setattr(drilldown, "resource", usage)
    monkeypatch.setattr(drilldown, "ReferenceSpeed", lambda: SimpleNamespace(now=lambda: 1e-4))
    loader: Any = torch.utils.data.DataLoader(machine, batch_size=8)
    timing, _ = drilldown.time_sample(Fetch(loader), 1.0)
    assert timing.wait_seconds == pytest.approx(wait)
    assert timing.cpu_seconds == pytest.approx(0.001)
    assert timing.seconds == pytest.approx(wait + 0.003)


def test_transforms_are_opened(plant: Callable[[str], Any]) -> None:
    planted = plant("""
        class Compose:
            def __init__(self, transforms):
                self.transforms = transforms

            def __call__(self, x):
                for transform in self.transforms:
                    x = transform(x)
                return x

        class Slow:
            def __call__(self, x):  # planted
                end = time.thread_time() + 0.001
                while time.thread_time() < end:
                    pass
                return x

        class Fast:
            def __call__(self, x):
                return x

        class Augmented(Rows):
            transform = Compose([Fast(), Slow(), Fast()])

            def __getitem__(self, index):
                x, y = super().__getitem__(index)
                return self.transform(x), y

        def build():
            return workload(train_data=Augmented())
    """)
    found = measure_inputs(planted.training().loader.loader, 0.6)
    (slow,) = [item for item in found.deeper if item.kind == "transform"]
    assert (slow.name, slow.file, slow.line) == ("Slow", str(planted.path), planted.line())
    assert slow.seconds > 0.0009


def test_the_costliest_module_and_its_line(plant: Callable[[str], Any]) -> None:
    planted = plant("""
        class Slow(nn.Module):
            def forward(self, x):
                end = time.thread_time() + 0.03
                while time.thread_time() < end:  # planted
                    pass
                return x * 2

        class Holding(Net):
            def __init__(self):
                super().__init__()
                self.inner = nn.Sequential(nn.Linear(16, 16), Slow())

            def forward(self, x):
                return super().forward(self.inner(x))

        def build():
            return workload(model=Holding())
    """)
    round_ = round_of(measured(planted.training(), 1.5))
    assert round_.bottleneck == "forward"
    assert [item.name for item in round_.deeper if item.kind == "module"] == ["inner (Sequential)", "inner.1 (Slow)"]
    assert round_.deeper[-1].line in (planted.line(), planted.line() + 1)


def test_iterable_datasets_and_own_batches(plant: Callable[[str], Any]) -> None:
    planted = plant("""
        def build():
            return workload(train_data=DataLoader(Stream(), batch_size=8), batch_size=None)
    """)
    found = measured(planted.training())
    assert found.notes == ()
    assert [stage.name for stage in round_of(found).stages][:3] == ["storage", "preparation", "collate"]
    fetch = Fetch(planted.training().loader.loader)
    assert [len(fetch.samples([], 8)) for _ in range(5)] == [8] * 5


def test_a_microbenchmark_that_fails_leaves_a_note_not_nothing(plant: Callable[[str], Any]) -> None:
    planted = plant("""
        def broken(model, batches):
            raise ValueError("no labels")

        def build():
            return workload(evaluate=broken)
    """)
    found = measured(planted.training(), 0.3)
    names = [stage.name for stage in round_of(found).stages]
    assert "evaluate" not in names
    assert "forward" in names
    assert any("no labels" in note for note in found.notes)


def test_a_child_that_fails_says_how() -> None:
    def fails() -> dict[str, Any]:
        raise OSError("no such file")

    def dies() -> dict[str, Any]:
        import os

        os._exit(3)

    with pytest.raises(ChildFailed, match="OSError: no such file"):
        in_child(fails, 20.0)
    with pytest.raises(ChildFailed, match="died"):
        in_child(dies, 20.0)
    assert in_child(lambda: {"threads": torch.get_num_threads()}, 20.0) == {"threads": 1}


def test_interleaved_microbenchmarks_take_turns_and_keep_the_first_call_apart() -> None:
    order: list[str] = []
    both = [Microbenchmark(lambda name=name: order.append(name), lambda: None) for name in "ab"]  # type: ignore[misc]
    interleaved(both, 0.05, least=3, most=5)
    assert "".join(order) == "ab" * (len(order) // 2)
    assert 1 + 3 <= len(order) // 2 <= 1 + 5


def test_a_ceiling_that_a_measurement_beats_is_lowered_and_said_so(plant: Callable[[str], Any]) -> None:
    found = measured(plant("def build():\n    return workload()").training(), 0.3)
    slow = PEAKS.model_copy(update={"matmul_fp32_flops_per_second": 1e6, "matmul_bf16_flops_per_second": None})
    forward = Pipeline(round_of(found, slow)).stage("forward")
    assert forward.gap == 1.0
    assert "was wrong" in forward.note


class WholeBatches(torch.utils.data.Dataset[Any]):
    """A dataset that fetches many at once and gives a batch that only its collate function understands."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index)), index % 2

    def __getitems__(self, indices: list[int]) -> dict[str, Any]:
        return {"whole": [self[index] for index in indices]}


def unwrapped(batch: dict[str, Any]) -> Any:
    return torch.utils.data.default_collate(batch["whole"])


def test_a_dataset_that_gives_whole_batches_is_measured_by_its_samples() -> None:
    loader: Any = torch.utils.data.DataLoader(WholeBatches(), batch_size=8, collate_fn=unwrapped)
    timings = StageTimings(cores=2, batch_size=8, inputs=measure_inputs(loader, 0.3))
    assert [stage.name for stage in round_of(timings).stages][:3] == ["storage", "preparation", "collate"]


def test_the_first_calls_of_slow_microbenchmarks_are_one_of_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(0.0, 0.5)  # every look at the clock half a second later
    monkeypatch.setattr("autoopt.simplify.microbenchmarks.time.perf_counter", lambda: next(now))
    order: list[str] = []
    interleaved([Microbenchmark(lambda name=name: order.append(name)) for name in "ab"], 1.0)  # type: ignore[misc]
    assert "".join(order) == "abab"
