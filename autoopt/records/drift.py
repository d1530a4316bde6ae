"""Drift of a long run: how its steps and the counters next to them changed from its early to its late windows."""

from __future__ import annotations

from autoopt.records.record import Record


class Growth(Record):
    """One counter over the windows of a run.

    ``early``, ``late``: medians of the first and the last third of the windows. ``slope``: change a step, with the 90 %
    interval of windows from ``low`` to ``high``. ``grows``: the interval is above zero, and late windows lie above
    early ones. ``means``: the reason behind such growth. ``stages``: those that it can slow; empty: any. ``explains``:
    share of the slowdown that it makes up; None where that is unknown. ``file``, ``line``: where the script makes
    it grow.
    """

    name: str
    unit: str
    early: float
    late: float
    slope: float
    low: float
    high: float
    grows: bool = False
    means: str = ""
    stages: tuple[str, ...] = ()
    explains: float | None = None
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        at = "" if self.file is None else f" at {self.file}:{self.line}" if self.line else f" in {self.file}"
        means = f"; {self.means}" if self.means else ""
        slope = f"{self.slope:.3g} {self.unit}".strip()
        return (
            f"{self.name} grows by {slope} a step{at} (90 % interval {self.low:.3g} to "
            f"{self.high:.3g}; {self.early:.4g} early, {self.late:.4g} late){means}"
        )


class Drift(Record):
    """What ``profile --watch`` found.

    ``step``: milliseconds of a training step; None where the run ended before two windows could be compared. ``own``:
    the same without what slows every stage alike, which is the machine. ``slowed``: the stage that took most of the
    slowdown; None where ``own`` does not grow. ``causes``: names of the counters that grow together with the step, the
    likeliest first.
    """

    steps: int
    seconds: float
    least_steps: int
    step: Growth | None = None
    own: Growth | None = None
    slowed: str | None = None
    stages: tuple[Growth, ...] = ()
    counters: tuple[Growth, ...] = ()
    causes: tuple[str, ...] = ()

    def summary(self) -> tuple[str, ...]:
        """The finding in sentences: the verdict first, then each counter that grows."""
        if self.step is None or self.own is None:
            return (
                f"drift: only {self.steps} steps were watched, and two windows to compare need at least "
                f"{self.least_steps}: watch a longer run, or give a larger --budget",
            )
        growing = {each.name: each for each in self.counters if each.grows}
        times = f"{self.step.early:.4g} ms a step early, {self.step.late:.4g} ms late"
        if not self.step.grows and self.slowed is None:
            noise = "within noise" if self.step.high >= 0 else "not slower"
            return (f"no drift: {times}, {noise}", *(f"  {each}" for each in growing.values()))
        where = f"most of it in {self.slowed}"
        if self.slowed is None:
            where = "every stage alike: the machine grew slower (heat, clocks, other programs), not the script"
        slope = f"{self.step.slope:.2g} ms more each step, 90 % interval {self.step.low:.2g} to {self.step.high:.2g}"
        cause = f"the likeliest cause: {growing.pop(self.causes[0])}" if self.causes else "no counter grows with it"
        return (
            f"drift: {times} ({slope}), {where}; {cause}",
            *(f"  {'may add to it' if each.name in self.causes else 'also'}: {each}" for each in growing.values()),
        )
