"""Sequences: padding is measured, cut off, grouped away or packed, and the training stays the same."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autoopt.benchmark.contents import padding_share
from autoopt.benchmark.loader import reorder
from autoopt.benchmark.training import Training
from autoopt.registry import load_strategies
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_case
from autoopt.workload import Workload
from autoopt_strategies.input.packing import pack_sequences, packable, packed, placed
from autoopt_strategies.input.sequences import GroupByLength, Grouped, cut, group_by_length, needed, size_of
from autoopt_strategies.training.length_grouping import padding_shares
from tests.strategies.stand_ins import in_trial, promised, small_workload

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


def to_longest(samples: Any) -> Any:
    rows = nn.utils.rnn.pad_sequence([ids for ids, _ in samples], batch_first=True)
    return rows, torch.tensor([label for _, label in samples])


def workload(masked: bool = True, **data: Any) -> Workload:
    dataset = Sentences(**data)
    given: Any = dataset if dataset.width else DataLoader(dataset, 8, shuffle=True, collate_fn=to_longest)
    how: dict[str, Any] = {"batch_size": 8, "loss": loss} if dataset.width else {"batch_size": None}
    return small_workload(Reader(masked), given, **how)


def losses(given: Workload, setup: Setup, steps: int = 12) -> tuple[list[float], int]:
    """Of each step, and the samples of all of them."""
    training = Training(given, setup, device="cpu", seed=3)
    try:
        return [float(training.step(training.next())) for _ in range(steps)], training.samples
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
    (usual, _), (trimmed, _) = losses(workload(), Setup()), losses(workload(), trim)
    assert trimmed == pytest.approx(usual, rel=1e-5)
    training = Training(workload(), trim, device="cpu")
    assert training.next()[0]["ids"].shape[1] <= 40


def test_it_is_tried_where_the_model_leaves_padding_out() -> None:
    strategy = REGISTRY["trim_padding"]
    found = strategy.inspect(in_trial(workload()))
    assert set(found["widths"]) == {WIDTH}
    assert max(found["needed"]) <= 40
    assert found["same"] is True
    assert found["ratio"] > 0
    case = sample_case(inspected={"trim_padding": {**found, "ratio": 0.6}})
    assert strategy.applies(case)
    predicted = promised(strategy, case, {"multiple": 8})
    assert predicted.value > 1.0
    other = strategy.inspect(in_trial(workload(masked=False)))
    assert other["same"] is False
    assert "computes with the padding" in strategy.applies(sample_case(inspected={"trim_padding": other})).reason
    longest = strategy.inspect(in_trial(workload(width=None)))
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
    assert share < 0.5 * usual


def test_grouping_is_predicted_from_the_lengths_of_samples() -> None:
    strategy = REGISTRY["length_grouping"]
    found = strategy.inspect(in_trial(workload(width=None)))
    assert found["follows"] is True
    assert 0.2 < found["now"] < 0.6
    assert found["grouped"]["50"] < 0.5 * found["now"]
    case = sample_case(inspected={"length_grouping": found})
    assert strategy.applies(case)
    predicted = promised(strategy, case, {"pool": 50})
    assert predicted.high > 1.1
    fixed = strategy.inspect(in_trial(workload()))
    assert fixed["follows"] is False
    alone = sample_case(inspected={"length_grouping": fixed})
    assert "one width" in strategy.applies(alone).reason
    refused = sample_case(inspected={"length_grouping": fixed, "trim_padding": {"widths": [64], "same": False}})
    assert "one width" in strategy.applies(refused).reason
    open_ = sample_case(inspected={"length_grouping": fixed, "trim_padding": {"widths": [64], "same": None}})
    assert strategy.applies(open_), "a script's output that is no loss leaves it to the probes"
    both = sample_case(inspected={"length_grouping": fixed, "trim_padding": {"same": True}})
    assert strategy.applies(both)
    assert [change.strategy for change in strategy.companions(both, {"pool": 50})] == ["trim_padding"]
    assert padding_shares([7] * 64, 8) is None


def test_what_makes_its_own_batches_is_not_reordered() -> None:
    given = workload(width=None)
    own = DataLoader(Sentences(None), batch_sampler=[[0, 1], [2, 3]], collate_fn=to_longest)
    with pytest.raises(ValueError, match="in a way of its own"):
        Training(dataclasses.replace(given, train_data=own), Setup().with_sampler(GroupByLength(4)), device="cpu")


def test_a_sample_is_as_long_as_what_it_holds() -> None:
    assert size_of((torch.zeros(5), 1)) == 6
    assert size_of({"input_ids": [1, 2, 3], "attention_mask": [1, 1, 0]}) == 2
    assert size_of(torch.tensor([5, 6, 7, 0, 0, 0, 0, 0])) == 4, "what it ends with may be padding"
    assert size_of(torch.zeros(8, dtype=torch.long)) == 1
    assert size_of(torch.zeros(8)) == 8


def test_samples_that_a_dataset_pads_are_grouped_by_what_they_hold() -> None:
    """Without a mask all of them counted as equally long, and nothing was offered."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 30, (96,), generator=draw).tolist()
    rows = torch.stack([torch.tensor([7] * length + [0] * (240 - length)) for length in lengths])
    strategy = REGISTRY["length_grouping"]
    found = strategy.inspect(in_trial(dataclasses.replace(workload(), train_data=TensorDataset(rows))))
    assert found["follows"] is False
    assert found["grouped"]["50"] < found["now"]
    assert found["now"] < 0.9, "padding that all batches have is what trimming saves"


