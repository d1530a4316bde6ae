"""Looks within one process: it takes on each plan for a block, between two of the plan that all are compared with.

What makes one process faster than another is the same on both sides, and one start serves all plans. Orders are
drawn by lot and then reversed. What a first block after a switch pays is trained before and left out. One process makes
no claim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log1p
from typing import Any

from autoopt.errors import TrialFailed
from autoopt.records import Noise, Plan
from autoopt.records.messages import Block
from autoopt.search.compare.arm import Arm, Start
from autoopt.search.compare.comparison import Comparison, Decision, LossPath, PairOfProcesses, Rule, SideName
from autoopt.search.compare.pairs import Blocks, LiveArm, SideFailedError, blaming, block_length
from autoopt.search.compare.sequential_test import SequentialTest
from autoopt.search.compare.side_statistics import SideStatistics
from autoopt.search.compare.statistics import MIN_BLOCKS
from autoopt.search.live_incumbent import LiveIncumbent

MOST_BLOCKS = 12
"""Blocks of a candidate at most."""
SETTLING_STEPS = 3
"""Steps after the first switch to a plan that are not measured: kernels are chosen, memory is asked for."""
ONE_STEP = 1e-6
"""Seconds of a ramp that is over with its first step."""
MOST_PROCESSES = 2
"""A candidate that ends the process leaves the others another one; the next that does ends the visit."""
SWITCHED_SD = 0.01
"""Scatter (log) of what a plan gains in a process of its own around what it gains in one that takes it on: the guess of
which a look's interval is made, since neither its memory nor its kernels were found by itself."""
PLAIN, HOPELESS = 3.0, 2.0
"""Standard errors above and below the gain worth having, from which on a look needs no further block."""
FINE, ROUGH = 0.02, 0.05
"""Standard errors (log) that are fine enough to find what may pay, and to leave what shows nothing."""
LATE = 2.0
"""A visit takes so many times the seconds until its deadline at most, to have the blocks that a look needs."""
BLOCK_SECONDS = 0.15
"""Of a block at least: nothing is thawed before it, so that short ones are as clean as long ones."""


def within(noise: Noise) -> Noise:
    """The noise of a look within one process: that of its blocks, and what a process of its own may change."""
    return noise.model_copy(update={"process_sd": SWITCHED_SD, "process_dof": 2.0})


class _Look:
    """A plan while it is looked at, as the candidate or as the incumbent of its comparison."""

    def __init__(self, plan: Plan, usual: Plan, role: SideName, rule: Rule, noise: Noise) -> None:
        self.plan, self._role, self._rule = plan, role, rule
        self.test = SequentialTest(rule, within(noise))
        self.usual, self.own = SideStatistics(usual), SideStatistics(plan)
        self.blocks = Blocks()
        self.seconds = 0.0
        self.settled = self.over = self.lost = False

    def add(self, before: Block, block: Block, after: Block) -> None:
        if _broke(block) and not _broke(before):
            self.drop()
            return
        self.usual.ran(after)
        self.own.ran(block)
        self.blocks.add_between(before, block, after, incumbent=self._role == "incumbent")
        self.over = self._enough()

    def drop(self) -> None:
        """It fails in this process, or its losses are not finite: a look of its own tells what it is."""
        self.over = self.lost = True

    def _enough(self) -> bool:
        level = self.blocks.level(self._rule.foreign_share, self.test.expected_sd)
        if level is None or len(self.blocks.log_ratios) >= MOST_BLOCKS:
            return level is not None or len(self.blocks.log_ratios) >= 2 * MOST_BLOCKS
        over = (level.value - log1p(self._rule.min_gain)) / (level.error**2 + SWITCHED_SD**2) ** 0.5
        return level.error <= (FINE if over > 0 else ROUGH) or over > PLAIN or over < -HOPELESS

    def document(self, live: LiveArm) -> Comparison | None:
        """None where it is not known: it was dropped, or had too few blocks."""
        level = self.blocks.level(self._rule.foreign_share, self.test.expected_sd)
        if self.lost or level is None:
            return None
        kept = self.blocks.kept(self._rule.foreign_share)
        pair = PairOfProcesses(
            log_ratio=level.value,
            standard_error=level.error,
            block_log_ratios=tuple(kept),
            block_sd=level.sd,
            disturbed=len(self.blocks.log_ratios) - self.blocks.since - len(kept),
            seconds=self.seconds,
        )
        self.test.add(pair)
        decision, reason = self.test.decide(0.0) or (Decision.INCONCLUSIVE, "too few blocks")
        startup, own_start = live.startup, live.arm.plan == self.usual.plan
        started = {"fixed_seconds": (startup.fixed_seconds,) if own_start else (), "losses": LossPath()}
        usual, own = (each.side().model_copy(update={**started, "startup": None}) for each in (self.usual, self.own))
        if own_start:  # taking the other on costs a start nothing
            usual = usual.model_copy(update={"startup": startup})
        incumbent, candidate = (usual, own) if self._role == "candidate" else (own, usual)
        return Comparison(
            decision=decision,
            reason=reason.replace("pairs of processes", "process that was switched"),
            estimate=self.test.estimate(),
            pairs=tuple(self.test.pairs),
            incumbent=incumbent,
            candidate=candidate,
            seconds=self.seconds,
            measured_seconds=incumbent.seconds + candidate.seconds,
            between_process_sd=self.test.between_process_sd,
            fresh=False,
            mode="switched",
            saved_seconds=startup.build_seconds + startup.setup_seconds + startup.warmup_seconds,
        )


