"""Documents of a training in several processes: what it spends on messages, and how it scales."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from autoopt.records.base import Estimate
from autoopt.records.record import Record


class Spread(Record):
    """Seconds of repeats of one thing: quartiles."""

    low: float
    median: float
    high: float
    n: int


class Communication(Record):
    """Messages of one step of several processes, measured in them. Seconds.

    ``gradient_bytes``: each process sends in a step. ``alone``: sending them with nothing else to do, in the buckets
    that the training uses. ``apart``: forward and backward without messages, by rank. ``exposed``: what messages add to
    the slowest process, the rest of ``alone`` being hidden behind its backward pass. ``by_size``: all-reduce by bytes.
    ``straggler``: the rank that the others wait for, where its quartiles lie above theirs. ``synchronized_layers``:
    BatchNorm layers that see the samples of all processes, and ``synchronized_seconds`` what that adds to forward and
    backward; None where there is no such layer.
    """

    processes: int
    gradient_bytes: int
    alone: Spread
    apart: tuple[Spread, ...]
    exposed: float
    by_size: dict[int, float] = field(default_factory=dict)
    straggler: int | None = None
    synchronized_layers: int = 0
    synchronized_seconds: float | None = None

    @property
    def hidden(self) -> float:
        """Seconds of sending that cost the step nothing."""
        return max(0.0, self.alone.median - self.exposed)

    @property
    def peak_bytes_per_second(self) -> float | None:
        """The most that an all-reduce got through, of any size."""
        return max((size / seconds for size, seconds in self.by_size.items() if seconds > 0), default=None)


class ScalingPoint(Record):
    """The same plan in so many processes. ``throughput``: over that of one; ``efficiency``: of that, over as many."""

    processes: int
    throughput: Estimate
    efficiency: Estimate
    source: Literal["measured", "trial"] = "measured"


class ScalingForecast(Record):
    """A what-if on the graph: the same plan in so many processes, each on a device as those that were measured.

    ``throughput``: over that of one; ``efficiency``: of that, over as many; ``step_seconds``: of a step.
    """

    processes: int
    throughput: Estimate
    efficiency: Estimate
    step_seconds: float


class Scaling(Record):
    """How training scales with processes, from comparisons alternately with one process.

    ``forecast``: what the graph says of other numbers of processes; None where messages were not measured.
    """

    points: tuple[ScalingPoint, ...] = ()
    communication: Communication | None = None
    forecast: tuple[ScalingForecast, ...] | None = None
