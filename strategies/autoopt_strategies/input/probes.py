"""In which forms the samples of a dataset can be prepared once: tried on a few of them."""

from __future__ import annotations

import ast
import io
import os
import pickle
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from statistics import fmean
from time import perf_counter
from typing import Any

from autoopt_strategies.compute.rewriting.source import Refused, function_of, text_of, users_path
from autoopt_strategies.input.batches import as_tensors, equal, is_subset, leaves, read_many, split, transformed
from autoopt_strategies.input.unaugmented import READ_BATCH, halves, reader_of, with_halves
from autoopt_strategies.trying import Setting, first_line, ratio_in_turns

SPREAD, SEEDS = 12, 4
"""Samples from all over a dataset that are read one by one, and how often each is drawn."""
SIZE = 8
"""Batches that are read by one index, and their size."""
KINDS = ("tensor", "array", "list")
NAMES = ("random", "jitter", "augment", "erasing", "noise", "mixup", "cutout", "cutmix", "dropout")
"""Parts of names of transforms that draw numbers: a rare draw may not show in a few tries."""
DRAWS = (*NAMES, "rand", "rng", "shuffle", "choice")
"""The same of names in statements."""
FROM_THE_START = "it draws random numbers from its first statement on"


def chain_of(dataset: Any) -> list[Any]:
    """The transforms that images of a dataset go through (``dataset.transform.transforms``), those of a subset, too."""
    while is_subset(dataset):
        dataset = dataset.dataset
    chain = getattr(getattr(dataset, "transform", None), "transforms", None)
    return list(chain) if isinstance(chain, (list, tuple)) else []


def kept(dataset: Any) -> Setting:
    """The part of a dataset that can be kept: ``deterministic``, or a ``prefix`` of its transforms, with its costs."""
    try:
        len(dataset)
    except TypeError:
        return {"reason": "the dataset has no length"}
    indices = spread(dataset)
    found, made = repeated(dataset, indices)
    if found:
        hit = min(1.0, seconds_ratio(dataset, from_memory(indices, made), indices)) if indices else 1.0
        return {**found, "hit": hit, "threads": threads_ratio(dataset, indices, made, found["sample_seconds"])}
    chain = chain_of(dataset)
    if not chain:
        return {"reason": "samples are random, and there is no chain of transforms whose first part could be cached"}
    names = [(getattr(each, "__name__", "") or type(each).__name__).lower() for each in chain]
    first = next((i for i, name in enumerate(names) if any(part in name for part in NAMES)), len(chain))
    for length in range(first, 0, -1):
        head, rest = split(dataset, length)
        same, _ = under_seeds(head, indices)
        if not same:
            continue
        made, seconds = timed(head, indices)
        again = from_memory(indices, made, rest)
        if all(isinstance(sample, tuple) for sample in made) and same_samples(dataset, again, indices):
            size, hit = max(map(item_bytes, made)), min(1.0, seconds_ratio(dataset, again, indices))
            found = {"prefix": length, "sample_seconds": seconds, "sample_bytes": size, "hit": hit}
            return {**found, "handing_seconds": handing_seconds(made)}
    return {"reason": f"augmentation is random from the first transform on ({type(chain[0]).__name__})"}


def repeated(dataset: Any, indices: list[int]) -> tuple[Setting, list[Any]]:
    """What keeping whole samples takes, and these; empty where they are not the same every time."""
    same, _ = under_seeds(dataset, indices)
    if not same:
        return {}, []
    made, seconds = timed(dataset, indices)
    size = max(map(item_bytes, made), default=0)
    taken = {"sample_seconds": seconds, "sample_bytes": size, "handing_seconds": handing_seconds(made)}
    return {"deterministic": True, **taken}, made


def all_repeated(datasets: list[Any]) -> Setting:
    """The same of samples of several datasets, on the mean; seconds alone where some are not the same every time."""
    found = []
    for dataset in datasets:
        indices = spread(dataset)
        found.append(repeated(dataset, indices)[0] or {"sample_seconds": timed(dataset, indices)[1]})
    known, sizes = set.intersection(*map(set, found)), list(map(len, datasets))
    means = {name: fmean([each[name] for each in found], sizes) for name in known}
    return means | ({"deterministic": True} if "deterministic" in known else {})


class Indexed:
    """Samples that a function makes of their index."""

    def __init__(self, sample: Callable[[int], Any]) -> None:
        self.sample = sample

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


