"""The account of a run: one row for each measured block. Every speed, ratio and interval is a function of rows."""

from __future__ import annotations

from dataclasses import field

from autoopt.records.record import Record


class Account(Record):
    """What was measured in all: blocks and processes, and the seconds of the blocks. The rows are in account.csv."""

    blocks: int
    processes: int
    seconds: float


class Row(Record):
    """One block: a process trained some whole cycles of steps under one plan. Seconds are wall-clock.

    ``plan``: the plan's key. ``process``: the name of its log. ``round``: blocks of one round were measured one after
    the other, in an order drawn at random. ``start``: on the run's clock. ``samples``: None where they cannot be
    counted; a step is then the unit. ``stage_seconds``: exposed seconds by stage; with ``other`` they sum to
    ``seconds``. ``foreign_cpu_seconds``: CPU seconds that other programs used in the meantime; None where the system
    does not tell. ``late_seconds``: of costs paid once, such as compiling again; not in ``seconds``.
    """

    plan: str
    process: str
    round: int
    start: float
    steps: int
    samples: int | None
    seconds: float
    stage_seconds: dict[str, float] = field(default_factory=dict)
    foreign_cpu_seconds: float | None = None
    late_seconds: float = 0.0

    @property
    def foreign_share(self) -> float | None:
        """Cores that other programs used during the block, on average."""
        return None if self.foreign_cpu_seconds is None else self.foreign_cpu_seconds / self.seconds
