"""A loader's samples in larger batches, for evaluations: a patch holds it as it is."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset


def in_batches_of(loader: Any, size: int) -> Any:
    """The samples of a loader in the same order and with the same draws, so many a batch: nothing learns from them.

    A loader that makes its batches in its own way, or drops samples, stays as it is.
    """
    own = "__iter__" in {name for kind in type(loader).__mro__ for name in vars(kind) if kind not in DataLoader.__mro__}
    if not isinstance(loader, DataLoader) or own or isinstance(loader.dataset, IterableDataset):
        return loader
    if loader.batch_size is None or loader.batch_size >= size:
        return loader
    if loader.drop_last and len(loader) * loader.batch_size < len(loader.sampler):  # type: ignore[arg-type]
        return loader
    return DataLoader(
        loader.dataset,
        batch_size=size,
        sampler=loader.sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
    )