def timed(dataset: Any, indices: list[int]) -> tuple[list[Any], float]:
    """Samples, and the seconds that each of them took."""
    began = perf_counter()
    made = [dataset[index] for index in indices]
    return made, (perf_counter() - began) / max(1, len(indices))


def handing_seconds(samples: list[Any]) -> float:
    """Seconds that a process takes for each sample that another one has read for it."""
    from autoopt_strategies.input.prepared import as_bytes, from_bytes

    handed = as_bytes(samples)
    began = perf_counter()
    from_bytes(handed)
    return (perf_counter() - began) / max(1, len(samples))


def threads_ratio(dataset: Any, indices: list[int], made: list[Any], seconds: float) -> float | None:
    """Seconds of a sample that threads read at the same time over those of one thread.

    None where threads get other samples: a file that they share has one position.
    """
    from autoopt_strategies.input.prepared import ThreadedSamples

    if not indices or not seconds:
        return None
    threaded, began = ThreadedSamples(dataset, len(indices)), perf_counter()
    try:
        found = threaded.__getitems__(indices)
    except Exception:  # a handle that belongs to the thread that has made it
        return None
    ratio = (perf_counter() - began) / len(indices) / seconds
    return ratio if equal(made, found) else None


def from_memory(indices: list[int], made: list[Any], tail: tuple[Any, ...] = ()) -> Indexed:
    """Samples of the indices that are kept as they were ``made``, and go through the ``tail`` of their transforms."""
    samples = dict(zip(indices, made, strict=True))
    return Indexed(lambda index: transformed(samples[index], tail) if tail else samples[index])


def under_seeds(dataset: Any, indices: list[int]) -> tuple[bool, bool]:
    """Whether samples are the same to the bit under other random numbers, and whether making them takes some."""
    seen, drawn = list[list[Any]](), False
    for seed in range(SEEDS):
        seed_everything(seed)
        before = random_state()
        seen.append([dataset[index] for index in indices])
        drawn = drawn or random_state() != before
    return all(equal(seen[0], other) for other in seen[1:]), drawn


def item_bytes(item: Any) -> int:
    """Bytes of the tensors, arrays and images in a sample."""
    if isinstance(item, (dict, list, tuple)):
        return sum(map(item_bytes, leaves(item)))
    if hasattr(item, "mode") and hasattr(item, "size") and hasattr(item, "getbands"):
        return int(item.size[0] * item.size[1] * len(item.getbands()))
    if not hasattr(item, "nbytes") and getattr(item, "__dict__", None):  # an object that holds them, as of a graph
        return 64 + sum(item_bytes(value) for value in vars(item).values())
    return int(getattr(item, "nbytes", 64))


def seed_everything(seed: int) -> None:
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def unaugmented(dataset: Any) -> Setting:
    """Where the dataset's ``__getitem__`` can be split, what the first part costs, and what kept parts leave.

    ``{"reason": why not}`` where it cannot be split.
    """
    indices = spread(dataset)
    base, below = dataset, list(indices)
    while is_subset(base):
        below, base = [base.indices[index] for index in below], base.dataset
    try:
        function = reader_of(base)
        line, heads = _latest_split(base, function, below)
    except Refused as problem:
        return {"reason": str(problem)}
    made, seconds = timed(heads, below)
    return {
        "where": {"file": users_path(function.__code__.co_filename), "function": function.__qualname__, "line": line},
        "sample_seconds": seconds,
        "sample_bytes": max(map(item_bytes, made)),
        "hit": min(1.0, seconds_ratio(dataset, with_halves(dataset, line), indices)),
        "threads": None if hasattr(base, READ_BATCH) else threads_ratio(heads, below, made, seconds),
    }


def _latest_split(base: Any, function: Any, indices: list[int]) -> tuple[int, Indexed]:
    """The latest line before which nothing random happens, and what the statements above it make of each index.

    Raises:
        Refused: samples cannot be made in two parts.
    """
    body = function_of(ast.parse(text_of(function)), function.__qualname__).body
    names = {node: {getattr(part, "id", getattr(part, "attr", "")).lower() for part in ast.walk(node)} for node in body}
    draws = (node.lineno for node in body if any(part in name for name in names[node] for part in DRAWS))
    first, reason = next(draws, body[-1].lineno), FROM_THE_START
    for line in (node.lineno for node in reversed(body[1:]) if node.lineno <= first):
        try:
            heads = Indexed(partial(halves(function, line)[0], base))
        except Refused as problem:
            reason = str(problem)
            continue
        made, (same, drawn) = with_halves(base, line), under_seeds(heads, indices)
        if drawn:
            reason = FROM_THE_START
        elif (
            same
            and same_samples(base, made, indices, range(SEEDS))
            and all(equal(heads[index], made.unaugmented(index)) for index in indices)  # nobody changed what is kept
        ):
            return line, heads
        else:
            reason = "samples made in two parts are other samples"
    raise Refused(f"{function.__qualname__}: {reason}")


