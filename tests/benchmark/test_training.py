"""The assembled training does what a loop written by hand does, and says clearly what it cannot do."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from autoopt.benchmark.seeding import seed_everything
from autoopt.benchmark.training import Training
from autoopt.errors import WorkloadError
from autoopt.setup import Setup
from tests.benchmark.small_training import SAMPLES, closure, data, evaluate, losses, net, one_cycle, trained, workload


def test_the_same_losses_as_a_loop_written_by_hand() -> None:
    given = workload(clip_grad_norm=0.5)
    model, loader = copy.deepcopy(given.model), copy.deepcopy(given.train_data)
    training = Training(given, device="cpu")
    state = torch.get_rng_state()
    ours = losses(training)
    torch.set_rng_state(state)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    by_hand = []
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            by_hand.append(loss.item())
    assert ours == by_hand


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), F.cross_entropy, lambda out, y: F.cross_entropy(out, y)])
def test_a_criterion_is_a_closure(loss: Any) -> None:
    assert trained(loss=loss) == trained()


@pytest.mark.parametrize("own", [False, True])
def test_what_a_part_of_a_dataset_fetches_whole_is_told_of_the_dataset(own: bool) -> None:
    """torch's Subset asks for many samples at once whether its dataset can or not."""

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            return data()[index]

    if own:
        Rows.__getitems__ = lambda self, indices: [self[index] for index in indices]  # type: ignore[attr-defined]
    part = torch.utils.data.random_split(Rows(), [16, SAMPLES - 16])[0]
    training = Training(workload(train_data=DataLoader(part, batch_size=8)), device="cpu")
    assert training.facts("train.py:build").dataset.has_getitems == own


def test_a_dict_batch() -> None:
    class Dicts(Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            x, y = data()[index]
            return {"x": x, "y": y}

    loader = DataLoader(Dicts(), 8, shuffle=True, generator=torch.Generator().manual_seed(2))
    given = {"train_data": loader, "loss": lambda model, batch: F.cross_entropy(model(batch["x"]), batch["y"])}
    assert trained(**given) == trained()
    with pytest.raises(WorkloadError, match="this batch is a dict with keys 'x', 'y'"):
        trained(train_data=loader, loss=nn.CrossEntropyLoss())


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda model, batch: model(batch[0]), "a tensor of shape (8, 3); wanted: a scalar"),
        (lambda model, batch: closure(model, batch).item(), "of type float; wanted: a scalar tensor"),
        (lambda model, batch: closure(model, batch).detach(), "does not require a gradient"),
        (lambda model, batch: {"loss": closure(model, batch)}, "a dict with keys 'loss'"),
        (lambda model, batch: None, "the loss is None"),
    ],
)
def test_a_loss_that_cannot_be_learnt_from(loss: Any, said: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        trained(loss=loss)
    assert said in caught.value.message
    assert caught.value.hint


def test_accumulated_micro_batches_are_one_batch() -> None:
    plain = {"model": net(dropout=0.0, norm=False)}
    whole = trained(steps=10, **plain)
    plain = {"model": net(dropout=0.0, norm=False)}
    split = trained(Setup().with_batch(size=4, accumulation=2), steps=10, **plain)
    assert split == pytest.approx(whole, rel=1e-4)


def test_a_last_group_that_is_short_counts_for_what_it_holds() -> None:
    samples = data(11)
    seed_everything(4)
    one = net(0.0, norm=False)
    two = copy.deepcopy(one)
    common = {"optimizer": lambda params: torch.optim.SGD(params, lr=0.1), "train_data": samples}
    whole = trained(model=one, batch_size=11, steps=1, **common)
    setup = Setup().with_batch(size=4, accumulation=3)
    training = Training(workload(model=two, batch_size=11, **common), setup, device="cpu")
    split = [float(training.step(training.next()))]
    assert split == pytest.approx(whole, rel=1e-5)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_autocast_and_the_gradient_scaler(dtype: str) -> None:
    setup = Setup().with_precision(dtype=dtype, loss_scaling=dtype == "float16")
    seen: list[torch.dtype] = []

    def spying(loss: Any) -> Any:
        def spied(model: Any, batch: Any) -> torch.Tensor:
            output = model(batch[0])
            seen.append(output.dtype)
            return F.cross_entropy(output.float(), batch[1])

        return spied

    lower = trained(setup.with_loss(spying), clip_grad_norm=1.0)
    assert set(seen) == {getattr(torch, dtype)}
    assert lower == pytest.approx(trained(clip_grad_norm=1.0), rel=0.2)
    assert lower != trained(clip_grad_norm=1.0)


def test_evaluation_leaves_no_trace() -> None:
    def disturbing(model: Any, batches: Any) -> dict[str, float]:
        torch.rand(5)
        assert not torch.is_grad_enabled()
        assert not model.training
        return evaluate(model, batches)

    def run(often: bool) -> list[float]:
        given = workload(evaluate=disturbing)
        given.model[3].eval()
        training = Training(given, device="cpu")
        seen = []
        for _ in range(12):
            seen.append(float(training.step(training.next())))
            if often:
                training.evaluate()
        assert training.model.training
        assert not training.model[3].training  # type: ignore[index]
        return seen

    assert run(True) == run(False)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "evaluate returned NoneType; wanted: a dict"),
        (0.9, "evaluate returned float"),
        ({"acc": 1.0, "loss": 2.0}, "does not return the target's metric 'accuracy'; it returned 'acc', 'loss'"),
        ({"accuracy": "high"}, "evaluate returned 'accuracy' as str"),
    ],
)
def test_what_evaluate_must_return(returned: Any, said: str) -> None:
    training = Training(workload(evaluate=lambda model, batches: returned), device="cpu")
    with pytest.raises(WorkloadError) as caught:
        training.evaluate()
    assert said in caught.value.message


