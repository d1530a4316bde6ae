"""Interference model: speeds of workers and of the training step that compete for cores, from measured ones. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.records import Contention

_LEAST = 0.02


@dataclass(frozen=True)
class InterferenceModel:
    """Speeds as they were measured of a workload; between and beyond that, and without any, cores are shared fairly.

    Args:
        cores: of the machine.
        seen: speeds over speeds alone.
    """

    cores: int
    seen: tuple[Contention, ...] = ()

    def speeds(self, single: int, threads: int) -> tuple[float, float]:
        """Speeds of each of ``single`` threads that prepare and of a step with ``threads`` compute threads.

        Where so many threads were measured beside other numbers of workers, in between on a line. Else by fair shares,
        times what a measured combination of the same kind (cores enough or not) got beyond or below its fair one.
        """
        if not threads:
            return self._crowd(single), 1.0
        if not single:
            return 1.0, 1.0
        points = sorted((item for item in self.seen if item.threads == threads), key=lambda item: item.workers)
        inside = [item for item in points if item.workers >= single]
        if points and inside:
            return self._between(points, single)
        known = points[-1] if points else self._nearest(single, threads)
        if known is None:
            fair = self._fair(single + threads)
            return fair, fair
        ratio = self._fair(single + threads) / self._fair(known.workers + known.threads)
        return max(_LEAST, min(1.0, known.prepare * ratio)), max(_LEAST, min(1.0, (known.step or 1.0) * ratio))

    def _crowd(self, single: int) -> float:
        """Workers alone: each the slower the more cores are busy, and sharing them where there are more."""
        if single <= 1:
            return 1.0
        full = next((item.prepare for item in self.seen if not item.threads), 1.0)
        if self.cores <= 1:
            return self._fair(single)
        busy = min(single, self.cores)
        return (1.0 - (1.0 - full) * (busy - 1) / (self.cores - 1)) * self._fair(single)

    def _between(self, points: list[Contention], single: int) -> tuple[float, float]:
        below = max((item for item in points if item.workers <= single), key=lambda item: item.workers, default=None)
        above = min((item for item in points if item.workers >= single), key=lambda item: item.workers)
        if below is None:  # without any worker the step has its own speed
            share = single / above.workers
            return above.prepare, 1.0 + share * ((above.step or 1.0) - 1.0)
        if below is above:
            return above.prepare, above.step or 1.0
        share = (single - below.workers) / (above.workers - below.workers)
        prepare = below.prepare + share * (above.prepare - below.prepare)
        step = (below.step or 1.0) + share * ((above.step or 1.0) - (below.step or 1.0))
        return prepare, step

    def _nearest(self, single: int, threads: int) -> Contention | None:
        """A measured combination in which the cores suffice, or do not, as in this one."""
        enough = single + threads <= self.cores
        known = [item for item in self.seen if item.threads and (item.workers + item.threads <= self.cores) is enough]
        alike = [item for item in known if (item.threads > 1) == (threads > 1)] or known
        return min(alike, key=lambda item: abs(item.threads - threads) + abs(item.workers - single), default=None)

    def _fair(self, busy: int) -> float:
        return min(1.0, self.cores / busy)
