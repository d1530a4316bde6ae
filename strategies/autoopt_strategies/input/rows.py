"""Samples as rows of memory-mapped arrays: written once, each part of a sample to a file of its own."""

from __future__ import annotations

from typing import Any

from autoopt_strategies.input.batches import Wrapper, as_is, leaves, like, transformed
from autoopt_strategies.input.ragged import Ragged, RaggedWriter


class Rows(Wrapper):
    """Samples of a dataset as rows of memory-mapped arrays, one array for each part of a sample.

    Args:
        dataset: what is asked for everything but samples.
        source: whose samples are written, in order; each part of the same type in all of them, and, unless
            ``ragged``, of the same shape.
        tail: transforms for the first part of each sample, applied afresh every time.
        workers: processes that prepare them.
        directory: where the files are made; the system's folder for temporary files where None.
        ragged: parts differ in shape, and are kept end to end.
    """

    def __init__(
        self, dataset: Any, source: Any, tail: tuple[Any, ...], workers: int, directory: str | None, ragged: bool
    ) -> None:
        import os
        import tempfile
        import weakref

        super().__init__(dataset)
        self.tail = tail
        self.folder = tempfile.mkdtemp(prefix="samples-", dir=directory)
        weakref.finalize(self, removed, self.folder, os.getpid())
        self.structure, self.kinds = write_rows(source, self.folder, workers, ragged)
        self.arrays: list[Any] | None = None

    def __getitem__(self, index: Any) -> Any:
        if self.arrays is None:  # each process maps the files itself
            self.arrays = [mapped(self.folder, number) for number in range(len(self.kinds))]
        values = [restored(array[index], kind) for array, kind in zip(self.arrays, self.kinds, strict=True)]
        sample = like(self.structure, values)
        if not self.tail:
            return sample
        return transformed(sample, self.tail)

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
    """The arrays of a part of all samples, read-only."""
    import os

    import numpy as np

    path = f"{folder}/{number}"
    return np.load(f"{path}.npy", mmap_mode="r", allow_pickle=False) if os.path.exists(f"{path}.npy") else Ragged(path)


class RowWriter:
    """Writes arrays of one shape and type as rows of an array in ``path.npy``.

    Args:
        like: the first array.
        count: how many there will be.
    """

    def __init__(self, path: str, like: Any, count: int) -> None:
        import numpy as np

        self.rows = np.lib.format.open_memmap(f"{path}.npy", "w+", like.dtype, (count, *like.shape))

    def takes(self, value: Any) -> bool:
        """Whether an array can stand with the others."""
        return bool(value.dtype == self.rows.dtype and value.shape == self.rows.shape[1:])

    def write(self, index: int, value: Any) -> None:
        """An array at its index."""
        self.rows[index] = value

    def flush(self) -> None:
        """Brings all of it to the file."""
        self.rows.flush()


def write_rows(source: Any, folder: str, workers: int, ragged: bool = False) -> tuple[Any, list[str]]:
    """Writes all samples, part by part.

    Returns:
        A sample's structure, and of each part its kind: ``tensor``, ``array``, ``image MODE`` or ``number TYPE``.

    Raises:
        ValueError: a part whose type changes, or its shape unless ``ragged``, or that is no tensor, array, image or
            number.
    """
    import numpy as np
    import torch
    from torch.utils.data import DataLoader

    loader = DataLoader(source, batch_size=None, collate_fn=as_is, num_workers=workers, generator=torch.Generator())
    writers: list[Any] = []
    structure, kinds = None, []
    try:
        for index, sample in enumerate(loader):
            parts = leaves(sample)
            if not writers:
                structure, kinds = like(sample, [0] * len(parts)), [kind_of(part) for part in parts]
                for number, part in enumerate(parts):
                    value, path = np.asarray(part), f"{folder}/{number}"
                    writers.append(
                        RaggedWriter(path, value) if ragged and value.ndim else RowWriter(path, value, len(source))
                    )
            for writer, part, kind in zip(writers, parts, kinds, strict=True):
                value = np.asarray(part)
                if not writer.takes(value) or kind_of(part) != kind:
                    raise ValueError(
                        f"sample {index} is {value.dtype}{value.shape}, which is no row beside those before it"
                    )
                writer.write(index, value)
    finally:
        for writer in writers:
            writer.flush()
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