def random_state() -> Any:
    """Of the generators that the standard library, numpy and torch share out."""
    import numpy as np
    import torch

    return random.getstate(), pickle.dumps(np.random.get_state()), torch.get_rng_state().numpy().tobytes()


def batches(dataset: Any, size: int) -> Setting:
    """``{"index": the kind that gives the same batches, "ratio": of their seconds}``, or ``{"reason": why none}``.

    ``whole``: the kind that gives all samples in their order, with their ``ratio``: rows of a table that are taken one
    by one in another order have labels that are no positions.

    Args:
        size: of a batch whose seconds are compared.
    """
    from torch.utils.data import default_collate

    from autoopt_strategies.input.prepared import IndexedBatches

    try:
        count = len(dataset)
    except TypeError:
        return {"reason": "the dataset has no length"}
    drawn = random.Random(0)
    groups = [[0, count - 1], *([drawn.randrange(count) for _ in range(min(SIZE, count))] for _ in range(SIZE))]
    try:
        expected = [default_collate([dataset[i] for i in group]) for group in groups]
    except Exception as error:
        return {"reason": f"samples cannot be collated by torch's default: {type(error).__name__}"}

    def given(kind: str, group: list[int]) -> Any:
        try:
            return IndexedBatches(dataset, kind).__getitems__(group).batch
        except Exception:  # the dataset takes one index at a time
            return None

    for kind in KINDS:
        if equal([given(kind, group) for group in groups], expected):
            break
    else:
        reason, first = "the dataset gives something else for many indices at once", list(range(min(size, count)))
        for kind in KINDS:
            began = perf_counter()
            whole, taken = given(kind, first), perf_counter() - began
            if whole is not None:
                samples, each = timed(dataset, first)
                if equal(whole, default_collate(samples)):
                    return {"reason": reason, "whole": kind, "ratio": min(1.0, taken / (each * len(first)))}
        return {"reason": f"{reason} than for each of them"}
    indexed = IndexedBatches(dataset, kind)
    timed_groups = [[drawn.randrange(count) for _ in range(size)] for _ in range(16)]
    one, other = cycle(timed_groups), cycle(timed_groups)
    ratio = ratio_in_turns(
        lambda: default_collate(read_many(dataset, next(one))), lambda: indexed.__getitems__(next(other))
    )
    return {"index": kind, "ratio": min(1.0, ratio)}


def tensors(dataset: Any, collate: Any) -> Setting:
    """``{"ratio": seconds in Hugging Face's torch format over those now}``, or ``{"reason": why not}``."""
    other = as_tensors(dataset)
    if other is dataset:
        return {"reason": f"{type(dataset).__name__} is no dataset of Hugging Face's"}
    if dataset.format["type"] is not None:
        return {"reason": f"the dataset has the format {dataset.format['type']!r} already"}
    groups = [[(number * 32 + i) % len(dataset) for i in range(32)] for number in range(4)]

    def made(source: Any, group: list[int]) -> Any:
        return collate([source[i] for i in group])

    try:
        same = all(equal(made(dataset, group), made(other, group)) for group in groups)
    except Exception as error:  # a collate function that wants lists
        return {"reason": f"samples in the torch format cannot be collated: {first_line(error)}"}
    if not same:
        return {"reason": "the torch format gives other batches: the collate function takes lists apart"}
    return {"ratio": min(1.0, ratio_in_turns(lambda: made(dataset, groups[0]), lambda: made(other, groups[0])))}


