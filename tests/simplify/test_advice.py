"""Each thing that only a person can change, planted and found at its line."""

from __future__ import annotations

import ast
import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autoopt.benchmark.training import Training
from autoopt.records import Advice, Peaks, Sites
from autoopt.script.applicable import advice_of
from autoopt.setup import Setup
from autoopt.simplify import advise
from autoopt.simplify.advise import advise_training, forced_in_batch, forced_in_step
from autoopt.simplify.batches import cached_batches
from autoopt.simplify.costly import advice_of_calls, watched_calls
from autoopt.simplify.source import Function, Watch, WatchedStep, step_functions, watch
from autoopt.simplify.stage_timings import StageTimings
from autoopt.simplify.tasks import measure_stages
from autoopt.workload import Workload

PEAKS = Peaks(launch_seconds=2e-5, memory_bytes_per_second=1e10)

CASES = {
    "creation": (
        "A tensor is made anew in every step",
        """
        def own(model, batch):
            weight = torch.ones(3000, 300).sum(0)[:3]  # planted
            return F.cross_entropy(model(batch[0]), batch[1], weight=weight)

        def build():
            return workload(loss=own)
        """,
    ),
    "copy": (
        "A copy is made inside the step",
        """
        def own(model, batch):
            x = batch[0].repeat(2000, 1).half()[:8]  # planted
            return F.cross_entropy(model(x.float()), batch[1])

        def build():
            return workload(loss=own)
        """,
    ),
    "loop": (
        "A Python loop over tensors",
        """
        def own(model, batch):
            logits = model(batch[0])
            total = 0.0
            for row in range(len(logits)):
                for column in range(3):
                    total = total + logits[row, column] ** 2  # planted
            return F.cross_entropy(logits, batch[1]) + total * 1e-6

        def build():
            return workload(loss=own)
        """,
    ),
    "float64 in the batch": (
        "float64 in the batch",
        """
        import numpy as np

        class Doubles(Rows):
            def __getitem__(self, index):
                return torch.from_numpy(np.ones(16)), self.y[index]  # planted

        def own(model, batch):
            return F.cross_entropy(model(batch[0].float()), batch[1])

        def build():
            return workload(train_data=Doubles(), loss=own)
        """,
    ),
    "float64 in the step": (
        "float64 in the step",
        """
        class Doubled(Net):
            def forward(self, x):
                x = self.first(x).repeat(500, 1).double()[:8]  # planted
                return self.last(F.relu(x).float())

        def build():
            return workload(model=Doubled())
        """,
    ),
    "unused output": (
        "An output that the loss does not use",
        """
        class Heads(Net):
            def __init__(self):
                super().__init__()
                self.extra = nn.Linear(32, 8)

            def forward(self, x):
                x = F.relu(self.first(x))
                self.more = self.extra(x)  # planted
                return self.last(x)

        def build():
            return workload(model=Heads())
        """,
    ),
    "collate": (
        "Collate goes through the samples in Python",
        """
        def collate(samples):
            x = torch.zeros(len(samples), 16)
            for row, (features, _) in enumerate(samples):  # planted
                for column in range(16):
                    x[row, column] = features[column]
            return x, torch.stack([y for _, y in samples])

        def build():
            return workload(train_data=DataLoader(Rows(), batch_size=8, collate_fn=collate), batch_size=None)
        """,
    ),
}


WAITS = {
    "item": """
        def own(model, batch):
            value = F.cross_entropy(model(batch[0]), batch[1])
            history.append(value.item())  # planted
            return value

        history = []

        def build():
            return workload(loss=own)
    """,
    "cpu": """
        class Fetching(Net):
            def forward(self, x):
                x = self.first(x)
                self.seen = x.detach().cpu()  # planted
                return self.last(x)

        def build():
            return workload(model=Fetching())
    """,
    "print": """
        def own(model, batch):
            value = F.cross_entropy(model(batch[0]), batch[1])
            print(value)  # planted
            return value

        def build():
            return workload(loss=own)
    """,
    "branch on a tensor": """
        def own(model, batch):
            value = F.cross_entropy(model(batch[0]), batch[1])
            if value > 100:  # planted
                value = value * 0.5
            return value

        def build():
            return workload(loss=own)
    """,
}
"""Lines that ask a device for a value."""


@pytest.fixture(autouse=True)
def own_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds in which this process computes: what other programs take of the machine is in no share of a step."""
    plain = time.perf_counter
    for name, module in list(sys.modules.items()):
        if name.startswith("autoopt.") and getattr(module, "perf_counter", None) is plain:
            monkeypatch.setattr(module, "perf_counter", time.process_time)
    monkeypatch.setattr(time, "perf_counter", time.process_time)


def advised(planted: Any) -> list[Advice]:
    training = planted.training()
    timings = StageTimings.model_validate(measure_stages(SimpleNamespace(training=training), 0.3))
    return advise_training(training, cached_batches(training, []), PEAKS, timings)


@pytest.mark.parametrize("name", WAITS)
def test_a_line_that_asks_the_device_for_a_value_is_found(name: str, plant: Callable[[str], Any]) -> None:
    """Watched as if the CPU's tensors were a device's: there is none here that runs on its own."""
    planted = plant(WAITS[name])
    training = planted.training()
    batches = cached_batches(training, [])
    seen = watch(lambda: training.whole_step(batches), torch.device("cpu"))
    functions = step_functions(training.workload.loss, training.workload.model)
    (found,) = advise.sync_advice(functions, seen)
    assert (found.file, found.line) == (str(planted.path), planted.line())
    if name in ("item", "branch on a tensor"):
        assert 0 < found.share < 1
        assert "of a step" in found.evidence


def test_what_torch_asks_of_its_own_is_not_the_users_to_change(plant: Callable[[str], Any]) -> None:
    """AdamW reads its count of steps; the line of the user's that calls it asks for nothing."""
    planted = plant("""
        def step(optimizer, loss):
            loss.backward()
            optimizer.step()
            return loss.item()  # planted

        def build():
            return workload()
    """)
    training = planted.training()
    batch = training.next()[0]
    seen = watch(lambda: planted.module.step(training.optimizer, training.forward(batch)), torch.device("cpu"))
    assert dict(seen.syncs) == {(str(planted.path), planted.line()): 1}
    with Watch(torch.device("cuda")) as other:
        planted.module.step(training.optimizer, training.forward(batch))
    assert other.seen.syncs == {}, "tensors of the CPU are no device's"


