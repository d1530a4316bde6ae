"""Packing: loss and gradients are those of the padded batch, for models that keep sequences apart."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from autoopt.benchmark.training import Training
from autoopt.benchmark.trial_context import TrialContext
from autoopt.registry import load_strategies
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_case
from autoopt.trial.protocol import TrialSpec
from autoopt.workload import Workload
from autoopt_strategies.input.packing import PackSequences, packable, packed, placed

transformers = pytest.importorskip("transformers")
REGISTRY = load_strategies()
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


def loss(model: Any, batch: Any) -> torch.Tensor:
    return model(**batch).loss  # type: ignore[no-any-return]


def llama() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=90,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )


def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=90, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config)


def workload(model: Any, **data: Any) -> Workload:
    optimizer = partial(torch.optim.SGD, lr=0.1)
    return Workload(model=model, train_data=Texts(**data), batch_size=8, loss=loss, optimizer=optimizer, max_steps=8)


def inspected(given: Workload) -> Any:
    spec = TrialSpec(workload="tests:packing", device="cpu")
    return STRATEGY.inspect(TrialContext(spec, REGISTRY, workload=given))


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
    found = inspected(workload(model()))
    assert found["same"] is True, found
    assert found["left"] < 0.6
    assert found["ratio"] > 0
    assert STRATEGY.applies(sample_case(inspected={"packing": found}))


def test_training_goes_the_same_way_and_counts_the_same_samples() -> None:
    def losses(setup: Setup) -> tuple[list[float], int]:
        model = llama()
        training = Training(workload(model), setup, device="cpu", seed=3)
        try:
            return [float(training.step(training.next())) for _ in range(6)], training.samples
        finally:
            training.close()

    (usual, samples), (with_packing, counted) = losses(Setup()), losses(Setup().with_model(PackSequences()))
    assert with_packing == pytest.approx(usual, rel=1e-4)
    assert samples == counted == 48


def test_evaluation_is_left_as_it_is() -> None:
    model, batch = PackSequences()(llama()), Texts()[0]
    whole = {name: value.unsqueeze(0) for name, value in batch.items()}
    assert model.eval()(**whole).logits.shape[:2] == (1, 32)
    assert model.train()(**whole).logits.shape[:2] == (1, 32 if sum(batch["attention_mask"]) > 24 else 24)


def test_padding_that_counts_in_the_loss_is_no_padding() -> None:
    found = inspected(workload(llama(), ignored=False))
    assert found["same"] is False
    assert "others when sequences are packed" in STRATEGY.applies(sample_case(inspected={"packing": found})).reason


def test_a_model_that_does_not_keep_sequences_apart_is_left_alone() -> None:
    class Mixing(transformers.LlamaForCausalLM):  # type: ignore[misc, name-defined]
        """Looks at all that is left of a place, whatever the positions say."""

        def forward(self, **given: Any) -> Any:
            given.pop("position_ids", None)
            return super().forward(**given)

    model = llama()
    model.__class__ = Mixing
    assert inspected(workload(model))["same"] is False


def test_other_batches_and_models_are_told_apart_cheaply() -> None:
    assert inspected(workload(llama(), same=True)) == {"left": 1.0}
    assert not packable({"input_ids": torch.ones(2, 3), "labels": torch.ones(2, 3)})
    assert not packable([torch.ones(2, 3)])
    assert (
        "none of transformers'"
        in inspected(
            Workload(
                model=torch.nn.Linear(2, 2),
                train_data=Texts(),
                batch_size=4,
                loss=loss,
                optimizer=partial(torch.optim.SGD, lr=0.1),
                max_steps=4,
            )
        )["reason"]
    )
