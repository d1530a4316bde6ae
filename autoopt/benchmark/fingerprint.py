"""Fingerprints of a training: digests of its batches, and sampled coordinates of its weights and gradients.

Two processes that train the same give the same fingerprints; whole gradients never leave a process, and whole weights
only as files of its start, middle and end.
Augmentation draws from the generators of whichever process reads a sample, so that its draws change with the number of
workers: where two plans are compared sample by sample, they are made to depend on the indices instead.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from autoopt.benchmark.contents import PLAIN, Leaf, array_of, leaves, samples_of, tensors
from autoopt.benchmark.live import LiveTraining
from autoopt.benchmark.loader import Shielded
from autoopt.benchmark.seeding import kept_modes, kept_random_state, mix, seed_everything
from autoopt.records.messages import Moved

Array = NDArray[np.float32]
Digests = tuple[str, str, str]
"""Of all that a batch holds, of its order, and the type of a part that neither holds; "" where there is none."""

MOST_COORDINATES, LEAST_PER_TENSOR = 16384, 16
"""Sampled coordinates of all parameters together, and of a small one: a squared length is then known to 1 %."""

_UNLIKE = object()


def digest(batch: Any) -> str:
    """A digest of what a batch holds, but for padding: small tensors (labels) whole, of others evenly spaced elements.

    Empty where there is nothing that can be hashed.
    """
    return _hash(leaves(batch))[0]


def digests(batch: Any, drawn: Iterable[Any] | None = None) -> Digests:
    """The digest of a batch, that of its order, and the type of a part that neither holds.

    Taken as it is given: what a script does to its batch, such as keeping an answer in it, comes after. The order is
    that of its whole numbers and texts; where it has none (masks, values), of the indices that were drawn for it.
    """
    whole, order, unhashed = _hash(leaves(batch))
    if not order and drawn is not None:
        order = digest([str(index) for index in drawn])
    return whole, order, unhashed


class SampleDigest:
    """A digest of samples in their order, the same however many of them a batch holds, and but for padding.

    Padding is the number with which most rows of a batch's whole numbers end.
    Of tensors and arrays with a row for each sample it holds the rows, of a list of texts the texts; of what else a
    batch holds each content once.

    Args:
        width: ids of a row of whole numbers that are held, padding or not; all of them but for padding where None.
    """

    def __init__(self, most: int, width: int | None = None) -> None:
        self._most, self._width = most, width
        self._held: dict[str, tuple[Any, int]] = {}
        self._once = set[str]()

    def update(self, batch: Any, name: str = "") -> None:
        """Adds a batch; ``name`` keeps batches apart that are given for other reasons."""
        count = samples_of(batch)
        for path, leaf in leaves(batch):
            place = name + (path.rpartition("[")[0] if isinstance(leaf, str) else path)
            hashed, held = self._held.get(place) or (hashlib.blake2b(digest_size=8), 0)
            if held >= self._most:
                continue
            rows = _rows_of(leaf, count, self._most - held, self._width)
            if rows is None:
                content = _bytes_of(leaf) or b""
                self._once.add(hashlib.blake2b(place.encode() + content, digest_size=8).hexdigest())
                continue
            hashed.update(b"".join(rows))
            self._held[place] = hashed, held + len(rows)

    def hexdigest(self) -> str:
        """Empty where nothing was held."""
        if not self._held and not self._once:
            return ""
        whole = hashlib.blake2b(digest_size=8)
        for place, (hashed, _) in sorted(self._held.items()):
            whole.update(place.encode() + hashed.digest())
        whole.update("".join(sorted(self._once)).encode())
        return whole.hexdigest()


def _rows_of(leaf: Any, count: int | None, most: int, width: int | None = None) -> list[bytes] | None:
    """What is hashed of each of the first samples' rows in a leaf; None where it has no row for each."""
    if isinstance(leaf, str):
        return [leaf.encode(errors="surrogatepass")]
    if not isinstance(leaf, torch.Tensor):
        array = array_of(leaf)
        if array is None or array.dtype.kind not in "biufc":
            return None
        leaf = torch.from_numpy(np.ascontiguousarray(array))
    if not count or not _dense(leaf) or not leaf.dim() or len(leaf) != count or leaf.is_meta:
        return None
    rows = leaf[:most].detach().resolve_conj().resolve_neg().reshape(min(count, most), -1)
    # evenly spaced elements of a longer row, fewer than twice so many
    rows = rows[:, :: max(rows.shape[1] // 1024, 1)].contiguous().cpu()
    ended = leaf.dim() == 2 and not leaf.is_floating_point() and not leaf.is_complex() and leaf.shape[1] > 1
    if ended and width is not None:
        rows, ended = rows[:, :width].contiguous(), False
    # a longest row that was cut to its length has no padding, which the others say what it is
    ends: torch.Tensor | None = None
    if ended:
        ends = torch.where(rows != rows[:, -1].mode().values, torch.arange(rows.shape[1]) + 1, 0).amax(1)
    content = rows.view(torch.uint8).numpy() if rows.numel() else np.zeros((len(rows), 0), np.uint8)
    size = rows.element_size()
    return [row.tobytes() if ends is None else row[: int(ends[n]) * size].tobytes() for n, row in enumerate(content)]


def step_digests(group: list[Any]) -> Digests:
    """Those of a step's micro-batches: the same however many the samples are divided into, in the same order.

    Micro-batches that cannot be joined (another length of padding in each) are digested one by one.
    """
    found = [list(leaves(batch)) for batch in group]
    alike = len({tuple(path for path, _ in one) for one in found}) == 1
    columns = zip(*found, strict=True) if alike else ()
    joined = [(column[0][0], _join([leaf for _, leaf in column])) for column in columns]
    if joined and all(part is not _UNLIKE for _, part in joined):
        return _hash(joined)
    whole, order, unhashed = zip(*map(digests, group), strict=True)
    return "".join(whole), "".join(order), next(filter(None, unhashed), "")


def _join(parts: list[Any]) -> Any:
    """Rows of tensors below each other; what is no tensor, where it is the same in all parts."""
    first = parts[0]
    if not isinstance(first, torch.Tensor):
        own = _bytes_of(first)
        return first if own is not None and all(_bytes_of(part) == own for part in parts) else _UNLIKE
    if any(not _dense(part) or not part.dim() or part.shape[1:] != first.shape[1:] for part in parts):
        return _UNLIKE
    return torch.cat([part.detach() for part in parts])


def _hash(found: Iterable[Leaf]) -> Digests:
    """Of all leaves, and of those whose numbers neither augmentation nor rounding changes; "" where there is none."""
    hashes, held, unhashed = [hashlib.blake2b(digest_size=8) for _ in range(2)], [False, False], ""
    for path, leaf in found:
        content = _bytes_of(leaf)
        if content is None:
            unhashed = unhashed or type(leaf).__name__
            continue
        for number in range(1 if has_fractions(leaf) else 2):
            hashes[number].update(path.encode() + content)
            held[number] |= leaf is not None
    whole, order = (hashed.hexdigest() if some else "" for hashed, some in zip(hashes, held, strict=True))
    return whole, order, unhashed


def has_fractions(leaf: Any) -> bool:
    """Whether a leaf holds numbers that augmentation or rounding may change."""
    if isinstance(leaf, torch.Tensor):
        return leaf.is_floating_point() or leaf.is_complex()
    found = leaf if isinstance(leaf, np.generic) else array_of(leaf)
    return isinstance(leaf, (float, complex)) or (found is not None and found.dtype.kind in "fc")


def _bytes_of(leaf: Any) -> bytes | None:
    """What is hashed of a leaf; None where it cannot be read."""
    if isinstance(leaf, torch.Tensor):
        try:
            return _bytes_of_tensor(leaf.detach())
        except (RuntimeError, NotImplementedError):  # a kind of tensor that has no numbers here (meta)
            return None
    if isinstance(leaf, PLAIN):
        return f"{type(leaf).__name__}{leaf!r}".encode(errors="surrogatepass")
    array = array_of(leaf)
    if array is None:
        return None
    flat = array.reshape(-1)
    return f"{array.shape}{array.dtype}".encode() + np.ascontiguousarray(_thinned(flat, flat.size)).tobytes()


def _bytes_of_tensor(tensor: torch.Tensor) -> bytes:
    if not _dense(tensor):
        return b"".join(map(_bytes_of_tensor, _dense_parts(tensor)))
    if tensor.dim() == 2 and tensor.shape[0] > 1 and not tensor.is_floating_point() and not tensor.is_complex():
        # Rows of whole numbers without the columns at their end that are the same in all rows: their padding. Batches
        # that are padded to another length hold the same; what a model makes of its padding, gradients show.
        columns = (tensor != tensor[:1]).any(0).nonzero()
        tensor = tensor[:, : int(columns[-1]) + 1] if len(columns) else tensor[:, :1]
    flat: torch.Tensor = tensor.resolve_conj().resolve_neg().reshape(-1)
    flat = _thinned(flat, flat.numel()).contiguous().cpu()
    content: bytes = flat.view(torch.uint8).numpy().tobytes()
    return f"{tuple(tensor.shape)}{tensor.dtype}".encode() + content


def _thinned(flat: Any, size: int) -> Any:
    return flat[:: size >> 14] if size > 1 << 16 else flat  # no step waits for a digest


def _dense(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_quantized


def _dense_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A tensor of another layout in its parts, which together take as much memory as it does."""
    if tensor.is_nested:
        return tuple(tensor.unbind())
    if tensor.is_quantized:
        return (tensor.int_repr(),)
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        return tensor.indices(), tensor.values()
    rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    places = (tensor.crow_indices(), tensor.col_indices()) if rows else (tensor.ccol_indices(), tensor.row_indices())
    return (*places, tensor.values())


def sample_keys(batch: Any) -> list[int]:
    """A key for each sample of a batch, from its row in the batch's largest tensor.

    Where that has no row for each, a list of texts has one for each text, and any other batch one as a whole.
    """
    found = [tensor for _, tensor in tensors(batch) if _dense(tensor) and tensor.dim() and tensor.numel()]
    largest = max(found, key=lambda tensor: tensor.numel(), default=None)
    rows = None if largest is None else _rows_of(largest, samples_of(batch), len(largest))
    if rows is not None:
        return list(map(hash, rows))
    if isinstance(batch, (list, tuple)) and all(isinstance(item, str) for item in batch):
        return [hash(item) for item in batch]
    whole = digest(batch)
    return [hash(whole)] if whole else []


class Coordinates:
    """Sampled coordinates of a model's trainable parameters, the same in every process.

    Attributes:
        names: of the parameters in the model's own order, without the prefix of a compiled module.
        sizes, counts: elements of each parameter, and how many of them are sampled.
    """

    def __init__(self, model: nn.Module) -> None:
        found = {name.replace("_orig_mod.", ""): p for name, p in model.named_parameters() if p.requires_grad}
        self._parameters = list(found.values())
        self.names = list(found)
        self.sizes = [parameter.numel() for parameter in self._parameters]
        total = max(sum(self.sizes), 1)
        self.counts = [min(size, max(LEAST_PER_TENSOR, MOST_COORDINATES * size // total)) for size in self.sizes]
        self._indices = []
        for place, (parameter, size, count) in enumerate(zip(self._parameters, self.sizes, self.counts, strict=True)):
            drawn = np.random.default_rng(mix(place, size)).choice(size, count, replace=False)
            self._indices.append(torch.from_numpy(np.sort(drawn)).to(parameter.device))
        self._sparse = [False] * len(self._parameters)

    def weights(self) -> Array:
        return self._sampled([parameter.detach() for parameter in self._parameters])

    def gradients(self, scale: float = 1.0) -> Array:
        """The sampled gradients over ``scale``; NaN where a parameter has none."""
        self._sparse = [
            before if p.grad is None else p.grad.is_sparse
            for before, p in zip(self._sparse, self._parameters, strict=True)
        ]
        return self._sampled([parameter.grad for parameter in self._parameters]) / np.float32(scale)

    def _sampled(self, values: list[torch.Tensor | None]) -> Array:
        parts = []
        for value, index in zip(values, self._indices, strict=True):
            if value is None:
                parts.append(torch.full(index.shape, float("nan"), device=index.device))
                continue
            if hasattr(value, "full_tensor"):  # shared out between processes, which all look at the same time
                value = value.full_tensor()
            parts.append(_at(value, index).float())
        return torch.cat(parts).cpu().numpy() if parts else np.zeros(0, dtype=np.float32)

    @torch.no_grad()
    def set_synthetic_weights(self, size: float) -> None:
        """Gives each parameter values that are the same in every process, however far each has trained."""
        for place, parameter in enumerate(self._parameters):
            generator = torch.Generator().manual_seed(mix("weights", place))
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator))

    def set_synthetic_gradients(self, seed: int | None, size: float) -> None:
        """Gives each parameter a gradient drawn from the seed, the same in every process; zero where None.

        One whose gradients were sparse (an embedding's) gets a sparse one, of the rows that are sampled.
        """
        for place, (parameter, index) in enumerate(zip(self._parameters, self._indices, strict=True)):
            rows: torch.Tensor | None = None
            if self._sparse[place]:
                rows = torch.unique(index.div(max(parameter[0].numel(), 1), rounding_mode="floor"))
            shape = parameter.shape if rows is None else (len(rows), *parameter.shape[1:])
            if seed is None:
                drawn = torch.zeros(shape)
            else:
                drawn = size * torch.randn(shape, generator=torch.Generator().manual_seed(mix(seed, place)))
            if rows is not None:
                values = drawn.to(parameter.device, parameter.dtype)
                parameter.grad = torch.sparse_coo_tensor(
                    rows[None], values, parameter.shape, is_coalesced=True, check_invariants=False
                )
            else:
                parameter.grad = torch.empty_like(parameter).copy_(drawn)


class Buffers:
    """Values of a model's buffers (running statistics), evenly spaced in those that are large.

    ``names``: the buffer of each value, without the prefix of a compiled module.
    """

    def __init__(self, model: nn.Module) -> None:
        found = {name.replace("_orig_mod.", ""): buffer for name, buffer in model.named_buffers() if buffer.numel()}
        self._model, self._every = model, {n: -(-b.numel() // LEAST_PER_TENSOR) for n, b in found.items()}
        self.names = [name for name, b in found.items() for _ in b.reshape(-1)[:: self._every[name]]]

    def values(self) -> Array:
        """As they are now; a buffer that was replaced is looked up again."""
        now = {name.replace("_orig_mod.", ""): buffer for name, buffer in self._model.named_buffers()}
        held = [(now[name].detach(), every) for name, every in self._every.items() if name in now]
        parts = [buffer.reshape(-1)[::every].float().cpu() for buffer, every in held]
        return torch.cat(parts).numpy() if parts else np.zeros(0, dtype=np.float32)


def dropouts(model: nn.Module) -> tuple[float, ...]:
    """Shares that the model's dropout layers leave out, in its own order."""
    kinds = nn.modules.dropout._DropoutNd
    return tuple(float(module.p) for module in model.modules() if isinstance(module, kinds))


def _at(value: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Elements of a tensor that is examined as one row; of a sparse one without the rest."""
    if not value.is_sparse:
        return value.reshape(-1)[index]
    if value.sparse_dim() != 1:
        return value.to_dense().reshape(-1)[index]
    value = value.coalesce()
    rows, width = value.indices()[0], max(value[0].numel(), 1)
    if not len(rows):
        return torch.zeros(index.shape, device=index.device)
    wanted = torch.div(index, width, rounding_mode="floor")
    place = torch.searchsorted(rows, wanted).clamp(max=len(rows) - 1)
    found = value.values().reshape(len(rows), -1)[place, index % width]
    return torch.where(rows[place] == wanted, found, torch.zeros_like(found))


@contextmanager
def without_draws(model: nn.Module) -> Iterator[None]:
    """The model as in training, but that nothing in it draws random numbers (dropout is off)."""
    keep = (nn.modules.batchnorm._BatchNorm, nn.RNNBase)
    plain = functional.dropout  # which may be called whatever the mode of a module is
    with kept_modes(model):
        for module in model.modules():
            module.training = module.training and isinstance(module, keep)
        functional.dropout = lambda input, *_, **__: input
        try:
            yield
        finally:
            functional.dropout = plain


def same_draws() -> None:
    """From now on, in this process and in loader workers that it forks.

    A batch that is asked for again gets the same draws: a worker cannot know how often another one was asked. What a
    sampler draws follows from the number of the pass: how far ahead it is asked depends on the workers.
    Generators of a dataset's own stay as they are; the process's are left as if nothing was drawn.
    """
    plain: Any = _MapDatasetFetcher.fetch

    @functools.wraps(plain)
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        with kept_random_state():
            seed_everything(mix("draws", str(possibly_batched_index)))
            return plain(self, possibly_batched_index)

    _MapDatasetFetcher.fetch = fetch  # type: ignore[method-assign]
    drawn: Any = _BaseDataLoaderIter._next_index
    passes = itertools.count()

    @functools.wraps(drawn)
    def next_index(self: Any) -> Any:
        if self.__dict__.get("_autoopt_drawing") is not self._sampler_iter:  # a new one, maybe of workers that persist
            shielded = Shielded(self._sampler_iter, mix("order", next(passes)), quiet=inf)
            self._sampler_iter = self._autoopt_drawing = iter(shielded)
        return drawn(self)

    _BaseDataLoaderIter._next_index = next_index  # type: ignore[method-assign]


def same_samples(dataset: Any) -> bool | None:
    """Whether the same index gives the same sample under other random numbers; None where that is unknown."""
    if isinstance(dataset, IterableDataset):
        return None
    with kept_random_state():
        for index in range(min(2, len(dataset))):  # the first alone may draw from a seed of its own
            seen = []
            for seed in (1, 2, 3):
                seed_everything(seed)
                seen.append(dataset[index])
            if digests(seen[0])[2]:
                return None
            if not all(equal(seen[0], other) for other in seen[1:]):
                return False
    return True


def equal(one: Any, other: Any) -> bool:
    """Whether two samples are the same, by the value of all that they hold."""
    left, right = list(leaves(one)), list(leaves(other))
    same = [path for path, _ in left] == [path for path, _ in right]
    return same and all(_same(mine, theirs) for (_, mine), (_, theirs) in zip(left, right, strict=True))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        plain = one.layout == other.layout == torch.strided and not one.is_nested and not other.is_nested
        return bool(torch.equal(one, other)) if plain else digest(one) == digest(other)
    arrays = array_of(one), array_of(other)
    if arrays[0] is not None and arrays[1] is not None:
        return np.array_equal(*arrays)
    try:
        return bool(one == other)
    except (TypeError, ValueError, RuntimeError):
        return False


APART = 0.1
"""Share of the training from its start and its end, from which on weights between are others than at those."""


class KeptWeights:
    """Writes a training's weights at its start, after its evaluations 1, 2, 4, 8 ..., and at its end."""

    def __init__(self, training: LiveTraining, directory: str) -> None:
        self._training, self._directory = training, Path(directory)
        size = sum(value.numel() * value.element_size() for value in training.model.state_dict().values())
        # writing a larger model's weights would take longer than what is learnt there
        self._wanted = size <= 4 * 2**30 and training.setup.distributed.fully_sharded is None
        self._steps: list[int] = []
        if self._wanted:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._keep()

    def evaluated(self, evaluations: int) -> None:
        """Called after each evaluation; keeps where their number is a power of two."""
        if self._wanted and evaluations & (evaluations - 1) == 0:
            self._keep()

    def _keep(self) -> None:
        step = self._training.steps
        if step in self._steps:
            return
        torch.save(self._training.model.state_dict(), self._file(step))
        self._steps.append(step)

    def _file(self, step: int) -> Path:
        return self._directory / f"step-{step}.pt"

    def files(self) -> tuple[str, ...]:
        """Those of start, middle and end, as far as they are not the same; the others are removed."""
        if not self._wanted:
            return ()
        self._keep()
        first, last = self._steps[0], self._steps[-1]
        middle = min(self._steps, key=lambda step: abs(step - (first + last) / 2))
        apart = min(middle - first, last - middle) >= APART * (last - first)
        kept = {first, middle, last} if apart else {first, last}
        for step in self._steps:
            if step not in kept:
                self._file(step).unlink(missing_ok=True)
        self._steps = sorted(kept)
        return tuple(str(self._file(step)) for step in self._steps)


class Movement:
    """Reads sampled elements of every parameter, between steps and off the clock.

    Parameters that are spread over processes are not examined: no element of them is here for sure.
    """

    def __init__(self, model: nn.Module) -> None:
        self._here = not any(hasattr(parameter, "device_mesh") for parameter in model.parameters())
        self.moves: list[Moved] = []
        if not self._here:
            return
        self._coordinates = Coordinates(model)
        self._tensor = np.repeat(np.arange(len(self._coordinates.counts)), self._coordinates.counts)
        self._before, self._step = self._coordinates.weights(), 0

    def look(self, step: int) -> None:
        """Notes which parameters have moved since the last look; ``step``: optimizer steps so far."""
        if not self._here or step <= self._step:
            return
        now, count = self._coordinates.weights(), len(self._coordinates.counts)
        moved = np.bincount(self._tensor, now != self._before, count)
        still = np.flatnonzero(moved == 0).tolist()
        slow = 2 * moved <= np.array(self._coordinates.counts)
        self.moves.append(
            Moved(
                first_step=self._step,
                step=step,
                parameters=count,
                still=tuple(still),
                names=tuple(self._coordinates.names[index] for index in still),
                slow=tuple(np.flatnonzero(slow).tolist()),
            )
        )
        self._before, self._step = now, step
