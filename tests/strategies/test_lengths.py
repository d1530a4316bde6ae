"""Sequences: their padding is measured, cut off where it is padding in every row, and made less by grouping."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from autoopt.benchmark.contents import padding_share
from autoopt.benchmark.training import Training
from autoopt.benchmark.trial_context import TrialContext
from autoopt.registry import load_strategies
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_case
from autoopt.trial.protocol import TrialSpec
from autoopt.workload import Workload
from autoopt_strategies.input.sequences import Grouped, cut, needed, size_of
from autoopt_strategies.training.length_grouping import GroupByLength, padding_shares

REGISTRY = load_strategies()
WIDTH = 64


class Sentences(Dataset[Any]):
    """Ids of 3 to 40 tokens, padded to 64 by the dataset or not at all."""

    def __init__(self, width: int | None = WIDTH, mask: bool = True) -> None:
        self.width, self.mask = width, mask
        draw = torch.Generator().manual_seed(0)
        self.lengths = torch.randint(3, 41, (96,), generator=draw).tolist()
        self.rows = [torch.randint(1, 50, (length,), generator=draw) for length in self.lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        ids = self.rows[index]
        label = int(ids.sum() % 2)
        if self.width is None:
            return ids, label
        padded = F.pad(ids, (0, self.width - len(ids)))
        return {"ids": padded, "label": label} | ({"attention_mask": (padded > 0).long()} if self.mask else {})


class Reader(nn.Module):
    """The mean of embeddings, of real tokens or of all."""

    def __init__(self, masked: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head, self.masked = nn.Embedding(50, 8), nn.Linear(8, 2), masked

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        real = (ids > 0).float().unsqueeze(-1) if self.masked else torch.ones(*ids.shape, 1)
        return self.head((self.table(ids) * real).sum(1) / real.sum(1))  # type: ignore[no-any-return]


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch["ids"]), batch["label"])


def pair_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def to_longest(samples: Any) -> Any:
    rows = nn.utils.rnn.pad_sequence([ids for ids, _ in samples], batch_first=True)
    return rows, torch.tensor([label for _, label in samples])


def workload(masked: bool = True, **data: Any) -> Workload:
    dataset = Sentences(**data)
    given: Any = dataset if dataset.width else DataLoader(dataset, 8, shuffle=True, collate_fn=to_longest)
    return Workload(
        model=Reader(masked), train_data=given, batch_size=8 if dataset.width else None,
        loss=loss if dataset.width else pair_loss, optimizer=partial(torch.optim.SGD, lr=0.1), max_steps=24,
    )  # fmt: skip


def live(given: Workload) -> TrialContext:
    return TrialContext(TrialSpec(workload="tests:lengths", device="cpu"), REGISTRY, workload=given)


def losses(given: Workload, setup: Setup, steps: int = 12) -> list[float]:
    training = Training(given, setup, device="cpu", seed=3)
    try:
        return [float(training.step(training.next())) for _ in range(steps)]
    finally:
        training.close()


def test_padding_is_what_the_mask_or_the_ends_of_rows_say() -> None:
    mask = torch.tensor([[1] * 10, [1] * 4 + [0] * 6])
    assert padding_share([{"attention_mask": mask, "ids": mask}]) == pytest.approx(0.3)
    ids = torch.tensor([[*range(1, 11)], [5, 6, 7, 8, *[0] * 6], [5, 6, 7, 8, 9, 9, *[0] * 4]])
    assert padding_share([[ids, torch.zeros(3)]]) == pytest.approx(10 / 30)
    assert padding_share([torch.randn(4, 3, 32, 32)]) is None
    assert padding_share([torch.randint(0, 1000, (4, 16), generator=torch.Generator().manual_seed(1))]) == 0.0


def test_columns_that_no_row_needs_are_cut_off() -> None:
    mask = torch.zeros(3, 32, dtype=torch.long)
    mask[0, :5], mask[1, :11], mask[2, :1] = 1, 1, 1
    batch = {"attention_mask": mask, "square": torch.ones(3, 32, 32), "label": torch.arange(3), "name": ["a", "b", "c"]}
    assert needed(batch) == (11, 32)
    made = cut(batch, 8)
    assert made["attention_mask"].shape == (3, 16)
    assert made["square"].shape == (3, 16, 16)
    assert made["label"] is not None
    assert made["name"] == ["a", "b", "c"]
    assert cut(batch, 64)["attention_mask"].shape == (3, 32), "a multiple beyond the width leaves the batch"
    labels = torch.full((2, 16), -100)
    labels[:, :9] = 2  # an end of sequence whose number is also the padding's is told by the labels
    ids = torch.tensor([[4] * 8 + [0] * 8, [4] * 3 + [0] * 13])
    assert [tuple(part.shape) for part in cut([ids, labels])] == [(2, 9), (2, 9)]


def test_training_without_padding_has_the_same_losses() -> None:
    trim = REGISTRY["trim_padding"].apply(Setup(), {"multiple": 8})
    usual, trimmed = losses(workload(), Setup()), losses(workload(), trim)
    assert trimmed == pytest.approx(usual, rel=1e-5)
    training = Training(workload(), trim, device="cpu")
    assert training.next()[0]["ids"].shape[1] <= 40


def test_it_is_tried_where_the_model_leaves_padding_out() -> None:
    strategy = REGISTRY["trim_padding"]
    found = strategy.inspect(live(workload()))
    assert set(found["widths"]) == {WIDTH}
    assert max(found["needed"]) <= 40
    assert found["same"] is True
    assert found["ratio"] > 0
    case = sample_case(inspected={"trim_padding": {**found, "ratio": 0.6}})
    assert strategy.applies(case)
    predicted = strategy.predict(case, {"multiple": 8})
    assert predicted is not None
    assert predicted.value > 1.0
    other = strategy.inspect(live(workload(masked=False)))
    assert other["same"] is False
    assert "computes with the padding" in strategy.applies(sample_case(inspected={"trim_padding": other})).reason
    longest = strategy.inspect(live(workload(width=None)))
    assert "already" in strategy.applies(sample_case(inspected={"trim_padding": longest})).reason


def test_what_is_compiled_gets_few_widths() -> None:
    strategy = REGISTRY["trim_padding"]
    found = {"widths": [512, 512], "needed": [40, 300], "same": True, "ratio": 0.5}
    case = sample_case(inspected={"trim_padding": found})
    assert next(iter(strategy.settings(case))) == {"multiple": 8}
    compiled = dataclasses.replace(case, setup=Setup().with_compile())
    assert list(strategy.settings(compiled)) == [{"multiple": 128}]


@pytest.mark.parametrize(("count", "size", "pool"), [(96, 8, 4), (45, 8, 2), (7, 8, 50), (33, 16, 1)])
def test_groups_are_the_same_samples_with_less_padding(count: int, size: int, pool: int) -> None:
    draw = torch.Generator().manual_seed(count)
    lengths = tuple(torch.randint(1, 100, (count,), generator=draw).tolist())
    order = torch.randperm(count, generator=draw).tolist()
    grouped = Grouped(order, lengths, size, pool)
    found = list(grouped)
    assert sorted(found) == sorted(order)
    assert found == list(grouped), "no number is drawn"
    assert len(grouped) == count

    def places(indices: list[int]) -> int:
        parts = [indices[start : start + size] for start in range(0, count, size)]
        return sum(max(lengths[i] for i in part) * len(part) for part in parts)

    assert places(found) <= places(order)


def test_an_epoch_in_groups_reads_each_sample_once() -> None:
    setup = Setup().with_sampler(GroupByLength(4))
    training = Training(workload(width=None), setup, device="cpu", seed=3)
    batches = [training.next()[0][0] for _ in range(12)]
    data = Sentences(None)
    wanted = sorted(int(row.sum()) for row in data.rows)
    assert sorted(int(row.sum()) for batch in batches for row in batch) == wanted
    share = padding_share([[batch, batch] for batch in batches])
    plain = Training(workload(width=None), Setup(), device="cpu", seed=3)
    usual = padding_share([[plain.next()[0][0]] * 2 for _ in range(12)])
    assert share is not None
    assert usual is not None
    assert share < 0.5 * usual


def test_grouping_is_predicted_from_the_lengths_of_samples() -> None:
    strategy = REGISTRY["length_grouping"]
    found = strategy.inspect(live(workload(width=None)))
    assert found["follows"] is True
    assert 0.2 < found["now"] < 0.6
    assert found["grouped"]["50"] < 0.5 * found["now"]
    case = sample_case(inspected={"length_grouping": found})
    assert strategy.applies(case)
    predicted = strategy.predict(case, {"pool": 50})
    assert predicted is not None
    assert predicted.high > 1.1
    fixed = strategy.inspect(live(workload()))
    assert fixed["follows"] is False
    alone = sample_case(inspected={"length_grouping": fixed})
    assert "one width" in strategy.applies(alone).reason
    both = sample_case(inspected={"length_grouping": fixed, "trim_padding": {"same": True}})
    assert strategy.applies(both)
    assert [change.strategy for change in strategy.companions(both, {"pool": 50})] == ["trim_padding"]
    assert padding_shares([7] * 64, 8) is None


def test_what_makes_its_own_batches_is_not_reordered() -> None:
    given = workload(width=None)
    assert isinstance(given.train_data, DataLoader)
    own = DataLoader(Sentences(None), batch_sampler=[[0, 1], [2, 3]], collate_fn=to_longest)
    with pytest.raises(ValueError, match="in a way of its own"):
        Training(dataclasses.replace(given, train_data=own), Setup().with_sampler(GroupByLength(4)), device="cpu")


def test_a_sample_is_as_long_as_what_it_holds() -> None:
    assert size_of((torch.zeros(5), 1)) == 6
    assert size_of({"input_ids": [1, 2, 3], "attention_mask": [1, 1, 0]}) == 2
    assert size_of({"text": "abcd", "label": 0}) == 5
