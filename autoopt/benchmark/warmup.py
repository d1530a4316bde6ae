"""From the first step to the steady state: found in the step times, charged to ``fixed_seconds``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import ceil
from time import perf_counter

from autoopt.benchmark.blocks import run_block
from autoopt.benchmark.compiling import trouble
from autoopt.benchmark.cycle import cycle_of
from autoopt.benchmark.steady import Steady, find_steady, warmup_excess
from autoopt.benchmark.trial_context import TrialContext
from autoopt.benchmark.whole_run import epoch_start
from autoopt.records.messages import Startup

_LEAST_SECONDS = 0.5
_LEAST_GROUPS = 4
_LEAST_SLOW, _STEADY_SECONDS, _ALIKE = 2, 1.0, 1.2
"""Steady steps fill so many groups; where they are slow, fewer that last for so long and are alike to that factor: what
a process's first steps pay, lazy imports, pages, kernels that are looked for, is paid within two or three of them or
within parts of a second."""
_PART_SECONDS = 0.25


def warm_up(live: TrialContext, max_seconds: float) -> Startup:
    """Trains until steps are steady, or until the time is up.

    A step that compiles again (``torch.compile`` meets a new shape) starts the wait anew, and so does
    any lasting change of level, such as a late search of cuDNN for a new shape.

    Args:
        live: goes on from where its training stands.
        max_seconds: of training; at least two steps are trained.
    """
    training = live.training
    agree = training.group.agree
    first_step, began = training.steps, perf_counter()
    times: list[float] = []
    losses: list[float | None] = []
    waits: list[tuple[float, float]] = []
    compiled_until = 0
    steady: Steady | None = None
    last_look = 0.0
    while True:
        left = agree(max_seconds - (perf_counter() - began))
        part = min(max(_PART_SECONDS, last_look * 0.2), max(left, 0.0))
        block = run_block(training, lambda _, seconds, part=part: seconds >= part, settle=False)  # type: ignore[misc]
        times += block.step_seconds
        losses += block.losses
        waits.append((block.stage_seconds.get("data", 0.0), block.seconds))
        if block.recompilations:
            compiled_until = len(times)
        last_look = agree(perf_counter() - began)
        live.emit({"warm_up_steps": len(times), "seconds": last_look, "compiling": bool(block.recompilations)})
        if last_look >= _LEAST_SECONDS:
            steady = find_steady(times[compiled_until:], least_groups(times))
        if steady is not None or (last_look >= max_seconds and len(times) >= 2):
            break
    if training.device.kind != "cpu":
        training.device.empty_cache()  # what first steps and searches have left behind is no need of the steady ones
    startup = _startup(live, times, losses, steady, compiled_until)
    settled = times[steady.start + compiled_until :] if steady is not None else times[len(times) // 2 :]
    openings = training.openings
    usual = block.stage_seconds.get("data", 0.0) / max(block.steps, 1)
    return startup.model_copy(
        update={
            "first_step": first_step,
            "cycle": int(agree(cycle_of(settled, training.loader.loader.num_workers, _share_waited(waits)))),
            "first_batch_seconds": openings[0] if openings else None,
            "epoch_seconds": epoch_start(openings, training.loader.loader, usual),
        }
    )


def _share_waited(parts: Sequence[tuple[float, float]]) -> float:
    """Share of the later half's seconds that training waited for data: the first batch of all is no steady wait."""
    waited, seconds = (sum(column) for column in zip(*parts[len(parts) // 2 :], strict=True))
    return float(waited / max(seconds, 1e-9))


def least_groups(times: Sequence[float]) -> int:
    """Groups that the steady part must fill, by the latest of these steps.

    Args:
        times: seconds of each step.
    """
    few = min(max(ceil(_STEADY_SECONDS / max(times[-1], 1e-9)), _LEAST_SLOW), _LEAST_GROUPS)
    latest = times[-few:]
    return few if max(latest) <= _ALIKE * min(latest) else _LEAST_GROUPS


def _startup(
    live: TrialContext, times: list[float], losses: list[float | None], steady: Steady | None, offset: int
) -> Startup:
    if steady is not None:
        level = Steady(steady.start + offset, steady.seconds)
    else:
        later = times[len(times) // 2 :]
        level = Steady(len(times) // 2, statistics.median(later))
    return Startup(
        build_seconds=live.build_seconds,
        setup_seconds=live.setup_seconds,
        warmup_seconds=sum(times),
        warmup_steps=len(times),
        steady=steady is not None,
        fixed_seconds=live.build_seconds + live.setup_seconds + warmup_excess(times, level),
        losses=tuple(losses),
        compiler=trouble() if live.setup.compile is not None else None,
    )
