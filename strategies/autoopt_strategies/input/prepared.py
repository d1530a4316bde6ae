"""Datasets around another one, whose samples are kept, or read a batch at a time: a patch holds them as they are.

Torch is imported here, and this module where a training runs; setups name what is in it by ``Wrap``.
"""

from __future__ import annotations

import copy
import io
import os
import shutil
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset, default_collate, default_convert
from torch.utils.weak import WeakIdKeyDictionary

from autoopt_strategies.input.batches import Collated, Wrapper, leaves, like, split, transformed


class KeptSamples(Wrapper):
    """Samples of a dataset that are the same every time: read once, and kept in memory.

    Args:
        dataset: with a length, read by index.
        workers: processes that read it.
    """

    def __init__(self, dataset: Any, workers: int = 0) -> None:
        super().__init__(dataset)
        self.samples = made_once(dataset, "samples", lambda: list(every_sample(dataset, workers)))

    def __getitem__(self, index: Any) -> Any:
        return self.samples[index]


MADE_ONCE: Any = WeakIdKeyDictionary()


def made_once(dataset: Any, what: Any, make: Callable[[], Any]) -> Any:
    """What is made of a dataset: once, where each epoch makes a loader of it, and as long as the dataset lives."""
    try:
        made = MADE_ONCE.setdefault(dataset, {})
    except TypeError:  # a list, to which nothing can refer weakly
        return make()
    if what not in made:
        made[what] = make()
    return made[what]


def every_sample(dataset: Any, workers: int = 0) -> Iterator[Any]:
    """The samples in their order; those that workers read come as bytes: a shared file for each tensor is slow."""
    if not workers:
        many = getattr(dataset, "__getitems__", lambda indices: map(dataset.__getitem__, indices))
        return map(own, many(list(range(len(dataset)))))
    loader = DataLoader(dataset, 16, num_workers=workers, collate_fn=as_bytes, generator=torch.Generator())
    return (sample for chunk in loader for sample in from_bytes(chunk))


def as_bytes(samples: list[Any]) -> bytes:
    """Samples as one string of bytes, which another process loads."""
    torch.save([own(sample) for sample in samples], buffer := io.BytesIO())
    return buffer.getvalue()


def from_bytes(chunk: bytes) -> list[Any]:
    return list(torch.load(io.BytesIO(chunk), weights_only=False))


def own(sample: Any) -> Any:
    """The sample with tensors of its own, rather than parts of the dataset's."""
    if isinstance(sample, torch.Tensor):
        return sample.clone()
    if isinstance(sample, dict):
        return {key: own(value) for key, value in sample.items()}
    if type(sample) in (tuple, list):
        return type(sample)(own(value) for value in sample)
    return sample


class MappedSamples(Wrapper):
    """Samples of a dataset that are the same every time: written once to a file, and read from there.

    Args:
        dataset: with a length, read by index.
        workers: processes that read it.
    """

    def __init__(self, dataset: Any, workers: int = 0) -> None:
        super().__init__(dataset)
        self.written, self.bytes = made_once(dataset, "written", lambda: Written(every_sample(dataset, workers))), None

    def __getitem__(self, index: Any) -> Any:
        written = self.written
        if self.bytes is None:  # each process maps the file itself
            self.bytes = np.memmap(f"{written.folder}/samples", mode="r")  # type: ignore[assignment]
        row, parts = range(len(self))[index], []
        place, axis = row * len(written.kinds), row * sum(axes for _, _, axes in written.kinds)
        for number, (kind, dtype, axes) in enumerate(written.kinds, place):
            part = self.bytes[written.starts[number] : written.starts[number + 1]]  # type: ignore[index]
            parts.append(restored(part.view(dtype).reshape(written.shapes[axis : axis + axes]).copy(), kind))
            axis += axes
        return like(written.sample, parts)

    def __getstate__(self) -> Any:
        return {**self.__dict__, "bytes": None}


class Written:
    """A file of samples, and where each lies in it; the file goes with it."""

    def __init__(self, samples: Iterator[Any]) -> None:
        self.folder = tempfile.mkdtemp(prefix="samples-")
        weakref.finalize(self, removed, self.folder, os.getpid())
        self.starts, self.shapes = array("q", [0]), array("q")
        with open(f"{self.folder}/samples", "wb") as file:
            for number, sample in enumerate(samples):
                parts = leaves(sample)
                kinds = [kind_of(part) for part in parts]
                if number == 0:
                    self.sample, self.kinds = like(sample, [0] * len(parts)), kinds
                if kinds != self.kinds:
                    raise ValueError(f"sample {number} holds {kinds}, and those before it {self.kinds}")
                for value in map(np.asarray, parts):
                    file.write(value.tobytes())
                    self.starts.append(file.tell())
                    self.shapes.extend(value.shape)


MADE = {
    "Tensor": torch.from_numpy,
    "ndarray": np.array,
    "bool": bool,
    "int": int,
    "float": float,
}


def kind_of(part: Any) -> tuple[str, str, int]:
    """What a part of a sample is, the type of its numbers, and how many axes they have."""
    value = np.asarray(part)
    if type(part).__name__ in MADE:
        return type(part).__name__, value.dtype.str, value.ndim
    if hasattr(part, "tobytes") and hasattr(part, "mode"):
        return f"image {part.mode}", value.dtype.str, value.ndim
    raise ValueError(f"a sample holds {type(part).__name__}, which no array can hold")


def restored(value: Any, kind: str) -> Any:
    """A part of a sample as the dataset gave it."""
    if kind in MADE:
        return MADE[kind](value)  # type: ignore[operator]
    mode = None if kind.endswith((" RGB", " L", " RGBA")) else kind.split()[1]
    return import_module("PIL.Image").fromarray(value, mode=mode)


