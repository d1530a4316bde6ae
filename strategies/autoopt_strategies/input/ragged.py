"""Arrays of different shapes in one file: their values end to end, and where each begins."""

from __future__ import annotations

from typing import Any


class RaggedWriter:
    """Writes arrays of one type and number of axes, in order.

    Args:
        path: of the files, without their endings: ``.bin`` for the values, ``.npz`` for offsets and shapes.
        like: the first array.
    """

    def __init__(self, path: str, like: Any) -> None:
        self.path, self.dtype, self.axes = path, like.dtype, like.ndim
        self.file: Any = open(f"{path}.bin", "wb")  # noqa: SIM115 (closed by flush)
        self.shapes: list[tuple[int, ...]] = []

    def takes(self, value: Any) -> bool:
        """Whether an array can stand with the others."""
        return bool(value.dtype == self.dtype and value.ndim == self.axes)

    def write(self, index: int, value: Any) -> None:
        """The next array, whose index is the number of those before it."""
        self.shapes.append(value.shape)
        self.file.write(value.tobytes())

    def flush(self) -> None:
        """Writes offsets and shapes, after the last array."""
        import numpy as np

        self.file.close()
        shapes = np.array(self.shapes, dtype=np.int64).reshape(len(self.shapes), self.axes)
        offsets = np.concatenate([[0], np.cumsum(shapes.prod(axis=1))]).astype(np.int64)
        np.savez(f"{self.path}.npz", offsets=offsets, shapes=shapes, empty=np.empty(0, self.dtype))


class Ragged:
    """The arrays that were written, each a view of the mapped file."""

    def __init__(self, path: str) -> None:
        import numpy as np

        with np.load(f"{path}.npz", allow_pickle=False) as found:
            self.offsets, self.shapes, empty = found["offsets"], found["shapes"], found["empty"]
        values = int(self.offsets[-1])  # an empty file cannot be mapped
        self.values: Any = np.memmap(f"{path}.bin", empty.dtype, "r", shape=(values,)) if values else empty

    def __getitem__(self, index: Any) -> Any:
        index = range(len(self.shapes))[index]
        return self.values[self.offsets[index] : self.offsets[index + 1]].reshape(self.shapes[index])
