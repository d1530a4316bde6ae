"""Profilers as tasks of a trial's process: ``task(live, folder, steps) -> {"file", "lines"}``."""

from __future__ import annotations

import cProfile
import functools
import io
import pstats
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

from autoopt.benchmark.contents import users_dataset
from autoopt.benchmark.live import drives, run_until
from autoopt.records import JsonDict

_MOST = 12
"""Rows of a summary."""


def _train(live: Any, steps: int) -> None:
    run_until(live.training, lambda done, _: done >= steps, most=steps)


@drives
def torch_profiler(live: Any, folder: str, steps: int) -> JsonDict:
    """A trace for TensorBoard, with ranges named as the stages; torch-tb-profiler's breakdown and recommendations."""
    from autoopt.benchmark.trace import read_profile, write_trace

    _train(live, 2)

    def ranged(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)  # schedulers look for their mark on optimizer.step
        def call(*args: Any, **keywords: Any) -> Any:
            with torch.profiler.record_function(stage):
                return function(*args, **keywords)

        return call

    live.training.wrap_stages(ranged)
    written = write_trace(live.training, Path(folder) / "torch", steps=min(steps, 5))
    found = read_profile(written["readable"])
    lines = [f"a step takes {1e3 * found['step_seconds']:.2f} ms"]
    lines += [f"{100 * share:5.1f} %  {role}" for role, share in found["shares"].items() if share > 0]
    lines += [str(text) for text in found["recommendations"]]
    lines.append(f"tensorboard --logdir {Path(folder) / 'torch'}")
    return {"file": written["readable"], "lines": lines}


@drives
def cprofile(live: Any, folder: str, steps: int) -> JsonDict:
    """Functions of the training process by cumulative time."""
    _train(live, 2)
    profiler = cProfile.Profile()
    live.training.do(profiler.enable)
    _train(live, steps)
    live.training.do(profiler.disable)
    path = Path(folder) / "steps.prof"
    profiler.dump_stats(path)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(_MOST)
    rows = [line.rstrip() for line in text.getvalue().splitlines() if line.strip()]
    start = next((i for i, line in enumerate(rows) if "ncalls" in line), 0)
    return {"file": str(path), "lines": [*rows[start:], f"python -m pstats {path}"]}


@drives
def lines(live: Any, folder: str, steps: int) -> JsonDict:
    """line_profiler on the dataset, the collate function, the loss and the model's forward."""
    from line_profiler import LineProfiler

    training, workload = live.training, live.workload
    _train(live, 1)
    dataset = training.loader.loader.dataset
    functions = [
        getattr(type(users_dataset(dataset)), "__getitem__", None),
        training.loader.loader.collate_fn,
        workload.loss,
        type(workload.model).forward,
    ]
    profiler = LineProfiler()
    for function in functions:
        if hasattr(function, "__code__") and "site-packages" not in function.__code__.co_filename:
            profiler.add_function(function)
    training.do(profiler.enable_by_count)
    try:
        if not isinstance(dataset, IterableDataset):  # here, since what runs in workers is not seen
            for index in range(min(32, len(dataset))):
                dataset[index]
        _train(live, steps)
    finally:
        training.do(profiler.disable_by_count)
    path = Path(folder) / "lines.txt"
    with path.open("w", encoding="utf-8") as file:
        profiler.print_stats(stream=file, stripzeros=True)
    return {"file": str(path), "lines": _hottest(profiler.get_stats())}


def _hottest(stats: Any) -> list[str]:
    found = []
    for (file, _, name), timings in stats.timings.items():
        whole = sum(spent for _, _, spent in timings) or 1
        found += [(spent * stats.unit, spent / whole, file, line, name) for line, _, spent in timings]
    found.sort(reverse=True)
    shown = [f"{1e3 * s:9.2f} ms {100 * share:5.1f} % of {name}  {file}:{line}" for s, share, file, line, name in found]
    return shown[:_MOST] or ["none of these functions has source of the user's own"]


@drives
def memory(live: Any, folder: str, steps: int) -> JsonDict:
    """Host memory by line (tracemalloc); on CUDA the allocator's snapshot, too."""
    device = live.device
    _train(live, 2)
    on_cuda = device.kind == "cuda"
    if on_cuda:
        torch.cuda.memory._record_memory_history(max_entries=100_000)
    tracemalloc.start(10)
    before = tracemalloc.take_snapshot()
    _train(live, steps)
    after = tracemalloc.take_snapshot()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    path = Path(folder) / "memory.txt"
    rows = [
        f"{stat.size_diff / 2**10:+10.1f} KiB  {stat.size / 2**10:10.1f} KiB  {stat.traceback[0].filename}:"
        f"{stat.traceback[0].lineno}"
        for stat in after.compare_to(before, "lineno")[:100]
    ]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    said = [f"peak of Python's own allocations over {steps} steps: {peak / 2**20:.1f} MiB", *rows[:_MOST]]
    if on_cuda:
        snapshot = Path(folder) / "memory.pickle"
        torch.cuda.memory._dump_snapshot(str(snapshot))  # type: ignore[no-untyped-call]
        torch.cuda.memory._record_memory_history(enabled=None)
        said.append(f"{snapshot}: open it at pytorch.org/memory_viz; peak {device.peak_bytes() / 2**20:.0f} MiB")
        return {"file": str(snapshot), "lines": said}
    return {"file": str(path), "lines": said}
