"""Arms that the judging process watches: time on its clock, steps that the weights show, and nothing on their word.

Both processes of a pair begin from one seed and train blocks of the same steps. Each block ends with entries of the
weights in the judge's hands, so that work which is put off is in the block's seconds, and work which is left out, or is
other work, shows next to the other process's weights at the same step.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf, lcm, sqrt
from typing import Any

import numpy as np

from autoopt.benchmark.cputime import cpu_times, foreign_seconds
from autoopt.records import Plan
from autoopt.records.messages import Block, Startup
from autoopt.search.compare.arena import Clock
from autoopt.search.compare.arm import ScriptArm, TrialArm
from autoopt.trial.remote.launcher import AnyTrial
from autoopt.trial.tree import Standing

STEPS = "autoopt.benchmark.tasks:probe_losses"
SAMPLED = "autoopt.comparing.tasks:sampled"

PATIENCE = 60.0
"""Seconds that an answer is waited for at least, however little of the budget is left."""


class Pair:
    """Two processes that train the same steps.

    Args:
        step_seconds: of the baseline; None: as its process shows when it is warm.

    Attributes:
        seed: of both, which neither process before them can have known.
        entries: draws the entries of the weights, and how the weights are changed before the first block; no process
            is given it before.
        start: the step from which blocks begin, in every run of a script.
        seen: of each process, its weights' entries by run and step.
    """

    def __init__(self, step_seconds: float | None = None) -> None:
        self.seed, self.entries = secrets.randbelow(2**31), secrets.randbelow(2**31)
        self.step_seconds = step_seconds
        self.arms: dict[str, WatchedArm] = {}
        self.seen: dict[str, dict[tuple[int, int], list[float | None]]] = {}
        self.blocks = 0
        self.start: int | None = None
        self._lengths: tuple[int, int] | None = None

    def lengths(self, seconds: float, least: int, ramp_seconds: float) -> tuple[int, int]:
        """Steps of each ramp and of each block, whole cycles of both processes; the baseline's step decides."""
        if self._lengths is not None:
            return self._lengths
        if self.step_seconds is None:
            self.step_seconds = self.arms.get("incumbent", next(iter(self.arms.values()))).step_seconds
        step = self.step_seconds
        cycle = lcm(*(arm.cycle for arm in self.arms.values()))
        most = max(min(least, int(2 * seconds / step)), ceil(seconds / step), 1)
        ramp = ceil(ramp_seconds / step) if step <= seconds else 0
        self._lengths = cycle * ceil(max(ramp, int(cycle > 1)) / cycle), cycle * ceil(most / cycle)
        return self._lengths

    def apart(self) -> tuple[float, float]:
        """Squares: how far blocks moved the weights of both processes apart, and how far those of the first.

        Infinitely where a measured block of one has no counterpart in the other.
        """
        one, two = (self.seen.get(name, {}) for name in ("incumbent", "candidate"))
        off = moved = 0.0
        shared = sorted(one.keys() & two.keys())
        steps = [(before, now) for before, now in itertools.pairwise(shared) if before[0] == now[0]]
        for before, now in steps:
            left, right = (np.array(seen[now], float) - np.array(seen[before], float) for seen in (one, two))
            if left.shape != right.shape or not np.isfinite(right - left).all():
                return inf, max(moved, 1.0)
            off, moved = off + float(((right - left) ** 2).sum()), moved + float((left**2).sum())
        return (off, moved) if 2 * len(steps) >= self.blocks else (inf, max(moved, 1.0))


@dataclass
class Pairs:
    """The pairs of processes of a comparison.

    ``step_seconds``: of the baseline, once known; ``samples_per_step``: its own, which both sides' steps are counted
    by; 0 where samples cannot be counted; None: each side's own count holds, since both are the user's. ``spent``:
    steps and seconds of each side, those before each block included. ``tampered``: why a frozen process is not what it
    was; empty where all are.
    """

    step_seconds: float | None = None
    samples_per_step: float | None = None
    all: list[Pair] = field(default_factory=list)
    spent: dict[str, tuple[int, float]] = field(default_factory=dict)
    tampered: str = ""

    def trained(self, side: str, steps: int, seconds: float) -> None:
        before = self.spent.get(side, (0, 0.0))
        self.spent[side] = before[0] + steps, before[1] + seconds

    @property
    def whole(self) -> float | None:
        """Candidate over baseline of all steps over all seconds: what is rare, or done before a block, counts in it."""
        if len(self.spent) < 2:
            return None
        one, two = (steps / seconds for steps, seconds in (self.spent["baseline"], self.spent["candidate"]))
        return two / one

    def joined(self, label: str) -> Pair:
        """The pair that a further process belongs to."""
        if self.all and self.step_seconds is None:
            self.step_seconds = self.all[-1].step_seconds
        if not self.all or label in self.all[-1].arms:
            self.all.append(Pair(self.step_seconds))
        return self.all[-1]


def apart(pairs: Sequence[Pair]) -> float | None:
    """How far apart the measured steps moved the weights of both sides, over how far they moved them.

    None where no step moved anything. A side that leaves out a share of its steps is at least that share apart.
    """
    squares = [pair.apart() for pair in pairs if pair.blocks]
    off, moved = (sum(each) for each in zip(*squares, strict=True)) if squares else (0.0, 0.0)
    return None if not moved else sqrt(off / moved) if off < inf else 1.0


