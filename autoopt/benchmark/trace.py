"""A few steps under torch.profiler: the raw Chrome trace, and one that TensorBoard's page reads rightly."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, schedule

from autoopt.benchmark.live import LiveTraining
from autoopt.records import JsonDict

_RENAMED = {"fwdbwd": "forward_backward", "cuda_runtime": "runtime", "cuda_driver": "runtime"}


def write_trace(
    training: LiveTraining,
    directory: Path | str,
    steps: int = 4,
    name: str = "",
) -> JsonDict:
    """Profiles some steps.

    Args:
        training: goes on from where it stands.
        directory: of the run's traces; ``tensorboard --logdir DIRECTORY`` shows what is written there.
        steps: profiled, after one to warm the profiler up. Traces grow fast.
        name: of the files.

    Returns:
        ``raw`` and ``readable``, the paths of the two; ``steps``.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU]
    if training.device.kind == "cuda":
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=1, active=steps, repeat=1),
        record_shapes=True,
        profile_memory=False,
        acc_events=True,
    )
    training.profiled(profiler, steps + 1)
    stem = name or f"steps-{training.steps}"
    raw = folder / "raw" / f"{stem}.json.gz"
    raw.parent.mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(raw))
    readable = folder / f"{stem}.{_stamp()}.pt.trace.json.gz"
    _write(readable, readable_trace(_read(raw)))
    return {"raw": str(raw), "readable": str(readable), "steps": steps}


def readable_trace(document: JsonDict) -> JsonDict:
    """The same trace with its categories as torch-tb-profiler knows them.

    torch has renamed some since that parser was written; fed a raw trace it shows no DataLoader time
    and gives no advice.
    """
    return {**document, "traceEvents": [_renamed(event) for event in document.get("traceEvents", [])]}


def _renamed(event: Any) -> Any:
    if not isinstance(event, dict):
        return event
    category = event.get("cat")
    if category == "user_annotation" and not str(event.get("name", "")).startswith("ProfilerStep#"):
        return {**event, "cat": "cpu_op"}
    if category in _RENAMED:
        return {**event, "cat": _RENAMED[category]}
    return event


def _stamp() -> int:
    import time

    return time.time_ns() // 1_000_000


def _read(path: Path) -> JsonDict:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        document: JsonDict = json.load(file)
    return document


def _write(path: Path, document: JsonDict) -> None:
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=6) as file:
        json.dump(document, file)
