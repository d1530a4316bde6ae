"""Samples as rows of memory-mapped arrays: written once, each part of a sample to a file of its own."""

from __future__ import annotations

from typing import Any

from autoopt_strategies.input.batches import Wrapper, leaves, like
from autoopt_strategies.input.cacheable import copied, same


class Rows(Wrapper):
    """Samples of a dataset as rows of memory-mapped arrays, one array for each part of a sample.

    Args:
        dataset: what is asked for everything but samples.
        source: whose samples are written, in order; each part of the same shape and type in all of them.
        tail: transforms for the first part of each sample, applied afresh every time.
        workers: processes that prepare them.
        directory: where the files are made; the system's folder for temporary files where None.
    """

    def __init__(self, dataset: Any, source: Any, tail: tuple[Any, ...], workers: int, directory: str | None) -> None:
        import os
        import tempfile
        import weakref

        super().__init__(dataset)
        self.tail = tail
        self.folder = tempfile.mkdtemp(prefix="samples-", dir=directory)
        weakref.finalize(self, removed, self.folder, os.getpid())
        self.structure, self.kinds = write_rows(source, self.folder, workers)
        self.arrays: list[Any] | None = None

    def __getitem__(self, index: Any) -> Any:
        if self.arrays is None:  # each process maps the files itself
            self.arrays = [mapped(self.folder, number) for number in range(len(self.kinds))]
        values = [restored(array[index], kind) for array, kind in zip(self.arrays, self.kinds, strict=True)]
        sample = like(self.structure, values)
        if not self.tail:
            return sample
        first = copied(sample[0])
        for transform in self.tail:
            first = transform(first)
        return (first, *sample[1:])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "arrays": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def removed(folder: str, owner: int) -> None:
    """Deletes the files, in the process that wrote them."""
    import os
    import shutil

    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def mapped(folder: str, number: int) -> Any:
    """The array of a part of all samples, read-only."""
    import numpy as np

    return np.load(f"{folder}/{number}.npy", mmap_mode="r", allow_pickle=False)


def write_rows(source: Any, folder: str, workers: int) -> tuple[Any, list[str]]:
    """Writes all samples, part by part.

    Returns:
        A sample's structure, and of each part its kind: ``tensor``, ``array``, ``image MODE`` or ``number TYPE``.

    Raises:
        ValueError: a part whose shape or type changes, or that is no tensor, array, image or number.
    """
    import numpy as np
    import torch
    from torch.utils.data import DataLoader

    loader = DataLoader(source, batch_size=None, collate_fn=same, num_workers=workers, generator=torch.Generator())
    arrays: list[Any] = []
    structure, kinds = None, []
    for index, sample in enumerate(loader):
        parts = leaves(sample)
        if not arrays:
            structure, kinds = like(sample, [0] * len(parts)), [kind_of(part) for part in parts]
            for number, part in enumerate(parts):
                value = np.asarray(part)
                shape = (len(source), *value.shape)
                arrays.append(np.lib.format.open_memmap(f"{folder}/{number}.npy", "w+", value.dtype, shape))
        for array, part, kind in zip(arrays, parts, kinds, strict=True):
            value = np.asarray(part)
            if value.shape != array.shape[1:] or value.dtype != array.dtype or kind_of(part) != kind:
                raise ValueError(f"sample {index} is {value.dtype}{value.shape}, others {array.dtype}{array.shape[1:]}")
            array[index] = value
    for array in arrays:
        array.flush()
    return structure, kinds


def kind_of(part: Any) -> str:
    """How a part of a sample is made of its array again."""
    import numpy as np
    import torch

    if isinstance(part, torch.Tensor):
        return "tensor"
    if isinstance(part, np.ndarray):
        return "array"
    if hasattr(part, "tobytes") and hasattr(part, "mode"):
        return f"image {part.mode}"
    if isinstance(part, (bool, int, float)):
        return f"number {type(part).__name__}"
    raise ValueError(f"a sample holds {type(part).__name__}, which no array can hold")


def restored(row: Any, kind: str) -> Any:
    """A part of a sample as the dataset gave it."""
    import numpy as np

    if kind == "tensor":
        import torch

        return torch.from_numpy(np.array(row))
    if kind == "array":
        return np.array(row)
    if kind.startswith("number"):
        return {"bool": bool, "int": int, "float": float}[kind.split()[1]](row)
    from PIL import Image

    return Image.fromarray(np.array(row), mode=None if kind.endswith((" RGB", " L", " RGBA")) else kind.split()[1])
