"""The common part of ways to decode images: samples read one by one, each time, and what reading them takes."""

from __future__ import annotations

from typing import Any

from autoopt import Applies, Case
from autoopt_strategies.input.cacheable import seed_everything

SAMPLES, TURNS = 8, 5


def read_each_time(case: Case) -> Applies:
    """Whether samples are read one by one from the dataset, and in every epoch."""
    dataset = case.workload.dataset
    if not dataset.map_style or (dataset.has_getitems and dataset.type != "TensorDataset"):
        return Applies.no("samples are not read one by one from the dataset")
    return Applies.yes()


def spread(dataset: Any) -> list[int]:
    """Indices of samples from all over a dataset; none where they cannot be read one by one."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or not len(dataset):
        return []
    return sorted({i * (len(dataset) - 1) // max(1, SAMPLES - 1) for i in range(SAMPLES)})


def sample_of(dataset: Any, index: int) -> Any:
    """A sample with the random draws that its index seeds, whoever reads it."""
    seed_everything(index)
    return dataset[index]


def seconds_ratio(one: Any, other: Any, indices: list[int], turns: int = TURNS) -> float:
    """Seconds to read these samples of ``other`` over those of ``one``: the median of so many turns."""
    import statistics
    from time import perf_counter

    def seconds(dataset: Any) -> float:
        began = perf_counter()
        for index in indices:
            dataset[index]
        return perf_counter() - began

    return statistics.median(1 / seconds(one) * seconds(other) for _ in range(turns))
