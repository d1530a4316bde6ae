"""How a training stands, and a bar on standard error that shows it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from autoopt.records import Record


class Progress(Record):
    """``seconds`` and ``samples`` since the first step; ``samples`` None where batches cannot be counted; ``metrics``
    where it was evaluated just now."""

    step: int
    total: int
    seconds: float
    samples: int | None
    loss: float | None
    metrics: dict[str, float]


def told(progress: Progress) -> str:
    """One line."""
    parts = [f"step {progress.step}/{progress.total}", f"{progress.seconds:.1f} s"]
    if progress.samples is not None and progress.seconds > 0:
        parts.append(f"{progress.samples / progress.seconds:.0f} samples/s")
    parts += [f"loss {progress.loss:.4f}"] if progress.loss is not None else []
    return "  ".join([*parts, *(f"{name} {value:.4f}" for name, value in progress.metrics.items())])


@contextmanager
def shown(name: str, *, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Shows progress on standard error: a bar on a terminal, else one line for each evaluation."""
    if quiet:
        yield lambda progress: None
        return
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield lambda progress: print(told(progress), file=sys.stderr) if progress.metrics else None  # noqa: T201
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, TimeRemainingColumn(), TextColumn("{task.fields[now]}"), console=console) as bar:
        task = bar.add_task(name, total=None, now="")

        def update(progress: Progress) -> None:
            now = f"loss {progress.loss:.4f}" if progress.loss is not None else ""
            bar.update(task, completed=progress.step, total=progress.total, now=now)
            if progress.metrics:
                bar.console.print(told(progress), highlight=False)

        yield update
