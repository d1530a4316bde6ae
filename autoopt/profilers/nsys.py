"""Nsight Systems: NVTX ranges named as our stages; the command is run where nsys is, and told where it is not."""

from __future__ import annotations

import functools
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from autoopt.records import JsonDict, Plan
from autoopt.registry import load_strategies
from autoopt.trial.protocol import TrialSpec

_SECONDS = 600


def command(base: TrialSpec, folder: Path, steps: int) -> list[str]:
    """The command that profiles some steps with nsys."""
    inner = [sys.executable, "-m", "autoopt.profilers.nsys", base.workload, base.device, str(base.seed), str(steps)]
    if base.script is not None:
        inner = list(base.script.command)
    return [
        "nsys",
        "profile",
        "--trace=cuda,nvtx,osrt",
        "--force-overwrite=true",
        f"--output={folder / 'steps'}",
        *inner,
    ]


def run_nsys(base: TrialSpec, folder: Path, steps: int) -> JsonDict:
    """Runs it, or says how to where nsys is installed."""
    words = command(base, folder, steps)
    if shutil.which("nsys") is None:
        lines = ("nsys is not installed here; where it is, run:", shlex.join(words))
        return {"tool": "nsys", "file": None, "lines": lines}
    done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, cwd=base.directory)
    path = folder / "steps.nsys-rep"
    if done.returncode != 0 or not path.exists():
        tail = (done.stderr or done.stdout).strip().splitlines()[-3:]
        return {"tool": "nsys", "file": None, "lines": ("nsys failed:", *tail, shlex.join(words))}
    return {"tool": "nsys", "file": str(path), "lines": (f"nsys stats {path}", f"nsys-ui {path}")}


def with_ranges(training: Any, push: Callable[[str], Any], pop: Callable[[], Any], known: Collection[str] = ()) -> None:
    """Puts a range around each stage of a training, but for those that are known already."""
    training.wrap_stages(lambda stage, function: _ranged(function, stage, push, pop), known)


def _ranged(function: Callable[..., Any], stage: str, push: Callable[[str], Any], pop: Callable[[], Any]) -> Any:
    @functools.wraps(function)  # schedulers look for their mark on optimizer.step
    def ranged(*args: Any, **keywords: Any) -> Any:
        push(stage)
        try:
            return function(*args, **keywords)
        finally:
            pop()

    return ranged


def main(words: list[str]) -> None:
    """Trains some steps with ranges; what nsys looks at."""
    import torch

    from autoopt.benchmark.trial_context import TrialContext

    workload, device, seed, steps = words
    spec: Any = TrialSpec(workload=workload, plan=Plan(), device=device, seed=int(seed))
    live = TrialContext(spec, load_strategies())
    training = live.training
    if torch.cuda.is_available():
        with_ranges(training, torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop)
    training.run_until(lambda done, _: done >= int(steps), most=int(steps))
    live.close()


if __name__ == "__main__":
    main(sys.argv[1:])
