"""Parts of every document: estimates, verdicts, plans."""

from __future__ import annotations

import math
from dataclasses import field
from functools import cached_property
from typing import Literal

from autoopt.records.record import JsonDict, Record, StrEnum

SCHEMA_VERSION = 1
"""Of every document; a field that is renamed or dropped makes another."""


class EstimateKind(StrEnum):
    """How an estimate came about.

    ``measured`` on running steps; a prediction is ``simulated`` on the pipeline graph, ``tried`` on a copy and put into
    the graph, or ``declared`` by a strategy, which is a guess with no interval to show. A ``bound`` predicts nothing:
    it is the most that the ceilings of the stages leave to gain.
    """

    MEASURED = "measured"
    SIMULATED = "simulated"
    TRIED = "tried"
    DECLARED = "declared"
    BOUND = "bound"


Z = 1.96
"""Standard deviations from the middle of a normal distribution to the ends of its 95 %."""


class Estimate(Record):
    """A value with its interval. ``n``: the independent repeats that it rests on.

    ``confidence`` is that of a measured interval. A prediction has none: its ends are the pipeline's own error, or
    the least and the most that a strategy holds possible.
    """

    value: float
    low: float
    high: float
    confidence: float | None = 0.95
    n: int
    kind: EstimateKind = EstimateKind.MEASURED

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != EstimateKind.MEASURED:
            object.__setattr__(self, "confidence", None)
        if not self.low <= self.value <= self.high:
            raise ValueError(f"an estimate needs low <= value <= high, got {self.low}, {self.value}, {self.high}")

    @property
    def log_sd(self) -> float:
        """Standard deviation of its logarithm, by an interval of 95 %; infinite where that begins at zero."""
        return math.log(self.high / self.low) / (2 * Z) if self.low > 0 else math.inf

    def text(self, digits: str = ".2f", unit: str = "x", scale: float = 1.0) -> str:
        """``1.23x [1.20, 1.26]``: the value with its interval, in a unit that is so many times smaller."""
        value, low, high = (format(scale * each, digits) for each in (self.value, self.low, self.high))
        return f"{value}{unit} [{low}, {high}]"

    def as_kind(self, kind: EstimateKind | str) -> Estimate:
        """The same numbers as another kind of estimate."""
        return Estimate(**{**self.model_dump(), "kind": EstimateKind(kind)})


class Verdict(StrEnum):
    """Verdict on a trial."""

    KEPT = "kept"
    NO_GAIN = "no_gain"
    HARMFUL = "harmful"
    QUALITY_LOST = "quality_lost"
    INCONCLUSIVE = "inconclusive"
    FAILED = "failed"
    NOT_APPLICABLE = "not_applicable"
    NOT_TRIED = "not_tried"


class StopReason(StrEnum):
    """Why the search ended."""

    DIMINISHING_RETURNS = "diminishing_returns"
    AT_THE_CEILING = "at_the_ceiling"
    BUDGET = "budget"
    EXHAUSTED = "exhausted"
    INTERRUPTED = "interrupted"


class Change(Record):
    """A strategy with a setting."""

    strategy: str
    setting: JsonDict = field(default_factory=dict)


class Plan(Record):
    """Changes, in the order in which they are applied. The empty plan is the baseline."""

    changes: tuple[Change, ...] = ()

    def names(self) -> tuple[str, ...]:
        return tuple(change.strategy for change in self.changes)

    @cached_property
    def key(self) -> str:
        """The plan as text: equal for equal plans, and usable as a dictionary's key."""
        return self.model_dump_json()

    def setting(self, strategy: str) -> JsonDict | None:
        """The setting that this plan gives to a strategy, or None where it does not hold it."""
        return next((c.setting for c in self.changes if c.strategy == strategy), None)

    @property
    def processes(self) -> int:
        """Processes that train together; one where no change says otherwise."""
        reported = (change.setting.get("processes") for change in self.changes)
        return next((count for count in reported if isinstance(count, int)), 1)

    def with_processes(self, count: int) -> Plan:
        """The same in so many processes; in one, without the change that says so."""
        kept = [change for change in self.changes if count > 1 or "processes" not in change.setting]
        return Plan(
            changes=tuple(
                change.model_copy(update={"setting": {**change.setting, "processes": count}})
                if "processes" in change.setting
                else change
                for change in kept
            )
        )

    def with_change(self, change: Change) -> Plan:
        """This plan with the change added, in place of the same strategy's earlier one."""
        if change.strategy in self.names():
            return Plan(changes=tuple(change if c.strategy == change.strategy else c for c in self.changes))
        return Plan(changes=(*self.changes, change))

    def without(self, strategy: str) -> Plan:
        return Plan(changes=tuple(c for c in self.changes if c.strategy != strategy))


class PlanDocument(Record):
    """plan.json."""

    schema_version: Literal[1] = 1
    changes: tuple[Change, ...] = ()