class OneProcess(LiveIncumbent):
    """A process of the incumbent that takes on other plans; it stays alive, frozen, from visit to visit.

    Args:
        usual: the plan that others are compared with, where it is another that the process takes on.
    """

    def __init__(self, start: Start, incumbent: Plan, rule: Rule, *, usual: Plan | None = None, **more: Any) -> None:
        super().__init__(start, incumbent, rule, **more)
        self._plan = usual or incumbent

    def look(
        self,
        plans: Sequence[Plan],
        noise: Noise,
        *,
        role: SideName = "candidate",
        warm_up_seconds: float,
        deadline: float,
        take_over: Callable[[], LiveArm | None] = lambda: None,
    ) -> tuple[Comparison | None, ...]:
        """One look at each plan; None where this cannot tell: look at it in a process of its own.

        Args:
            role: of each plan in its comparison.
            noise: the A/A control and what was learned since.
            warm_up_seconds: the most that the process may take to become steady.
            deadline: on the clock.
            take_over: hands over a live process of the incumbent, which nobody else will use any more.
        """
        looks = [_Look(plan, self._plan, role, self._rule, noise) for plan in plans]
        startup: LiveArm | None = None
        for _ in range(MOST_PROCESSES):
            if all(look.over for look in looks) or self._clock() >= deadline:
                break
            try:
                self._live = startup = self._live or take_over() or self._started(warm_up_seconds)
                self._visit(self._live, looks, deadline)
            except SideFailedError:
                self.close()
        return tuple(look.document(startup) if startup else None for look in looks)

    def _started(self, warm_up_seconds: float) -> LiveArm:
        with blaming("incumbent"):
            arm = self._start(self.incumbent, "incumbent")
            try:
                arm.ready()
                startup = arm.warm_up(warm_up_seconds)
                if arm.can_freeze:
                    arm.freeze()
            except TrialFailed:
                arm.close()
                raise
        return LiveArm(arm, startup, {})

    def _visit(self, live: LiveArm, looks: Sequence[_Look], deadline: float) -> None:
        """Rounds over what is open until each is known well enough; the process is frozen again.

        Raises:
            SideFailedError: the process is lost.
        """
        arm, order, began = live.arm, list(self._rng.permutation(len(looks))), self._clock()
        with blaming("incumbent"):
            if arm.can_freeze:
                arm.thaw()
            usual = SideStatistics(self._plan)
            usual.started(live.startup)
            if self._plan != self.incumbent:
                arm.switched_block(self._plan, 0.0, SETTLING_STEPS, 0.0)
            before = self._own_block(arm, usual)
            while self._goes_on(looks, began, deadline):
                for number in order:
                    look = looks[number]
                    if look.over:
                        continue
                    since = self._clock()
                    block = self._block(arm, look, usual)
                    after = self._own_block(arm, usual)
                    if block is not None:
                        look.add(before, block, after)
                    before = after
                    look.seconds += self._clock() - since
                fresh = len(looks[0].blocks.log_ratios) % 2 == 0
                order = list(self._rng.permutation(len(looks))) if fresh else order[::-1]
            if arm.can_freeze:
                arm.freeze()

    def _goes_on(self, looks: Sequence[_Look], began: float, deadline: float) -> bool:
        """Whether a further round is due.

        Past the deadline one is where a look has too few blocks to count and will soon have enough: without them what
        it has would have been measured for nothing.
        """
        open_, now = [look for look in looks if not look.over], self._clock()
        if now < deadline:
            return bool(open_)
        made = [len(look.blocks.kept(self._rule.foreign_share)) for look in open_]
        fewest = min((count for count in made if count < MIN_BLOCKS), default=0)
        return fewest > 0 and (now - began) * MIN_BLOCKS / fewest <= LATE * (deadline - began)

    def _own_block(self, arm: Arm, usual: SideStatistics) -> Block:
        block = arm.switched_block(self._plan, *self._length(usual))
        usual.ran(block)
        return block

    def _block(self, arm: Arm, look: _Look, usual: SideStatistics) -> Block | None:
        """A block of a candidate; None where it fails, after which the process may live on or not."""
        steps = look.own if look.own.blocks else usual
        try:
            if not look.settled:
                look.settled = True
                arm.switched_block(look.plan, 0.0, SETTLING_STEPS, 0.0)
            return arm.switched_block(look.plan, *self._length(steps))
        except TrialFailed:
            look.drop()
            return None

    def _length(self, side: SideStatistics) -> tuple[float, int, float]:
        """Of the next block, with a step before it that is not measured; long steps are few, and none is left out."""
        rule = self._rule.model_copy(update={"block_seconds": BLOCK_SECONDS})
        _, steps, ramp = block_length(rule, side.step_seconds)
        return BLOCK_SECONDS, steps if ramp else 1, ONE_STEP if ramp else 0.0


def _broke(block: Block) -> bool:
    return any(loss is None for loss in block.losses)