def test_a_patch_groups_as_the_plan_does() -> None:
    rows = torch.stack([torch.tensor([7] * length + [0] * (40 - length)) for length in range(1, 33)])

    def order(group: bool) -> list[int]:
        made = DataLoader(TensorDataset(rows), 4, shuffle=True, generator=torch.Generator().manual_seed(1))
        if group:
            group_by_length(made, pool=4)
        else:
            reorder(made, GroupByLength(4))
        return [int((row != 0).sum()) for (batch,) in made for row in batch]

    assert order(True) == order(False)
    assert sorted(order(True)) == list(range(1, 33))
    assert size_of({"text": "abcd", "label": 0}) == 5


# Packing: loss and gradients are those of the padded batch, for models that keep sequences apart.

STRATEGY = REGISTRY["packing"]


class Texts(torch.utils.data.Dataset[Any]):
    """Token ids of 3 to 30 places, padded to 32 at the right or the left; padding has a label or has none."""

    def __init__(self, left: bool = False, ignored: bool = True, same: bool = False) -> None:
        draw = torch.Generator().manual_seed(0)
        self.lengths = torch.randint(3, 16, (32,), generator=draw).tolist()
        self.lengths = [32] * 32 if same else [30, *self.lengths[1:]]
        self.rows = [torch.randint(1, 90, (length,), generator=draw) for length in self.lengths]
        self.left, self.ignored = left, ignored

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        ids, missing = self.rows[index], 32 - len(self.rows[index])
        sides = (missing, 0) if self.left else (0, missing)
        pad = partial(torch.nn.functional.pad, pad=sides)
        return {
            "input_ids": pad(ids), "attention_mask": pad(torch.ones_like(ids)),
            "labels": pad(ids, value=-100 if self.ignored else 0),
        }  # fmt: skip


def own_loss(model: Any, batch: Any) -> torch.Tensor:
    return model(**batch).loss  # type: ignore[no-any-return]


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=90, num_key_value_heads=2, max_position_embeddings=64, **sizes)
    return transformers.LlamaForCausalLM(config)


def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=90, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config)


def texts(model: Any, **data: Any) -> Workload:
    return small_workload(model, Texts(**data), batch_size=8, loss=own_loss, max_steps=8)


def test_rows_hold_each_sequence_once_and_no_more_than_fits() -> None:
    lengths = [5, 9, 0, 3, 3, 1, 8]
    rows = placed(lengths, 9)
    assert sorted(member for row in rows for member in row) == [0, 1, 3, 4, 5, 6]
    assert all(sum(lengths[member] for member in row) <= 9 for row in rows)
    assert len(rows) == 4


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_real_places_are_laid_end_to_end(left: bool) -> None:
    data = Texts(left)
    batch = torch.utils.data.default_collate([data[index] for index in range(8)])
    made = packed(batch, 8)
    ids, labels, positions = made["input_ids"], made["labels"], made["position_ids"]
    assert ids.shape[0] < 8
    assert ids.shape[1] % 8 == 0
    # as many labels as a causal model has in the padded batch, where each sequence's first predicts nothing
    assert int((labels != -100).sum()) == sum(length - 1 for length in data.lengths[:8])
    assert torch.equal(ids[labels != -100], labels[labels != -100])
    begins = (positions == 0).nonzero().tolist()
    for row, place in begins:
        sequence = ids[row, place : place + 3].tolist()
        rest = bool((labels[row, place:] == -100).all())  # of the row, which no sequence fills
        assert rest or any(kept[:3].tolist() == sequence for kept in data.rows)


@pytest.mark.parametrize("model", [llama, gpt2])
def test_a_causal_model_of_transformers_has_the_same_loss_and_gradients(model: Any) -> None:
    found = STRATEGY.inspect(in_trial(texts(model())))
    assert found["same"] is True, found
    assert found["left"] < 0.6
    assert found["ratio"] > 0
    assert STRATEGY.applies(sample_case(inspected={"packing": found}))


def test_training_goes_the_same_way_and_counts_the_same_samples() -> None:
    usual, samples = losses(texts(llama()), Setup(), 6)
    with_packing, counted = losses(texts(llama()), Setup().with_model(pack_sequences), 6)
    assert with_packing == pytest.approx(usual, rel=1e-4)
    assert samples == counted == 48


def test_evaluation_is_left_as_it_is() -> None:
    model, batch = pack_sequences(llama()), Texts()[0]
    whole = {name: value.unsqueeze(0) for name, value in batch.items()}
    assert model.eval()(**whole).logits.shape[:2] == (1, 32)
    assert model.train()(**whole).logits.shape[:2] == (1, 32 if sum(batch["attention_mask"]) > 24 else 24)


def test_padding_that_counts_in_the_loss_is_no_padding() -> None:
    found = STRATEGY.inspect(in_trial(texts(llama(), ignored=False)))
    assert found["same"] is False
    assert "others when sequences are packed" in STRATEGY.applies(sample_case(inspected={"packing": found})).reason


def test_a_model_that_does_not_keep_sequences_apart_is_left_alone() -> None:
    class Mixing(type(llama())):  # type: ignore[misc]
        """Looks at all that is left of a place, whatever the positions say."""

        def forward(self, **given: Any) -> Any:
            given.pop("position_ids", None)
            return super().forward(**given)

    model = llama()
    model.__class__ = Mixing
    assert STRATEGY.inspect(in_trial(texts(model)))["same"] is False


def test_other_batches_and_models_are_told_apart_cheaply() -> None:
    assert STRATEGY.inspect(in_trial(texts(llama(), same=True))) == {"left": 1.0}
    assert not packable({"input_ids": torch.ones(2, 3), "labels": torch.ones(2, 3)})
    assert not packable([torch.ones(2, 3)])
    other = STRATEGY.inspect(in_trial(texts(torch.nn.Linear(2, 2))))
    assert "none of transformers'" in other["reason"]
