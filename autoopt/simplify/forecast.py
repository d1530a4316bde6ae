"""The throughput that other numbers of processes would have: the pipeline graph with their messages and shares."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.records import Estimate, EstimateKind, Round
from autoopt.records.distributed import Communication, ScalingForecast
from autoopt.simplify.pipeline import LINK, ONE_DRAW, Pipeline
from autoopt.simplify.stage_timings import INPUT

SHARED = (*INPUT, *LINK, "forward", "backward")
"""Stages of which each process has its share of the batch."""
HIDDEN = 0.05
"""Of the seconds of messages: where no more is exposed all of them are hidden, and more might be."""
FARTHEST = 8
"""Processes up to which is reported, or twice as many as were measured: beyond that a machine has another link."""


def forecasts(round_: Round, sent: Communication, *, own_batch: bool, cores: int | None) -> tuple[ScalingForecast, ...]:
    """Throughput over one process in 2, 4, 8 ... processes, each on a device (or share of a CPU) as those measured.

    Args:
        round_: of a plan in several processes, with its messages as a stage.
        sent: its messages.
        own_batch: each process has a batch of its own (a script's); else all share the one batch.
        cores: of the machine; all processes prepare their samples on them. None: not known.
    """
    if sent.processes < 2 or not any(stage.name == "communication" for stage in round_.stages):
        return ()
    model = _Model(Pipeline(round_), sent, own_batch, cores)
    off = abs(round_.simulation_error) if round_.simulation_error is not None else ONE_DRAW
    alone, found, count = model.step(1, sent.hidden), [], 2
    while count <= max(FARTHEST, 2 * sent.processes):
        seconds, best = model.step(count, sent.hidden), model.step(count, model.hides_at_most)
        grown = count if own_batch else 1
        found.append(
            ScalingForecast(
                processes=count,
                throughput=_simulated(alone / seconds * grown, alone / best * grown, off, 1),
                efficiency=_simulated(alone / seconds * grown, alone / best * grown, off, count),
                step_seconds=seconds,
                sending_seconds=sending(sent, count),
                exposed_seconds=model.exposed(count, sent.hidden),
            )
        )
        count *= 2
    return tuple(found)


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


@dataclass(frozen=True)
class _Model:
    """A graph of several processes, asked about other numbers of them."""

    graph: Pipeline
    sent: Communication
    own_batch: bool
    cores: int | None

    @property
    def hides_at_most(self) -> float:
        """Seconds of messages that may be hidden: where all of them were, as many as the backward pass takes."""
        stage = self.graph.stage("backward")
        if self.sent.exposed > HIDDEN * self.sent.alone.median or stage is None:
            return self.sent.hidden
        return max(self.sent.hidden, stage.seconds)

    @property
    def _beyond(self) -> float:
        """Seconds that messages add to the step beyond their own: processes wait for one another."""
        return max(0.0, self.sent.exposed - self.sent.alone.median)

    def _share(self, processes: int) -> float:
        """Samples of a process over those of one that was measured."""
        return 1.0 if self.own_batch else self.sent.processes / processes

    def exposed(self, processes: int, hidden: float) -> float:
        """Seconds of messages that the backward pass does not hide, where it hid so many when they were measured."""
        if processes < 2:
            return 0.0
        return max(0.0, sending(self.sent, processes) - hidden * self._share(processes)) + self._beyond

    def step(self, processes: int, hidden: float) -> float:
        """Seconds of a step in so many processes, whose samples' preparation has the machine's cores."""
        share, stages = self._share(processes), {stage.name: stage for stage in self.graph.stages}
        seconds = {name: stages[name].seconds * share for name in SHARED if name in stages}
        seconds["communication"] = self.sent.hidden + max(0.0, self.exposed(processes, hidden) - self._beyond)
        step = self.graph.simulate(seconds) - (self._beyond if processes < 2 else 0.0)
        work = sum(stages[name].seconds * stages[name].parallel * share for name in INPUT[1:] if name in stages)
        return max(step, work * processes / self.cores) if self.cores else step