def files(dataset: Any, folder: str = "/dev/shm") -> Setting:
    """``{"root", "bytes", "room": free in memory's file system}``, or ``{"reason": why not}``."""
    from autoopt_strategies.input.prepared import moved

    indices = spread(dataset)
    if not indices or not os.path.isdir(folder):
        return {"reason": "samples cannot be read one by one" if not indices else f"there is no {folder}"}
    with opened_files() as opened:
        samples = [sample_of(dataset, index) for index in indices]
    if not opened:
        return {"reason": "samples are not read from files, or by a library that opens them without Python"}
    root = root_of(dataset, opened)
    if root is None or root in ("/", os.path.expanduser("~")):
        return {"reason": "the dataset names no folder that holds all of its files"}
    if root.startswith(folder):
        return {"reason": "the files are in memory already"}
    size = bytes_below(root)
    if size is None:
        return {"reason": f"{root} holds too many files to be copied"}
    with tempfile.TemporaryDirectory(dir=folder) as target:
        for file in set(opened):
            os.makedirs(os.path.dirname(target + file[len(root) :]), exist_ok=True)
            shutil.copyfile(file, target + file[len(root) :])
        other = moved(dataset, root, target)
        with opened_files() as again:
            try:
                same = same_samples(other, from_memory(indices, samples), indices)
            except OSError as error:
                return {"reason": f"samples cannot be read from copies: {first_line(error)}"}
        if not same or not again or not all(file.startswith(target) for file in again):
            return {"reason": "with paths that point to copies, samples are others, or not read from these"}
    return {"root": root, "bytes": size, "room": shutil.disk_usage(folder).free}


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Regular files that are opened for reading by Python's ``open`` or ``os.open`` in this process, while it lasts."""
    from unittest.mock import patch

    found: list[str] = []

    def seen(plain: Callable[..., Any]) -> Callable[..., Any]:
        def opening(file: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, (str, os.PathLike)) and os.path.isfile(file):
                found.append(os.path.abspath(file))
            return plain(file, *args, **kwargs)

        return opening

    with patch("builtins.open", seen(open)), patch("io.open", seen(io.open)), patch("os.open", seen(os.open)):
        yield found


def paths_in(value: Any) -> set[str]:
    """Absolute paths of files and folders among what an object holds: strings with a separator, and paths."""
    from autoopt_strategies.input.prepared import with_paths

    found: set[str] = set()
    with_paths(value, found.add)
    return found


def root_of(dataset: Any, opened: list[str]) -> str | None:
    """The folder that the dataset names and that holds all opened files; the one that all of its paths share, else."""

    def holds(folder: str) -> bool:
        return all(file == folder or file.startswith(folder.rstrip(os.sep) + os.sep) for file in opened)

    named = paths_in(dataset)
    folders = [path for path in named if os.path.isdir(path) and holds(path)]
    if folders:
        return max(folders, key=len)
    suffixes = {os.path.splitext(file)[1] for file in opened}
    listed = [path for path in named if os.path.splitext(path)[1] in suffixes]
    if not opened or not set(opened) <= set(listed):
        return None
    common = os.path.commonpath(listed)
    return common if os.path.isdir(common) else os.path.dirname(common)


def bytes_below(root: str) -> int | None:
    """Bytes of the files below a folder; None where there are half a million files and more."""
    count = size = 0
    for folder, _, names in os.walk(root):
        count += len(names)
        if count > 500_000:
            return None
        size += sum(os.path.getsize(path) for name in names if os.path.isfile(path := os.path.join(folder, name)))
    return size


def spread(dataset: Any) -> list[int]:
    """Indices of samples from all over a dataset; none where they cannot be read one by one."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or not len(dataset):
        return []
    return sorted({i * (len(dataset) - 1) // (SPREAD - 1) for i in range(SPREAD)})


def sample_of(dataset: Any, index: int, seed: int | None = None) -> Any:
    """A sample with the random draws of a seed, of its index where None, whoever reads it."""
    seed_everything(index if seed is None else seed)
    return dataset[index]


def same_samples(
    one: Any, other: Any, indices: list[int], seeds: Iterable[int | None] = (None,), alike: Callable[..., bool] = equal
) -> bool:
    """Whether two datasets give samples that are ``alike`` under the same draws, see :func:`sample_of`."""
    return all(alike(sample_of(one, index, seed), sample_of(other, index, seed)) for seed in seeds for index in indices)


def seconds_ratio(one: Any, other: Any, indices: list[int]) -> float:
    """Seconds to read these samples of ``other`` over those of ``one``."""
    return ratio_in_turns(lambda: [one[index] for index in indices], lambda: [other[index] for index in indices])
