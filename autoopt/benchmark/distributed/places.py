"""Where each process of a group runs: its device, its cores, its compute threads."""

from __future__ import annotations

import torch

from autoopt.benchmark import affinity
from autoopt.benchmark.distributed.group import Place
from autoopt.setup import Setup


def device_of(name: str, rank: int) -> str:
    """The device of a rank: the CPU is everybody's; of CUDA devices each has its own, from the one that is named on."""
    kind, _, number = name.partition(":")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    return f"cuda:{int(number or 0) + rank}" if kind == "cuda" else kind


def keep_to_cores(setup: Setup, place: Place) -> None:
    """Shares the cores out, before anything runs on them: as many threads as each has, unless a plan says more.

    All processes of a group would each start as many threads as there are cores, and wait for one another.
    """
    cores = affinity.cores()
    own = cores_of(cores, place.rank, place.size)
    if setup.distributed.own_cores and own:
        affinity.bind(own)
    if setup.flags.get("threads") is None:
        torch.set_num_threads(max(1, min(torch.get_num_threads(), len(cores) // place.size)))


def cores_of(cores: tuple[int, ...], rank: int, size: int) -> tuple[int, ...]:
    """A rank's own cores, neighbours together; none where there are fewer cores than ranks."""
    each = len(cores) // size
    return cores[rank * each : (rank + 1) * each]