def removed(folder: str, owner: int) -> None:
    """Deletes a folder, in the process that made it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


class KeptHeads(Wrapper):
    """Samples as they are before the random transforms, kept in memory; the other transforms are done each time.

    Args:
        dataset: its chain of transforms is ``dataset.transform.transforms``.
        first: how many of the transforms come before the random ones.
        workers: processes that read it.
    """

    kept = KeptSamples

    def __init__(self, dataset: Any, first: int, workers: int = 0) -> None:
        super().__init__(dataset)
        head, self.tail = split(dataset, first)
        self.heads = made_once(dataset, ("heads", first, self.kept), lambda: self.kept(head, workers))

    def __getitem__(self, index: Any) -> Any:
        return transformed(self.heads[index], self.tail)


class MappedHeads(KeptHeads):
    """The same, written to a file."""

    kept = MappedSamples  # type: ignore[assignment]


class FilesInMemory(Wrapper):
    """A dataset that reads copies of its files in memory.

    Args:
        dataset: holds the paths of its files.
        root: the folder that they are in.
        folder: in memory.
    """

    def __init__(self, dataset: Any, root: str, folder: str = "/dev/shm") -> None:
        copies = tempfile.mkdtemp(prefix=f"prepared-files-{os.getpid()}-", dir=folder)
        weakref.finalize(self, removed, copies, os.getpid())
        shutil.copytree(root, copies, dirs_exist_ok=True)
        super().__init__(moved(dataset, root, copies))


def moved(dataset: Any, root: str, target: str) -> Any:
    """A dataset whose paths below ``root`` point below ``target``."""
    inside = root.rstrip(os.sep) + os.sep
    return with_paths(dataset, lambda path: target + path[len(inside) - 1 :] if f"{path}/".startswith(inside) else None)


def with_paths(value: Any, change: Callable[[str], str | None], depth: int = 5) -> Any:
    """A dataset, or what it holds, with changed paths; what holds none that ``change`` gives another for stays."""
    if isinstance(value, os.PathLike) or (isinstance(value, str) and os.sep in value):
        path = change(os.path.abspath(value))
        return value if path is None else type(value)(path)  # type: ignore[call-arg]
    if not depth:
        return value
    if isinstance(value, dict):
        made = {key: with_paths(part, change, depth - 1) for key, part in value.items()}
        return made if any(made[key] is not value[key] for key in value) else value
    if type(value) in (list, tuple):
        parts = [with_paths(part, change, depth - 1) for part in value]
        return type(value)(parts) if any(a is not b for a, b in zip(parts, value, strict=True)) else value
    if isinstance(value, np.ndarray) and value.dtype.kind in "UO":
        return np.array(with_paths(value.tolist(), change), dtype=None if value.dtype.kind == "U" else object)
    if not hasattr(value, "__dict__") or not hasattr(type(value), "__getitem__"):
        return value
    held = with_paths(vars(value), change, depth)
    if held is vars(value):
        return value
    other = copy.copy(value)
    other.__dict__.update(held)
    return other


class Rows(Wrapper):
    """Samples of a dataset that are the same every time, collated once: a batch is rows of tensors.

    Args:
        dataset: its samples collate into tensors.
        device: where the tensors are.
    """

    def __init__(self, dataset: Any, device: str = "cpu") -> None:
        super().__init__(dataset)
        self.batch, self.rows = made_once(dataset, ("rows", device), lambda: self.collated(device))
        self.pinned = device.startswith("cuda")

    def collated(self, device: str) -> tuple[Any, list[torch.Tensor]]:
        """The form of a batch, and the tensors of all samples."""
        many = getattr(self.dataset, "__getitems__", lambda indices: list(map(self.dataset.__getitem__, indices)))
        whole = many(list(range(len(self))))
        batch = whole.batch if isinstance(whole, Collated) else default_collate(whole)
        for part in leaves(batch):
            if not isinstance(part, torch.Tensor):
                raise TypeError(f"samples collate into a batch with {type(part).__name__}, not into tensors alone")
        rows = [part.to(device) for part in leaves(batch)]
        return like(batch, [None] * len(rows)), rows

    def __getitems__(self, indices: list[int]) -> Collated:
        index = torch.tensor(indices, pin_memory=self.pinned)
        parts = [rows.index_select(0, index.to(rows.device, non_blocking=True)) for rows in self.rows]
        return Collated(like(self.batch, parts))


class IndexedBatches(Wrapper):
    """A dataset of rows: a batch is read by one index.

    Args:
        dataset: takes many indices at once.
        index: what it takes them as, ``tensor``, ``array`` or ``list``.
    """

    def __init__(self, dataset: Any, index: str) -> None:
        super().__init__(dataset)
        kinds: dict[str, Any] = {"tensor": torch.as_tensor, "array": np.asarray, "list": list}
        self.index = kinds[index]

    def __getitems__(self, indices: list[int]) -> Collated:
        dataset = self.dataset
        while isinstance(dataset, Subset):
            indices = [dataset.indices[index] for index in indices]
            dataset = dataset.dataset
        return Collated(default_convert(dataset[self.index(indices)]))  # type: ignore[no-untyped-call]


class ThreadedSamples(Wrapper):
    """Reads the samples of a batch in threads.

    Args:
        dataset: bears several threads at a time.
        threads: how many.
    """

    def __init__(self, dataset: Any, threads: int) -> None:
        super().__init__(dataset)
        self.threads = threads

    def __getitems__(self, indices: list[int]) -> list[Any]:
        with ThreadPoolExecutor(self.threads) as pool:  # threads that last would be missing in a forked worker
            return list(pool.map(self.dataset.__getitem__, indices))
