"""Places at which trials run at the same time, devices or machines of a cluster, and who fills them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar

from autoopt.errors import EnvironmentLacks, UsageError
from autoopt.trial.parent import Launcher
from autoopt.trial.remote.launcher import RemoteLauncher

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """A place for one pair of trials at a time.

    Args:
        name: for the report.
        launcher: starts trials there.
        devices: as ``CUDA_VISIBLE_DEVICES`` names them; None: all that its processes see anyway.
    """

    name: str
    launcher: Launcher | RemoteLauncher
    devices: str | None = None


class Workers:
    """Fills places with jobs, in the order in which they are handed in; each waits in a thread of its own."""

    def __init__(self, places: int) -> None:
        self._pool = ThreadPoolExecutor(places, thread_name_prefix="autoopt-place")
        self._free: SimpleQueue[int] = SimpleQueue()
        for number in range(places):
            self._free.put(number)

    def submit(self, job: Callable[[int], T]) -> Future[T]:
        """Runs ``job(place)`` as soon as a place is free, which is known from its number."""

        def run() -> T:
            place = self._free.get()
            try:
                return job(place)
            finally:
                self._free.put(place)

        return self._pool.submit(run)

    def close(self, wait: bool = True) -> None:
        """Drops the jobs that were not begun, and waits for the others."""
        self._pool.shutdown(wait=wait, cancel_futures=True)


def places_of(
    launcher: Launcher | RemoteLauncher, count: int, processes: int, device: str, cores: int
) -> tuple[Place, ...]:
    """Places for so many pairs of trials at the same time; none where pairs are measured one after the other.

    Args:
        count: as many as were asked for.
        processes: that train together, each on a device of its own.

    Raises:
        UsageError: one device was named.
        EnvironmentLacks: there are not as many devices or machines.
    """
    if count < 2:
        return ()
    if isinstance(launcher, RemoteLauncher):
        return tuple(
            Place(f"place {number}", each) for number, each in enumerate(launcher.places(count, processes, device))
        )
    if re.fullmatch(r"\w+:\d+", device):
        raise UsageError(
            f"--parallel {count} needs more devices than {device}", hint="leave the number out: --device cuda"
        )
    found = [] if device == "cpu" else visible_devices()
    if not found and device in ("cpu", "auto") and count <= cores:
        return tuple(Place(f"pair {number}", launcher) for number in range(count))
    if count * processes > len(found):
        have = f"{len(found)} devices are visible" if found else f"there are {cores} cores and no devices"
        raise EnvironmentLacks(f"--parallel {count} needs {count * processes} devices: {have}")
    shares = [found[processes * number :][:processes] for number in range(count)]
    return tuple(Place(f"device {','.join(share)}", launcher, ",".join(share)) for share in shares)


def visible_devices() -> list[str]:
    """The CUDA devices of this machine that may be used, as ``CUDA_VISIBLE_DEVICES`` names them; torch is not asked."""
    reported = os.environ.get("CUDA_VISIBLE_DEVICES")
    if reported is not None:
        return [name for name in reported.split(",") if name.strip() and name.strip() != "-1"]
    try:
        nodes = [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)]
    except OSError:
        return []
    return [str(number) for number in range(len(nodes))]
