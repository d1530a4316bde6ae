"""The assembled training does what a loop written by hand does, and says clearly what it cannot do."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autoopt.benchmark.schedule import multiplier
from autoopt.benchmark.seeding import seed_everything
from autoopt.benchmark.training import Training
from autoopt.errors import WorkloadError
from autoopt.setup import Setup
from autoopt.workload import Target, Workload

FEATURES, CLASSES, SAMPLES = 6, 3, 40


def data(samples: int = SAMPLES, seed: int = 1) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, FEATURES, generator=generator)
    return TensorDataset(x, x.argmax(1) % CLASSES)


def net(dropout: float = 0.5, norm: bool = True) -> nn.Module:
    layers = [nn.Linear(FEATURES, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(8, CLASSES))


def closure(model: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def evaluate(model: Any, batches: Any) -> dict[str, float]:
    hits = total = 0
    for x, y in batches:
        hits += int((model(x).argmax(1) == y).sum())
        total += len(y)
    return {"accuracy": hits / total}


def workload(**changes: Any) -> Workload:
    seed_everything(0)
    fields: dict[str, Any] = {
        "model": net(),
        "train_data": DataLoader(data(), 8, shuffle=True, generator=torch.Generator().manual_seed(2)),
        "loss": closure,
        "optimizer": lambda params: torch.optim.AdamW(params, lr=0.01),
        "valid_data": data(20, seed=3),
        "evaluate": evaluate,
        "target": Target("accuracy", at_least=0.9),
        "max_steps": 15,
    }
    return Workload(**{**fields, **changes})


def losses(training: Training, steps: int = 15) -> list[float]:
    return [float(training.step(training.next())) for _ in range(steps)]


def trained(setup: Setup | None = None, steps: int = 15, **changes: Any) -> list[float]:
    return losses(Training(workload(**changes), setup, device="cpu"), steps)


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


def test_twice_the_same() -> None:
    assert trained() == trained()
    assert trained() != [*trained(optimizer=lambda params: torch.optim.AdamW(params, lr=0.02))]


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), F.cross_entropy, lambda out, y: F.cross_entropy(out, y)])
def test_a_criterion_is_a_closure(loss: Any) -> None:
    assert trained(loss=loss) == trained()


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


def test_parameter_groups_of_an_instance_are_kept() -> None:
    model = net()
    first, last = list(model[0].parameters()), list(model[4].parameters())  # type: ignore[index]
    groups = [{"params": first, "lr": 0.1, "weight_decay": 0.3}, {"params": last, "betas": (0.5, 0.6)}]
    given = torch.optim.AdamW(groups, lr=0.02, amsgrad=True)
    training = Training(workload(model=model, optimizer=given), device="cpu")
    made = training.optimizer.param_groups
    assert [group["lr"] for group in made] == [0.1, 0.02]
    assert (made[0]["weight_decay"], made[1]["betas"], made[0]["amsgrad"]) == (0.3, (0.5, 0.6), True)
    assert made[0]["params"] == first
    assert not training.optimizer.state
    losses(training, 2)


def test_parameter_groups_survive_another_model() -> None:
    def replaced(model: nn.Module) -> nn.Module:
        fresh = nn.Linear(FEATURES, 8)
        fresh.load_state_dict(model[0].state_dict())  # type: ignore[index]
        model[0] = fresh  # type: ignore[index]
        model[0].register_parameter("extra", nn.Parameter(torch.zeros(1)))  # type: ignore[index]
        return model

    model = net()
    groups = [{"params": model[4].parameters(), "lr": 0.5}, {"params": model[0].parameters(), "lr": 0.1}]  # type: ignore[index]
    optimizer = torch.optim.SGD(groups, lr=0.2, momentum=0.9)
    training = Training(workload(model=model, optimizer=optimizer), Setup().with_model(replaced), device="cpu")
    made = training.optimizer.param_groups
    assert [len(group["params"]) for group in made] == [2, 3]
    assert made[1]["params"][0] is training.model[0].weight  # type: ignore[index]
    assert training.model[0].extra is made[1]["params"][2]  # type: ignore[index]
    losses(training, 2)


class Peculiar(torch.optim.SGD):
    def __init__(self, params: Any, owner: str) -> None:
        super().__init__(params, lr=0.1)
        self.owner = owner


def test_an_optimizer_with_a_constructor_of_its_own() -> None:
    model = net()
    training = Training(workload(model=model, optimizer=Peculiar(model.parameters(), "me")), device="cpu")
    assert training.optimizer.owner == "me"  # type: ignore[attr-defined]
    losses(training, 2)


def test_optimizers_that_cannot_be_used() -> None:
    with pytest.raises(WorkloadError, match="LBFGS.* needs a closure"):
        trained(optimizer=lambda params: torch.optim.LBFGS(params))
    with pytest.raises(WorkloadError, match=r"optimizer\(params\) returned list"):
        trained(optimizer=list)


def rates(setup: Setup, steps: int, **changes: Any) -> list[float]:
    training = Training(workload(**changes), setup, device="cpu")
    seen = []
    for _ in range(steps):
        batches = training.next()
        seen.append(training.optimizer.param_groups[0]["lr"])
        training.step(batches)
    return seen


def one_cycle(optimizer: Any, total_steps: int) -> Any:
    return OneCycleLR(optimizer, max_lr=0.1, total_steps=total_steps)


@pytest.mark.parametrize(
    "scheduler", [one_cycle, lambda o, n: StepLR(o, 3, 0.5), lambda o, n: LambdaLR(o, lambda k: 1 / (1 + k))]
)
def test_another_batch_keeps_the_curve_over_samples(scheduler: Any) -> None:
    plain = rates(Setup(), 15, scheduler=scheduler)
    half = rates(Setup().with_batch(size=4), 30, scheduler=scheduler)
    assert half[::2] == pytest.approx(plain)
    double = rates(Setup().with_batch(accumulation=5), 3, scheduler=scheduler)
    assert double == pytest.approx(plain[::5])


def test_the_factor_multiplies_whatever_the_scheduler_says() -> None:
    plain = rates(Setup(), 15, scheduler=one_cycle)
    times = rates(Setup().with_batch(learning_rate_factor=3.0), 15, scheduler=one_cycle)
    assert times == pytest.approx([3 * rate for rate in plain])
    without = rates(Setup().with_batch(learning_rate_factor=4.0, warmup_steps=4), 6)
    assert without == pytest.approx([0.01 * factor for factor in (1.0, 1.75, 2.5, 3.25, 4.0, 4.0)])


def test_warm_up_is_linear_and_ends() -> None:
    assert [multiplier(step, 1.0, 3) for step in range(4)] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert multiplier(0, 8.0, 10) == pytest.approx(1.0)
    assert multiplier(10, 8.0, 10) == 8.0


def test_a_schedule_that_is_over_stays_where_it_ended() -> None:
    assert len(rates(Setup(), 20, scheduler=one_cycle)) == 20


def test_a_scheduler_per_epoch_and_one_by_the_metric() -> None:
    seen = rates(Setup(), 15, scheduler=lambda o, n: StepLR(o, 1, 0.1), scheduler_interval="epoch")
    assert seen == pytest.approx([0.01] * 5 + [0.001] * 5 + [0.0001] * 5)
    plateau = workload(scheduler=lambda o, n: ReduceLROnPlateau(o, mode="max", patience=0))
    training = Training(plateau, device="cpu")
    losses(training, 3)
    for _ in range(3):
        training.evaluate()
    assert training.optimizer.param_groups[0]["lr"] < 0.01


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