def test_the_edit_names_what_is_fetched() -> None:
    line = ("f.py", 3)
    seen = WatchedStep(total_seconds=1.0)
    seen.syncs[line], seen.waited[line] = 2, 0.25
    function = Function("own", "f.py", 1, ast.parse("\n\nhistory.append(value.item())"))
    (found,) = advise.sync_advice([function], seen)
    assert found.suggestion.startswith("keep value.detach() as a tensor")
    assert found.share == 0.25
    assert "25% of a step" in found.evidence


def test_what_costs_next_to_nothing_is_told_only_where_it_must_be_copied(plant: Callable[[str], Any]) -> None:
    line = ("f.py", 1)
    function = Function("own", *line, ast.parse("weight = torch.tensor([1.0])"))
    cheap, dear = WatchedStep(total_seconds=1.0), WatchedStep(total_seconds=1.0)
    cheap.seconds[line], dear.seconds[line] = 0.001, 0.2
    assert advise.creation_advice([function], cheap, waits=False) == []
    (found,) = advise.creation_advice([function], dear, waits=False)
    assert found.share == 0.2
    assert 'self.register_buffer("...", torch.tensor([1.0]), persistent=False)' in found.suggestion
    (found,) = advise.creation_advice([function], cheap, waits=True)
    assert "less than 1%" in found.evidence


@pytest.mark.parametrize("name", CASES)
def test_planted_and_found_at_its_line(name: str, plant: Callable[[str], Any]) -> None:
    title, text = CASES[name]
    planted = plant(text)
    found = [item for item in advised(planted) if title in item.title]
    assert [(item.file, item.line) for item in found][:1] == [(str(planted.path), planted.line())]


CLEAN = """
def build():
    return workload(evaluate_every=10_000)
"""
LAYERS = """
class Deep(Net):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(40))

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return super().forward(x)

def build():
    return workload(model=Deep(), evaluate_every=10_000)
"""


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (CLEAN, ""),
        pytest.param(LAYERS, "loop", id="layers in a loop are no loop over tensors"),
        *((WAITS[name], "fetched") for name in ("item", "cpu", "branch on a tensor")),  # on a CPU nobody waits for it
    ],
)
def test_what_costs_nothing_here_is_not_told(text: str, title: str, plant: Callable[[str], Any]) -> None:
    assert [item.title for item in advised(plant(text)) if title in item.title] == []


def _collecting(samples: Any) -> Any:
    gc.collect()
    return torch.utils.data.default_collate(samples)


def _collecting_loss(model: Any, batch: Any) -> Any:
    gc.collect()
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_garbage_that_is_collected_by_force_is_told_with_its_line_and_share() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.zeros(16).long())
    loader = torch.utils.data.DataLoader(data, batch_size=8, collate_fn=_collecting)
    given = Workload(
        model=torch.nn.Linear(4, 2),
        train_data=loader,
        loss=_collecting_loss,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        max_steps=4,
    )
    training = Training(given, Setup(), device="cpu", seed=0)
    try:
        (collated,) = forced_in_batch(training, step=0.01)
        (lost,) = forced_in_step(training, training.next(), step=0.01)
    finally:
        training.close()
    for found, function in ((collated, _collecting), (lost, _collecting_loss)):
        assert "collected by force" in found.title
        assert found.file == __file__
        assert found.line == function.__code__.co_firstlineno + 1
        assert found.share > 0.01


def test_anomaly_detection_that_is_on_is_named() -> None:
    line = {"kind": "forced", "file": "train.py", "line": 9, "end_line": 9, "call": "torch.autograd.detect_anomaly"}
    sites = Sites.model_validate({"command": ["train.py"], "cwd": "/", "sites": [line]})
    assert not advice_of(sites, left_out=["train.py:9 torch.autograd.detect_anomaly"])
    (found,) = advice_of(sites)
    assert "Anomaly detection is on" in found.title
    assert (found.file, found.line) == ("train.py", 9)


def test_calls_of_libraries_and_calls_that_take_nothing_are_not_told() -> None:
    plain = gc.collect
    with watched_calls() as found:
        gc.collect()
        print("", end="")
    assert gc.collect is plain
    assert {name for name, _ in found} == {"gc.collect", "print"}
    assert advice_of_calls(found, step=1e6) == []
    (told,) = advice_of_calls({("print", ("train.py", 3)): [0.01, 0.02]}, step=0.1, batches=2)
    assert told.share == pytest.approx(0.6)
