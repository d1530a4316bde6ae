"""Batches of any kind: how many samples they hold, what is hashed of them, and whether they can be put on a device."""

from __future__ import annotations

import weakref
from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from autoopt.benchmark.contents import samples_of, shape_of, tensors, unreached
from autoopt.benchmark.facts import model_facts, size_of
from autoopt.benchmark.fingerprint import SampleDigest, digest, digests, equal, sample_keys, step_digests
from autoopt.benchmark.transfer import mover

Pair = namedtuple("Pair", "image label")


@dataclass
class Sequences:
    tokens: torch.Tensor
    lengths: list[int]
    names: list[str] = field(default_factory=list)


class GraphBatch:
    """In the shape of PyTorch Geometric's: a store that knows its owner weakly, and ``num_graphs``."""

    def __init__(self, **values: Any) -> None:
        self._store = Store(values)
        self._store.owner = weakref.ref(self)

    @property
    def num_graphs(self) -> int:
        return int(self._store["batch"].max()) + 1

    def __len__(self) -> int:
        return len(self._store)  # of keys, as there

    def to(self, device: Any) -> GraphBatch:
        return GraphBatch(**{key: value.to(device) for key, value in self._store.items()})


class Store(UserDict):  # type: ignore[type-arg]
    owner: Any = None


class Rows:
    """An object of a script's own, with a length."""

    def __init__(self, values: list[float]) -> None:
        self.values = torch.tensor(values).repeat(7, 1)
        self.loss = nn.MSELoss()

    def __len__(self) -> int:
        return self.values.shape[1]


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


class Silent:
    """Tells nothing of what it holds."""

    __slots__ = ()


def linked(values: list[float]) -> Any:
    """Refers to itself."""
    found = SimpleNamespace(x=torch.tensor(values))
    found.itself = found
    return found


def graph(x: list[float]) -> GraphBatch:
    return GraphBatch(x=torch.tensor(x), batch=torch.tensor([0, 0, 1]), edge_index=torch.tensor([[0, 1], [1, 0]]))


