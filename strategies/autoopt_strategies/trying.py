"""How strategies try: settings one after the other, the search of a number by doubling, and changes on copies."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import reduce
from time import perf_counter
from typing import Any

from autoopt import Estimate, Trial
from autoopt_strategies.predictions import LEAST_SAVING

Setting = dict[str, Any]
Settings = Generator[Setting, Trial | None, None]
SAME, CLOSE = 1e-4, 1e-3
"""Relative difference that rounding explains: of a loss in float32, and of a gradient or a loss of many parts."""
TURNS = 7
"""Timings of each of two that are compared: their medians hold where one in three was disturbed."""


def tried_on_copies(live: Any, changes: Iterable[Callable[[Any], Any]]) -> dict[str, float | None]:
    """Forward and backward with changes of the model over without: ``ratio``, and ``ratio_low`` in low precision.

    Kernels of one operator differ by precision: what brings something in float32 may cost several times that in
    bfloat16.
    """
    import torch

    def change(copied: Any) -> Any:
        return reduce(lambda model, each: each(model), changes, copied)

    found = {"ratio": live.ratio_with(change)}
    own = live.setup.precision.dtype is not None or live.training.autocast is not None
    return found if own else {**found, "ratio_low": live.ratio_with(change, under=torch.bfloat16)}


def ratio_in_turns(one: Callable[[], Any], other: Callable[[], Any], device: Any = None) -> float:
    """Seconds of the other over those of the one: the median over turns after the first, which sets things up."""
    import torch

    def wait() -> None:
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize(device)

    def seconds(run: Callable[[], Any]) -> float:
        wait()
        began = perf_counter()
        run()
        wait()
        return perf_counter() - began

    ratios = [1 / max(seconds(one), 1e-9) * seconds(other) for _ in range(TURNS + 1)]
    return statistics.median(ratios[1:])


def kept(trial: Trial | None) -> bool:
    return trial is not None and trial.verdict == "kept"


def first_line(error: Exception) -> str:
    """An error as a reason, in one line."""
    return f"{type(error).__name__}: {error}".strip().split("\n")[0][:200]


def until_kept(settings: Iterable[Setting]) -> Settings:
    """One setting after the other, up to the first that is kept."""
    for setting in settings:
        if kept((yield setting)):
            return


def while_kept(settings: Iterable[Setting]) -> Settings:
    """One setting after the other, as long as each is kept."""
    for setting in settings:
        if not kept((yield setting)):
            return


def more_or_less(first: Setting, more: Setting, less: Setting) -> Settings:
    """A setting, then a bolder one where it is kept, or a milder one."""
    yield more if kept((yield first)) else less


def climb(
    first: int, least: int, most: int, setting: Callable[[int], Setting]
) -> Generator[Setting, Trial | None, int | None]:
    """Searches a number: doubles while each is kept, then refines; where the first does not help, tries half of it.

    Args:
        first: where to begin.
        least, most: the ends of the range, both allowed.
        setting: the setting of a number.

    Returns:
        The best number, or None where none was kept.
    """
    best, failed = None, max(least, min(first, most))
    while kept((yield setting(failed))):
        best = failed
        if best >= most:
            return best
        failed = min(2 * best, most)
    if best is None:
        half = failed // 2
        return half if half >= least and kept((yield setting(half))) else None
    while failed - best > max(1, best // 4):
        middle = (best + failed) // 2
        if kept((yield setting(middle))):
            best = middle
        else:
            failed = middle
    return best


def doubling(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12 ... and the largest number allowed."""
    powers = [2**power for power in range(most.bit_length())]
    return sorted(number for number in {most, *powers, *(3 * power // 2 for power in powers)} if number <= most)


def frugal(numbers: Iterable[int], predicted: Callable[[int], Estimate | None]) -> int | None:
    """The smallest number whose prediction is within a little of the best; None where nothing can be predicted."""
    estimates = {number: predicted(number) for number in numbers}
    known = {number: estimate.value for number, estimate in estimates.items() if estimate is not None}
    if not known:
        return None
    best = max(known.values())
    return min(number for number, value in known.items() if value >= best / (1 + LEAST_SAVING))


@dataclass(frozen=True)
class ChangedOptimizer:
    """``factory -> factory`` whose optimizer is what a function makes of the user's.

    Args:
        change: ``change(optimizer, *arguments) -> optimizer``.
    """

    change: Callable[..., Any]
    arguments: tuple[Any, ...] = ()

    def __call__(self, factory: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda params: self.change(factory(params), *self.arguments)