class WatchedArm(TrialArm):
    """Seconds of blocks and of the start are those between question and answer on ``clock``.

    What it returns is made anew from that and from what the kernel counts; no second comes from the process itself.
    The ramp after a thaw is a question of its own, so that all of the measured block lies between two readings of the
    clock. Nothing is left out: a script's evaluations and checkpoints within a block are a part of its seconds.

    Args:
        clock: of the judging process.
        began: on that clock, when its start was asked for.
        side: ``baseline`` or ``candidate``.
        limits: of the arm, see ``TrialArm``.
    """

    def __init__(
        self,
        process: AnyTrial,
        plan: Plan,
        *,
        clock: Clock,
        began: float,
        side: str,
        label: str,
        pair: Pair,
        pairs: Pairs,
        **limits: Any,
    ) -> None:
        super().__init__(process, plan, **limits)
        self._clock, self._began, self._side, self._label = clock, began, side, label
        self.pair, self._pairs = pair, pairs
        self.cycle, self.run, self.position, self.aligned = 1, 0, 0, False
        self._standing: Standing = {}
        pair.arms[label] = self

    @property
    def step_seconds(self) -> float:
        """Of the quickest of some steps once it is warm: what a step takes where nothing disturbs it."""
        return self._step_seconds

    def warm_up(self, max_seconds: float) -> Startup:
        reported = super().warm_up(max_seconds)
        self.cycle = reported.cycle
        seconds = []
        # the shortest of three was not disturbed
        for _ in range(3):
            began = self._clock()
            self._trained(1)
            seconds.append(self._clock() - began)
        self._step_seconds = max(min(seconds), 1e-9)
        steady = self.position * self._step_seconds  # the weights show at which step it stands
        start = max(self._clock() - self._began - steady, 0.0)
        return Startup(
            build_seconds=start, setup_seconds=0.0, warmup_seconds=steady, warmup_steps=self.position,
            fixed_seconds=start, cycle=reported.cycle, compiler=reported.compiler,
            first_step=reported.first_step, losses=reported.losses,
        )  # fmt: skip

    def _trained(self, steps: int) -> Block:
        timeout = self._patience * steps * self._step_seconds + PATIENCE
        block = Block.model_validate(self._process.call(STEPS, timeout=timeout, steps=steps))
        self.position = block.first_step + block.steps
        return block

    def _sample(self) -> None:
        found = self._process.call(SAMPLED, timeout=self._patience + PATIENCE, seed=self.pair.entries)
        self.pair.seen.setdefault(self._label, {})[self.run, self.position] = found["values"]

    def block(self, seconds: float, min_steps: int, ramp_seconds: float, cycle: int = 1) -> Block:
        if not self.aligned:  # trains to the step from which both processes of the pair are measured
            if self.pair.start is None:
                positions = [arm.position for arm in self.pair.arms.values()]
                # one that is alone cannot know how far the other one warms up
                self.pair.start = max(positions) if len(positions) > 1 else 2 * self.position
            if self.run:
                self._trained(1)
            if self.position < self.pair.start:
                self._trained(self.pair.start - self.position)
            patience, entries = self._patience + PATIENCE, self.pair.entries
            self._process.call("autoopt.comparing.tasks:moved_away", timeout=patience, seed=entries)
            self.aligned = True
            self._sample()
        ramp, steps = self.pair.lengths(seconds, min_steps, ramp_seconds)
        whole = self._clock()
        if ramp:
            self._trained(ramp)
        before, began = cpu_times(with_children=True), self._clock()
        reported = self._trained(steps)
        self._sample()
        ended, after = self._clock(), cpu_times(with_children=True)
        self.pair.blocks += 1
        self._pairs.trained(self._side, ramp + steps, ended - whole)
        each = self._pairs.samples_per_step
        return Block(
            steps=steps, samples=reported.samples if each is None else round(steps * each) or None,
            seconds=ended - began, foreign_cpu_seconds=foreign_seconds(before, after),
            first_step=reported.first_step, losses=reported.losses,
            allocation_retries=reported.allocation_retries, recompilations=reported.recompilations,
        )  # fmt: skip

    def freeze(self) -> None:
        super().freeze()
        standing = getattr(self._process, "standing", None)
        self._standing = standing() if standing is not None else {}

    def thaw(self) -> None:
        """Lets it go on, after reading what the system lets another process of this user change about it."""
        now = self._process.standing() if self._standing else {}  # type: ignore[union-attr]
        if any(now.get(thread, before) != before for thread, before in self._standing.items()):
            self._pairs.tampered = f"priority or cores of the {self._side} were changed while it was frozen"
        self._standing = {}
        super().thaw()


class WatchedScriptArm(ScriptArm, WatchedArm):
    """The same of a script, which is run again from its start where it has come to its end; that is in no block."""

    def _again(self) -> None:
        self._began = self._clock()
        super()._again()

    def block(self, seconds: float, min_steps: int, ramp_seconds: float, cycle: int = 1) -> Block:
        return self._unended(lambda: WatchedArm.block(self, seconds, min_steps, ramp_seconds, cycle))

    def _go_on(self) -> None:
        """Both processes of the pair are measured from the same step of their runs on, which both train to."""
        self.run, self.aligned = self.run + 1, False