Make = Callable[[list[float]], Any]
KINDS: dict[str, tuple[Make, int | None, str, str]] = {
    # name: (batch of three numbers, samples, not pinned, not moved)
    "tensor": (torch.tensor, 3, "", ""),
    "scalar": (lambda v: torch.tensor(v[0]), None, "", ""),
    "pair": (lambda v: [torch.tensor(v), torch.zeros(3)], 3, "", ""),
    "time first, then rows": (lambda v: (torch.tensor(0.5), torch.tensor(v)), 3, "", ""),
    "dict": (lambda v: {"id": 7, "x": torch.tensor(v)}, 3, "", ""),
    "dict of objects": (lambda v: {"graphs": graph(v), "kind": "train"}, 2, "GraphBatch", ""),
    "named tuple": (lambda v: Pair(torch.tensor(v), torch.arange(3)), 3, "", ""),
    "dataclass": (lambda v: Sequences(torch.tensor(v), [1, 2, 3]), 3, "Sequences", ""),
    "texts": (lambda v: [f"text {x}" for x in v], 3, "", ""),
    "texts and labels": (lambda v: (tuple(map(str, v)), torch.arange(3)), 3, "", ""),
    "numbers": (lambda v: list(v), 3, "", ""),
    "arrays": (lambda v: (np.array(v), np.arange(3)), 3, "", ""),
    "graph": (graph, 2, "GraphBatch", ""),
    "list of objects": (lambda v: [Slotted(torch.tensor(x)) for x in v], 3, "Slotted", "Slotted"),
    "slots": (lambda v: Slotted(torch.tensor(v)), 3, "Slotted", "Slotted"),
    "plain object": (lambda v: SimpleNamespace(x=torch.tensor(v)), 3, "SimpleNamespace", "SimpleNamespace"),
    "object with a length": (Rows, 3, "Rows", "Rows"),
    "refers to itself": (linked, 3, "SimpleNamespace", "SimpleNamespace"),
    "packed": (lambda v: pack_sequence([torch.tensor(v), torch.tensor(v[:1])]), 2, "", ""),
    "nested": (lambda v: torch.nested.nested_tensor([torch.tensor(v), torch.tensor(v[:2])]), 2, "", ""),
    "jagged": (
        lambda v: torch.nested.nested_tensor([torch.tensor(v), torch.tensor(v[:2])], layout=torch.jagged),
        2, "", "",
    ),
    "sparse": (lambda v: torch.diag(torch.tensor(v)).to_sparse(), 3, "", ""),
    "compressed": (lambda v: torch.diag(torch.tensor(v)).to_sparse_csr(), 3, "", ""),
    "complex": (lambda v: torch.tensor(v).to(torch.complex64).conj(), 3, "", ""),
    "half": (lambda v: torch.tensor(v, dtype=torch.bfloat16), 3, "", ""),
    "set": (lambda v: {str(x) for x in v}, 3, "", ""),
    "nothing": (lambda v: None, None, "", ""),
    "silent": (lambda v: Silent(), None, "", ""),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*(nested tensors|[Ss]parse).*")
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_batch_tells(kind: str) -> None:
    make, samples, not_pinned, not_moved = KINDS[kind]
    one, again, other = make([1.0, 2.0, 3.0]), make([1.0, 2.0, 3.0]), make([1.0, 2.0, 4.0])
    assert samples_of(one) == samples
    assert (unreached(one, "pin_memory"), unreached(one, "to")) == (not_pinned, not_moved)
    hashed = kind not in ("nothing", "silent")
    assert bool(digest(one)) is hashed
    assert digests(one)[2] == ("Silent" if kind == "silent" else "")
    assert digest(one) == digest(again)
    if kind not in ("nothing", "silent", "scalar"):
        assert digest(one) != digest(other)
        assert equal(one, again)
        assert not equal(one, other)
    assert step_digests([one, again]) == step_digests([again, one])
    assert len(sample_keys(one)) in ({samples or 1, 1} if hashed else {0})
    assert size_of(one) >= 0
    assert all(shape_of(tensor) is not None for _, tensor in tensors(one))


def test_what_is_no_data_is_no_part_of_a_digest() -> None:
    """The loss that an object carries, and the weak reference of a store, differ from process to process."""
    with_loss, without = Rows([1.0, 2.0]), Rows([1.0, 2.0])
    del without.loss
    assert digest(with_loss) == digest(without)
    assert not digests(graph([1.0, 2.0, 3.0]))[2]


def test_whole_numbers_and_texts_are_what_augmentation_leaves_as_it_is() -> None:
    def batch(noise: float, label: int, name: str) -> Any:
        return SimpleNamespace(x=torch.full((2,), noise), y=torch.tensor([label]), name=name, weight=noise)

    _, order, _ = digests(batch(0.1, 3, "a"))
    assert order == digests(batch(0.2, 3, "a"))[1] != ""
    assert order != digests(batch(0.1, 4, "a"))[1]
    assert order != digests(batch(0.1, 3, "b"))[1]
    assert digests(torch.ones(3))[1] == ""


def test_micro_batches_with_texts_are_joined_where_these_are_the_same() -> None:
    def batch(first: float, text: str) -> Any:
        return {"x": torch.tensor([first, first + 1]), "source": text}

    halves = [batch(0.0, "a"), batch(2.0, "a")]
    assert step_digests(halves) == digests({"x": torch.arange(4.0), "source": "a"})
    assert len(step_digests([batch(0.0, "a"), batch(2.0, "b")])[0]) > len(step_digests(halves)[0])


def test_a_list_of_texts_has_a_key_for_each_of_them() -> None:
    assert len(set(sample_keys(["a", "b", "a"]))) == 2


@pytest.mark.parametrize("kind", [name for name, (_, _, _, not_moved) in KINDS.items() if not not_moved])
def test_what_is_said_to_be_moved_is(kind: str) -> None:
    if kind in ("jagged", "nested", "sparse", "compressed"):
        pytest.skip("torch has none of these without numbers")
    move = mover(torch.device("meta"))
    assert move is not None
    found = [
        tensor for path, tensor in tensors(move(KINDS[kind][0]([1.0, 2.0, 3.0]))) if kind != "packed" or path == "[0]"
    ]
    assert all(tensor.device.type == "meta" for tensor in found)


@pytest.mark.parametrize("more", [1, 3, 8])
@pytest.mark.parametrize("last", [0, 2], ids=["rows of several lengths", "all rows end alike"])
def test_padding_of_another_length_is_no_other_batch(last: int, more: int) -> None:
    """A plan that cut off padding was refused for other batches in every script."""
    ids = torch.tensor([[5, 6, 7, 2], [8, 9, 2, last], [3, 2, last, last]])
    ids[:, 3] = 2 if last else ids[:, 3]
    batch, longer = ({"ids": each, "mask": each != 0} for each in (ids, nn.functional.pad(ids, (0, more))))
    assert digest(batch) == digest(longer)
    other = longer["ids"].clone()
    other[1, 1] += 1
    assert digest(batch) != digest({**longer, "ids": other})
    assert digest(ids.float()) != digest(longer["ids"].float()), "fractions are no padded rows"


@pytest.mark.parametrize("size", [1, 4, 5, 64])
@pytest.mark.parametrize(
    "change", ["none", "another row", "another label", "another text", "another order", "another constant"]
)
def test_a_digest_of_samples_is_the_same_in_batches_of_any_size(size: int, change: str) -> None:
    """An evaluation in larger batches was one of other data, so that nothing was said of its metric."""

    def of(size: int, change: str = "none") -> str:
        generator = torch.Generator().manual_seed(0)
        rows, labels = torch.randn(12, 2000, generator=generator), torch.arange(12)
        texts, constant = [f"text {n}" for n in range(12)], {"temperature": 0.5}
        if change == "another row":
            rows[7] += 1
        elif change == "another label":
            labels[7] = 3
        elif change == "another text":
            texts[7] = "other"
        elif change == "another order":
            order = [0, 2, 1, *range(3, 12)]
            rows, labels, texts = rows[order], labels[order], [texts[n] for n in order]
        elif change == "another constant":
            constant = {"temperature": 0.6}
        ids = [torch.tensor([5, 6 + n, *[9] * (n % 3), 2]) for n in range(12)]
        digest = SampleDigest(10)
        for first in range(0, 12, size):
            part = slice(first, first + size)
            padded = nn.utils.rnn.pad_sequence(ids[part], batch_first=True, padding_value=2)
            batch = (rows[part], labels[part], texts[part], padded, np.asarray(labels[part]), constant)
            digest.update(batch, "given")
            digest.update(((rows[part],), {}), "called")
        return digest.hexdigest()

    assert (of(size) == of(3, change)) is (change == "none")


@pytest.mark.parametrize("size", [1, 2, 8])
def test_the_first_ids_of_rows_are_the_same_in_batches_of_any_size(size: int) -> None:
    """The last id of a row passes for padding in a batch of its own."""
    ids, found = torch.randint(50, (8, 12), generator=torch.Generator().manual_seed(0)), SampleDigest(8, 8)
    for first in range(0, 8, size):
        found.update(ids[first : first + size])
    whole = SampleDigest(8, 8)
    whole.update(nn.functional.pad(ids, (0, 3)))
    assert found.hexdigest() == whole.hexdigest()
    ids[5, 0] += 1
    other = SampleDigest(8, 8)
    other.update(ids)
    assert found.hexdigest() != other.hexdigest()


class Own(nn.Module):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch


class Chain(nn.Sequential):
    """Its forward is torch's."""


@pytest.mark.parametrize(("model", "here"), [(Own(), True), (Chain(Own()), False), (nn.Module(), False)])
def test_a_model_stands_where_its_own_lines_compute(model: nn.Module, here: bool) -> None:
    """Several models of one script are parts of a module that computes nothing: advice named a file of torch."""
    assert model_facts(model).file == (__file__ if here else None)