def test_metrics_are_plain_numbers() -> None:
    made = {"accuracy": torch.tensor(0.5), "matrix": torch.eye(2), "nan": math.nan}
    metrics = Training(workload(evaluate=lambda model, batches: made), device="cpu").evaluate()
    assert metrics["accuracy"] == 0.5
    assert "matrix" not in metrics
    assert math.isnan(metrics["nan"])


@pytest.mark.parametrize(
    "setup",
    [
        Setup(),
        Setup().with_batch(size=4, accumulation=2, learning_rate_factor=2.0, warmup_steps=9),
        Setup().with_precision(dtype="float16", loss_scaling=True),
        Setup().with_loader(num_workers=2),
    ],
    ids=["plain", "batch", "fp16", "workers"],
)
@pytest.mark.parametrize("at", [0, 4, 5, 8])
def test_state_goes_on_with_the_same_losses(setup: Setup, at: int, tmp_path: Any) -> None:
    changes: dict[str, Any] = {"scheduler": one_cycle, "train_data": DataLoader(data(), 8, shuffle=True)}
    whole = Training(workload(**changes), setup, device="cpu", seed=5)
    expected = losses(whole, 14)[at:]
    first = Training(workload(**changes), setup, device="cpu", seed=5)
    losses(first, at)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = Training(workload(**changes), setup, device="cpu", seed=5)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=False))
    assert losses(second, 14 - at) == expected
    assert second.steps == 14
    for training in (whole, first, second):
        training.close()


def test_transforms_are_applied_in_their_places() -> None:
    said: list[str] = []

    def noting(name: str) -> Any:
        def transform(given: Any) -> Any:
            said.append(name)
            return given

        return transform

    setup = Setup().with_dataset(noting("dataset")).with_loss(noting("loss")).with_model(noting("model"))
    setup = setup.with_optimizer(noting("optimizer")).with_step(noting("step"))
    assert trained(setup) == trained()
    assert said == ["dataset", "loss", "model", "optimizer", "step"]


def test_the_planned_run_ends_and_can_be_iterated() -> None:
    training = Training(workload(max_steps=None, max_epochs=2), device="cpu")
    assert len(training) == training.total_steps == 10
    assert training.evaluate_every == 5
    assert len([training.step(batches) for batches in training]) == 10
    larger = Training(workload(), Setup().with_batch(size=20), device="cpu")
    assert (larger.total_steps, larger.evaluate_every, larger.steps_per_epoch) == (6, 2, 2)


def test_a_pretrained_model_in_eval_mode_is_trained() -> None:
    model = net()
    model.eval()
    assert Training(workload(model=model), device="cpu").model.training


def test_stage_times_sum_to_the_whole() -> None:
    training = Training(workload(), device="cpu")
    training.clock.start()
    losses(training, 10)
    training.evaluate()
    lap = training.clock.stop()
    assert sum(lap.stages.values()) == pytest.approx(lap.seconds, abs=1e-9)
    assert len(lap.steps) == 10
    assert all(lap.stages[stage] > 0 for stage in ("data", "forward", "backward", "optimizer", "evaluate"))


def test_an_unknown_flag() -> None:
    with pytest.raises(ValueError, match="there is no flag 'theads'"):
        Training(workload(), Setup().with_flags(theads=1), device="cpu")


class Counting(Dataset[Any]):
    """Counts what is read of it; ``drawn``: each sample draws a random number."""

    def __init__(self, drawn: bool) -> None:
        self.samples, self.drawn, self.read = data(), drawn, 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: Any) -> Any:
        self.read += 1
        x, y = self.samples[index]
        return (x + torch.rand(1), y) if self.drawn else (x, y)


@pytest.mark.parametrize(("drawn", "read"), [(False, 6), (True, 3 + 24)])
def test_samples_that_draw_nothing_are_passed_over_unread(drawn: bool, read: int) -> None:
    """A look at two samples under three seeds tells; of one that draws, the first tells."""
    first = Training(workload(train_data=DataLoader(Counting(drawn), 8, shuffle=True)), device="cpu", seed=5)
    losses(first, 3)
    state = copy.deepcopy(first.state_dict())
    expected = losses(first, 6)
    counting = Counting(drawn)
    second = Training(workload(train_data=DataLoader(counting, 8, shuffle=True)), device="cpu", seed=5)
    counting.read = 0
    second.load_state_dict(state)
    assert counting.read == read
    assert losses(second, 6) == expected, "the rest of this epoch, and the next one whole"
