"""The throughput that other numbers of processes would have: the pipeline graph with their messages and shares."""

from __future__ import annotations

from autoopt.records import Estimate, EstimateKind, Round
from autoopt.records.distributed import Communication, ScalingForecast
from autoopt.simplify.pipeline import LINK, ONE_DRAW, Pipeline
from autoopt.simplify.stage_timings import INPUT

SHARED = (*INPUT, *LINK, "forward", "backward")
"""Stages of which each process has its share of the batch."""


def forecasts(round_: Round, sent: Communication, *, own_batch: bool, cores: int | None) -> tuple[ScalingForecast, ...]:
    """Throughput over one process in 2, 4, 8 ... processes, each on a device (or share of a CPU) as those measured.

    Args:
        round_: of a plan in several processes, with its messages as a stage.
        own_batch: each process has a batch of its own (a script's); else all share the one batch.
        cores: of the machine; all processes prepare their samples on them. None: not known.
    """
    if sent.processes < 2 or not any(stage.name == "communication" for stage in round_.stages):
        return ()
    graph = Pipeline(round_)
    stages = {stage.name: stage for stage in graph.stages}
    # of what messages add to the step, the part beyond their own seconds: processes wait for one another
    beyond = max(0.0, sent.exposed - sent.alone.median)
    most_hidden = sent.hidden
    if sent.exposed <= 0.05 * sent.alone.median and "backward" in stages:  # where all were, as many as it takes
        most_hidden = max(sent.hidden, stages["backward"].seconds)

    def share(processes: int) -> float:
        """Samples of a process over those of one that was measured."""
        return 1.0 if own_batch else sent.processes / processes

    def step(processes: int, hidden: float) -> float:
        """Seconds of a step in so many processes, whose samples' preparation has the machine's cores.

        ``hidden``: seconds of messages that the backward pass hid when they were measured.
        """
        seconds = {name: stages[name].seconds * share(processes) for name in SHARED if name in stages}
        seconds["communication"] = sent.hidden + max(0.0, sending(sent, processes) - hidden * share(processes))
        found = graph.simulate(seconds) - (beyond if processes < 2 else 0.0)
        work = sum(stages[name].seconds * stages[name].parallel for name in INPUT[1:] if name in stages)
        return max(found, work * share(processes) * processes / cores) if cores else found

    off = abs(round_.simulation_error) if round_.simulation_error is not None else ONE_DRAW
    alone, told, count = step(1, sent.hidden), list[ScalingForecast](), 2
    # beyond that a machine has another link
    while count <= max(8, 2 * sent.processes):
        seconds, grown = step(count, sent.hidden), count if own_batch else 1
        ratio, most = alone / seconds * grown, alone / step(count, most_hidden) * grown
        told.append(
            ScalingForecast(
                processes=count,
                throughput=_simulated(ratio, most, off, 1),
                efficiency=_simulated(ratio, most, off, count),
                step_seconds=seconds,
            )
        )
        count *= 2
    return tuple(told)


def _simulated(ratio: float, most: float, off: float, over: int) -> Estimate:
    """A simulated ratio and the most it may be, over so many, as uncertain as the graph is off the measured step."""
    width = 1 + max(off, 0.01) * abs(ratio - 1.0) / max(ratio, 1.0)
    low, high = ratio / width / over, most * width / over
    return Estimate(value=ratio / over, low=low, high=high, n=1, kind=EstimateKind.SIMULATED)


def sending(sent: Communication, processes: int) -> float:
    """Seconds of a step's messages between so many processes, by those of the processes that were measured."""
    if processes < 2:
        return 0.0
    hops = (processes - 1) / (sent.processes - 1)
    moved = (1 - 1 / processes) / (1 - 1 / sent.processes)
    latency = min([sent.alone.median, *sent.by_size.values()])
    return latency * hops + (sent.alone.median - latency) * moved
