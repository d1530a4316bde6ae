"""A few steps under torch.profiler: the raw Chrome trace, one that TensorBoard reads rightly, and its profile."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, schedule

from autoopt.benchmark.live import LiveTraining
from autoopt.errors import EnvironmentLacks
from autoopt.records import JsonDict

_RENAMED = {"fwdbwd": "forward_backward", "cuda_runtime": "runtime", "cuda_driver": "runtime"}


def write_trace(training: LiveTraining, directory: Path | str, steps: int) -> JsonDict:
    """Profiles some steps; of several processes each writes its own trace: paths of the ``raw`` and ``readable`` one.

    Args:
        directory: of the run's traces; ``tensorboard --logdir DIRECTORY`` shows what is written there.
        steps: profiled, after one to warm the profiler up. Traces grow fast.
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
    training.do(profiler.start)  # the profiler listens to the thread that trains
    training.follow(lambda done, _: done > steps, lambda *_: profiler.step(), most=steps + 1)
    training.do(profiler.stop)
    stem = f"steps-{training.steps}" if training.group.first else f"steps-rank{training.group.rank}"
    raw = folder / "raw" / f"{stem}.json.gz"
    raw.parent.mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(raw))
    readable = folder / f"{stem}.{time.time_ns() // 1_000_000}.pt.trace.json.gz"
    with gzip.open(raw, "rt", encoding="utf-8") as file:
        document = readable_trace(json.load(file))
    with gzip.open(readable, "wt", encoding="utf-8", compresslevel=6) as file:
        json.dump(document, file)
    return {"raw": str(raw), "readable": str(readable)}


def readable_trace(document: JsonDict) -> JsonDict:
    """The same trace with its categories as torch-tb-profiler knows them.

    torch has renamed some since that parser was written; fed a raw trace it shows no DataLoader time
    and gives no advice.
    """

    def renamed(event: Any) -> Any:
        category = event.get("cat") if isinstance(event, dict) else None
        if category == "user_annotation" and not str(event.get("name", "")).startswith("ProfilerStep#"):
            return {**event, "cat": "cpu_op"}
        return {**event, "cat": _RENAMED[category]} if category in _RENAMED else event

    return {**document, "traceEvents": [renamed(event) for event in document.get("traceEvents", [])]}


def read_profile(path: Path | str) -> JsonDict:
    """Reads a readable trace back (:func:`autoopt.benchmark.trace.readable_trace`).

    Returns:
        ``step_seconds`` (mean), ``shares`` (role, such as ``DataLoader`` or ``Kernel``, to its share of a mean step),
        ``recommendations`` (plain text).

    Raises:
        EnvironmentLacks: torch-tb-profiler is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch_tb_profiler.profiler.data import RunProfileData  # type: ignore[import-untyped]
    except ImportError as error:
        raise EnvironmentLacks(
            f"torch-tb-profiler cannot be imported ({error})", hint="pip install torch-tb-profiler"
        ) from None
    with tempfile.TemporaryDirectory() as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data: Any = RunProfileData.parse("worker0", None, str(path), cache)
        data.process()
        data.analyze()
    roles = ("Kernel", "Memcpy", "Memset", "Communication", "Runtime", "DataLoader", "CpuOp", "Other", "Total")
    seconds = {role: float(cost) / 1e6 for role, cost in zip(roles, data.avg_costs.costs, strict=False)}
    total = seconds.pop("Total", 0.0)
    return {
        "step_seconds": total or None,
        "shares": {role: value / total for role, value in seconds.items()} if total > 0 else {},
        "recommendations": [re.sub("<[^>]+>", "", str(text)) for text in data.recommendations],
    }
