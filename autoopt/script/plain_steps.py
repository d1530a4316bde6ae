"""Steps of a script of which nothing but the wait for data and the end is timed: nearly all, where steps are short.

What the processor has last seen a step ago costs it a microsecond a call. So the joints write down moments, losses and
samples in a list each, and all of them are booked at once.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import sub
from time import perf_counter

from autoopt.benchmark.clock import StageClock


class PlainSteps:
    """The plain steps since the last that was split, or since something happened between two of them.

    Args:
        over: told at a step's end that was to be the last of them, or at which somebody is to be asked.

    Attributes:
        on: whether the step under way is plain; the joints write into the lists only then.
        opened, arrived, ends: when a batch was asked for, had come, and when the step ended, by ``perf_counter``.
        losses: of backward passes, in their order.
        samples: of each step that has ended; given: of the step under way; 0 where none were counted.
        most: of them, until one is split or the last is reached.
        rests_until: nobody is to be asked before, by ``perf_counter``.
    """

    def __init__(self, over: Callable[[], None]) -> None:
        self._over = over
        self.on = False
        self.opened: list[float] = []
        self.arrived: list[float] = []
        self.ends: list[float] = []
        self.losses: list[float | list[float]] = []
        self.samples: list[int] = []
        self.given = 0
        self.most = self.rests_until = self._since = 0.0
        self._note: Callable[[list[object]], None] | None = None

    def begin(self, clock: StageClock, rests: float, most: float, note: Callable[[list[object]], None] | None) -> None:
        """The step that begins is plain, and so are those after it.

        Args:
            rests: for so many seconds nobody need be asked whether it is enough.
            most: so many steps at most; fewer where the clock splits one before.
            note: called after each; None where there is nothing to be noted.
        """
        self.on, self._since, self._note = True, clock.last, note
        self.most = min(most, clock.until_fine)
        self.rests_until = clock.last + rests

    def prepared(self) -> None:
        """A batch was made by the script itself, since the last step's end, and is trained on."""
        if not self.waited:
            self.opened.append(self.ends[-1] if self.ends else self._since)
            self.arrived.append(perf_counter())

    def ended(self) -> None:
        """A step has ended."""
        now = perf_counter()
        ends = self.ends
        if len(self.arrived) == len(ends):  # nothing was waited for
            began = ends[-1] if ends else self._since
            self.opened.append(began)
            self.arrived.append(began)
        ends.append(now)
        self.samples.append(self.given)
        self.given = 0
        done = len(ends)
        if self._note is not None:
            self._note([])
        if now >= self.rests_until or done >= self.most or len(self.losses) != done:
            self._over()

    @property
    def waited(self) -> bool:
        """Whether the batch of the step under way has come."""
        return len(self.arrived) > len(self.ends)

    def book(self, clock: StageClock) -> tuple[int, float]:
        """Tells the clock of them and forgets them, in place of ``set_aside``, ``mark("data")`` and ``step_done``.

        Returns:
            Steps that have ended, and seconds between the end of one and the next wait.
        """
        opened, arrived, ends = self.opened, self.arrived, self.ends
        begins = [clock.step_began, *ends]
        clock.totals["data"] += sum(map(sub, arrived, opened))
        clock.unsplit += sum(map(sub, ends, arrived))
        clock.steps += map(sub, ends, begins)
        between = sum(map(sub, opened, [clock.last, *ends]))
        clock.step_began = begins[-1]
        clock.last = max([clock.last, *ends[-1:], *arrived[-1:]])
        clock.until_fine -= len(ends)
        if clock.until_fine == 0:
            clock.split_next()
        self.on = False
        steps = len(ends)
        for each in (opened, arrived, ends):
            each.clear()
        return steps, between
