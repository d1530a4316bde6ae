"""Cases of the prediction benchmark: planted pipelines, steps that are simulated, changes whose gain is predicted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

WORKLOADS = {
    "photos": "examples/photos.py:build",
    "stdlib_gpt": "examples/stdlib_gpt.py:build",
    "digits": "examples/digits.py:build",
    "lightning_digits": "examples/lightning_digits.py:build",
    "hf_text": "examples/hf_text.py:build",
    "waiting": "benchmarks/prediction/planted.py:waiting",
    "preparing": "benchmarks/prediction/planted.py:preparing",
    "collating": "benchmarks/prediction/planted.py:collating",
    "tiny": "benchmarks/prediction/planted.py:tiny",
}
"""Import strings by name, from the repository's folder."""


@dataclass(frozen=True)
class Change:
    """A change whose gain is predicted on the workload as it is, then measured.

    Args:
        workload: of ``WORKLOADS``.
        strategy: whose prediction it is; ``graph``: the pipeline graph's own, with ``workers`` and ``threads``.
        side: ``input`` or ``compute``: which goal it counts towards.
        setting: of the strategy.
        alone: without the strategy's companions.
        forced: also where the strategy says that it does not apply: a loss can be predicted too.
    """

    workload: str
    strategy: str
    side: str
    setting: dict[str, Any] = field(default_factory=dict)
    alone: bool = False
    forced: bool = False

    @property
    def name(self) -> str:
        text = ",".join(f"{key}={value}" for key, value in self.setting.items())
        return f"gain:{self.workload}:{self.strategy}({text}){' alone' if self.alone else ''}"


def workers(count: int) -> dict[str, Any]:
    return {"num_workers": count, "persistent_workers": True, "prefetch_factor": 2}


def doubled(size: int, factor: float) -> dict[str, Any]:
    return {"size": 2 * size, "learning_rate_factor": factor, "warmup_steps": 0}


ROWS, KEPT = {"form": "rows", "where": "memory"}, {"form": "samples", "where": "memory"}

CHANGES = (
    Change("photos", "workers", "input", workers(2)),
    Change("photos", "workers", "input", workers(1)),
    Change("photos", "graph", "input", {"workers": 2, "threads": 2}),
    Change("photos", "threads", "compute", {"threads": 1}),
    Change("photos", "channels_last", "compute"),
    Change("photos", "fused_optimizer", "compute", {"implementation": "fused"}),
    Change("photos", "batch_size", "compute", doubled(32, 1.4142)),
    Change("stdlib_gpt", "flash_attention", "compute"),
    Change("stdlib_gpt", "threads", "compute", {"threads": 1}),
    Change("stdlib_gpt", "fused_optimizer", "compute", {"implementation": "fused"}),
    Change("stdlib_gpt", "batch_size", "compute", doubled(32, 1.4142)),
    Change("stdlib_gpt", "prepared_samples", "input", ROWS),
    Change("stdlib_gpt", "checkpointing", "compute", {"every": 1}, alone=True, forced=True),
    Change("stdlib_gpt", "amp", "compute", {"dtype": "bfloat16"}, forced=True),
    Change("stdlib_gpt", "compile", "compute", {"mode": "default"}),
    Change("digits", "threads", "compute", {"threads": 1}),
    Change("digits", "prepared_samples", "input", {"form": "batches", "where": "dataset", "index": "tensor"}),
    Change("digits", "prepared_samples", "input", ROWS),
    Change("digits", "prepared_samples", "input", KEPT),
    Change("digits", "fused_optimizer", "compute", {"implementation": "fused"}),
    Change("digits", "batch_size", "compute", doubled(16, 2.0)),
    Change("digits", "workers", "input", workers(1)),
    Change("lightning_digits", "channels_last", "compute"),
    Change("lightning_digits", "threads", "compute", {"threads": 1}),
    Change("lightning_digits", "prepared_samples", "input", ROWS),
    Change("lightning_digits", "batch_size", "compute", doubled(32, 1.4142)),
    Change("hf_text", "threads", "compute", {"threads": 1}),
    Change("hf_text", "batch_size", "compute", doubled(16, 1.4142)),
    Change("waiting", "workers", "input", workers(4)),
    Change("waiting", "prepared_samples", "input", {"form": "threads", "where": "dataset", "threads": 4}),
    Change("waiting", "prepared_samples", "input", KEPT),
    Change("preparing", "workers", "input", workers(2)),
    Change("preparing", "prepared_samples", "input", KEPT),
    Change("preparing", "prepared_samples", "input", ROWS),
    Change("collating", "workers", "input", workers(2)),
    Change("tiny", "batch_size", "compute", doubled(8, 2.0)),
    Change("tiny", "threads", "compute", {"threads": 1}),
)


def names(steps: int) -> Iterator[str]:
    """All cases in the order in which they run, ``steps`` times looked at each workload.

    Changes of the workloads take turns, so that a run that ends early has some of each.
    """
    from benchmarks.prediction.planted import plants

    yield from (f"plant:{plant.name}" for plant in plants())
    yield from (f"step:{workload}:0" for workload in WORKLOADS)
    for number in range(1, steps):
        yield from (f"step:{workload}:{number}" for workload in WORKLOADS)
    yield from time_sliced()


def time_sliced() -> list[str]:
    """The first change of each workload, then the second of each, and so on."""
    queues = [[change.name for change in CHANGES if change.workload == workload] for workload in WORKLOADS]
    return [name for row in itertools.zip_longest(*queues) for name in row if name is not None]
