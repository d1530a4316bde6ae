"""An arm: a live process that trains with one plan, block by block; a script that ends is run again from its start."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from autoopt.errors import ScriptEnded, TrialFailed
from autoopt.records import Plan
from autoopt.records.messages import Block, Ready, Startup
from autoopt.trial.remote.launcher import AnyTrial

SWITCHED_BLOCK = "autoopt.benchmark.tasks:switched_block"

SETTLING_STEPS = 3
"""Steps after a process first takes a plan on that are not measured: kernels are chosen, memory is asked for."""
READY_SECONDS = 300.0
"""Importing, building and setting up a workload may take this long before it counts as hung; so may the first steps of
a script."""
MOST_RUNS = 50
"""Runs of one script within one comparison; one that ends sooner than that is too short to be measured."""
_LONG_ENOUGH = 0.1
"""Seconds of warming up below which a script that ends in the meantime is too short to be measured."""


class TrialArm:
    """An arm in a trial's process; the tasks run there (``autoopt.benchmark.tasks``).

    Every method but ``close`` may raise ``TrialFailed``. ``process`` is its name in the account: that of its log.

    Args:
        ready_seconds, warm_up_seconds: how long building and warming up may take before they count as hung; by the
            arm's patience where the latter is None.
    """

    _patience = 10.0  # how many times the asked-for seconds a call may take before it counts as hung

    def __init__(
        self,
        process: AnyTrial,
        plan: Plan,
        *,
        ready_seconds: float = READY_SECONDS,
        warm_up_seconds: float | None = None,
    ) -> None:
        self.plan, self.process = plan, ""
        self._ready_seconds, self._warm_up_seconds = ready_seconds, warm_up_seconds
        self._process = process
        self._step_seconds = 1.0
        self._settled: set[str] = set()

    def ready(self) -> Ready:
        """Waits until the workload is built and set up."""
        return Ready.model_validate(self._process.call("autoopt.benchmark.tasks:ready", timeout=self._ready_seconds))

    def warm_up(self, max_seconds: float) -> Startup:
        """Trains until steps are steady, or until the time is up."""
        timeout = self._warm_up_seconds or self._patience * max_seconds + 60.0
        task = "autoopt.benchmark.tasks:warm_up"
        startup = Startup.model_validate(self._process.call(task, timeout=timeout, max_seconds=max_seconds))
        self._step_seconds = startup.warmup_seconds / max(startup.warmup_steps, 1)
        return startup

    def block(self, seconds: float, min_steps: int, ramp_seconds: float, cycle: int = 1) -> Block:
        """Trains ``ramp_seconds`` unmeasured, then measures for ``seconds`` and at least ``min_steps`` steps: a
        multiple of so many as a ``cycle`` has, and so is the ramp before it."""
        ramp = {"ramp_steps": cycle} if cycle > 1 else {}
        return self._block("autoopt.benchmark.tasks:run_block", seconds, min_steps, ramp_seconds, cycle, **ramp)

    def switched_block(self, plan: Plan, seconds: float, min_steps: int, ramp_seconds: float, cycle: int = 1) -> Block:
        """The same under another plan, which the process takes on for it, or under its own; it is then as it was, but
        for its place in the data. What a process takes on for the first time settles before it is measured."""
        arguments = {"plan": plan.model_dump()}
        if plan.key not in self._settled:
            self._block(SWITCHED_BLOCK, 0.0, SETTLING_STEPS, 0.0, 1, **arguments)
            self._settled.add(plan.key)
        return self._block(SWITCHED_BLOCK, seconds, min_steps, ramp_seconds, cycle, **arguments)

    def _block(
        self, task: str, seconds: float, min_steps: int, ramp_seconds: float, cycle: int, **arguments: Any
    ) -> Block:
        expected = seconds + ramp_seconds + (min_steps + 2 * cycle) * self._step_seconds
        answer = self._process.call(
            task,
            timeout=self._patience * expected + 60.0,
            seconds=seconds,
            min_steps=min_steps,
            ramp_seconds=ramp_seconds,
            cycle=cycle,
            **arguments,
        )
        block = Block.model_validate(answer)
        if block.samples == 0:
            raise TrialFailed("error", f"{block.steps} steps trained on no sample")
        return block

    def freeze(self) -> None:
        self._process.freeze()

    def thaw(self) -> None:
        self._process.thaw()

    def close(self) -> None:
        """Ends the process tree; never raises, may be called twice."""
        self._process.close()


class ScriptArm(TrialArm):
    """An arm that starts its process anew where the script has ended; ``timer`` limits its warm-up alone."""

    def __init__(
        self, launch: Callable[[], AnyTrial], plan: Plan, *, timer: Callable[[], float] = time.monotonic, **limits: Any
    ) -> None:
        super().__init__(launch(), plan, **limits)
        self._launch, self._timer = launch, timer
        self._runs = 1
        self._warmed_up_in = 0.0

    def warm_up(self, max_seconds: float) -> Startup:
        """Warms up; where the script is over before, half as long as it lasted, so that steps are left to measure."""
        self._warmed_up_in = max_seconds
        while True:
            began = self._timer()
            try:
                return super().warm_up(self._warmed_up_in)
            except TrialFailed as failure:
                if not self._may_run_again(failure) or self._warmed_up_in < _LONG_ENOUGH:
                    raise
            self._warmed_up_in = min(self._warmed_up_in, self._timer() - began) / 2
            self._again()

    def block(self, seconds: float, min_steps: int, ramp_seconds: float, cycle: int = 1) -> Block:
        return self._unended(lambda: super(ScriptArm, self).block(seconds, min_steps, ramp_seconds, cycle))

    def switched_block(self, plan: Plan, seconds: float, min_steps: int, ramp_seconds: float, cycle: int = 1) -> Block:
        return self._unended(
            lambda: super(ScriptArm, self).switched_block(plan, seconds, min_steps, ramp_seconds, cycle)
        )

    def _unended(self, block: Callable[[], Block]) -> Block:
        """A block of one run of the script: where that ends within it, of the next, which holds one or none does."""
        try:
            return block()
        except TrialFailed as failure:
            if not self._may_run_again(failure):
                raise
        self._again()
        self._go_on()
        return block()

    def _go_on(self) -> None:
        """Makes a further run ready to be measured."""
        self.warm_up(self._warmed_up_in)

    def _may_run_again(self, failure: TrialFailed) -> bool:
        return failure.where == ScriptEnded.WHERE and self._runs < MOST_RUNS

    def _again(self) -> None:
        self._runs += 1
        self._process.close()
        self._process = self._launch()
        self._settled.clear()


Start = Callable[[Plan, str], TrialArm]
"""``start(plan, label)`` starts a process; ``label`` (``incumbent``, ``candidate``) names its log."""
