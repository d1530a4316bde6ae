"""Strategies that change the model: what is trained, what stays, and where they do not apply."""

from __future__ import annotations

import copy
import textwrap
from collections import OrderedDict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from autoopt import Target, Workload
from autoopt.benchmark.training import Training
from autoopt.records import Change
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_case, tiny_workload
from autoopt_model.distillation import Distillation, TowardsTeacher, with_teacher
from autoopt_model.fp8 import Fp8, InFloat8, large_layers
from autoopt_model.freezing import Freezing, layers_of
from autoopt_model.lora import Lora, adaptable
from autoopt_model.progressive_resizing import ProgressiveResizing, setting_of
from autoopt_model.pruning import Pruning, inputs_of, narrowed_copy
from autoopt_model.quantization_aware import QuantizationAware
from scripted import PLAIN, changed_lines, patched


class Attention(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        out: torch.Tensor = self.head((x + self.down(F.gelu(self.up(x)))).mean(1))
        return out


def cross_entropy(model: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def sequences() -> Workload:
    torch.manual_seed(0)
    x = torch.randn(64, 5, 16)
    return Workload(
        model=Attention(), train_data=TensorDataset(x, (x.mean((1, 2)) > 0).long()), batch_size=16, loss=cross_entropy,
        optimizer=partial(torch.optim.AdamW, lr=1e-2), max_steps=8,
    )  # fmt: skip


def trained(workload: Workload, setup: Setup, steps: int = 3) -> tuple[Training, dict[str, torch.Tensor]]:
    """A training after some steps, and its parameters before them."""
    training = Training(workload, setup, device="cpu", seed=0)
    before = {name: p.detach().clone() for name, p in training.model.named_parameters()}
    for _ in range(steps):
        training.step(training.next())
    training.close()
    return training, before


def moved(training: Training, before: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, p in training.model.named_parameters() if not torch.equal(p, before[name])}


def test_frozen_layers_stay_and_the_others_move() -> None:
    strategy = Freezing()
    layers = layers_of(tiny_workload().model)
    assert [prefix for prefix, _ in layers] == ["0.", "1.0.0.", "1.1.0.", "4."]
    case = sample_case("cpu", inspected={"freezing": {"layers": layers}})
    settings = strategy.settings(case)
    setting = next(iter(settings))
    assert setting == {"prefixes": ["0.", "1.0.0."]}
    training, before = trained(tiny_workload(), strategy.apply(Setup(), setting))
    found = moved(training, before)
    assert found
    assert not any(name.startswith(("0.", "1.0.")) for name in found)
    assert all(p.grad is None for name, p in training.model.named_parameters() if name.startswith("0."))


def test_adapters_and_the_head_are_trained_and_nothing_else() -> None:
    pytest.importorskip("peft")
    found = adaptable(sequences().model)
    assert found["groups"][-1] == ["query", "key", "value"]
    assert set(found["groups"][0]) > set(found["groups"][-1]), "all layers come first"
    assert found["heads"] == ["head"]
    training, before = trained(
        sequences(), Lora().apply(Setup(), {"rank": 2, "targets": found["groups"][-1], "heads": found["heads"]})
    )
    names = moved(training, before)
    assert {"head.weight", "head.bias"} <= names
    assert all("lora_" in name or name.startswith("head.") for name in names)
    count = sum(p.numel() for p in training.model.parameters() if p.requires_grad)
    assert count == 2 * 3 * (16 + 16) + 16 * 2 + 2


def test_torchs_own_attention_reads_past_adapters_and_gets_none() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    found = adaptable(nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(8, 2)))
    assert "groups" not in found
    assert "reads past adapters" in found["reason"]
    assert not Lora().applies(sample_case("cpu", inspected={"lora": found}))


def test_channels_are_really_gone_and_the_model_answers() -> None:
    pytest.importorskip("torch_pruning")
    training = Training(tiny_workload(), Setup(), device="cpu", seed=0)
    inputs = inputs_of(training)
    assert inputs == [[[2, 3, 8, 8], "float32"]]
    found = narrowed_copy(training.model, inputs)
    before, after = found["parameters"]["0.3"]
    assert after < 0.8 * before
    assert sum(p.numel() for p in training.model.parameters()) == before  # the copy alone was narrowed
    narrowed, _ = trained(tiny_workload(), Pruning().apply(Setup(), {"ratio": 0.5, "inputs": inputs}))
    assert narrowed.model[0].weight.shape[0] == 4
    assert narrowed.model[4].out_features == 2


def test_a_model_that_does_not_run_with_fewer_channels_says_so() -> None:
    pytest.importorskip("torch_pruning")

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.two(self.one(x).view(-1, 16))
            return out

    found = narrowed_copy(Fixed(), [[[2, 8], "float32"]])
    assert "does not run with fewer channels" in found["reason"]
    assert not Pruning().applies(sample_case("cpu", inspected={"pruning": found}))


def test_the_student_hears_its_teacher_in_training_alone_and_is_saved_without_it() -> None:
    teacher, student = nn.Linear(4, 3), nn.Linear(4, 3)
    taught = with_teacher(student, teacher)
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    assert set(taught.state_dict()) == {"student.weight", "student.bias"}
    assert len(list(taught.parameters())) == 2
    plain = cross_entropy(taught, (x, y))
    loss = TowardsTeacher(weight=0.5, temperature=2.0)(cross_entropy)
    mixed = loss(taught, (x, y))
    near = F.kl_div(
        F.log_softmax(student(x) / 2, -1), F.softmax(teacher(x) / 2, -1), reduction="batchmean"
    )  # fmt: skip
    assert mixed.item() == pytest.approx((0.5 * plain + 0.5 * 4 * near).item(), rel=1e-5)
    mixed.backward()
    assert teacher.weight.grad is None
    taught.eval()
    assert loss(taught, (x, y)).item() == pytest.approx(plain.item())


def test_an_untrained_teacher_teaches_nothing() -> None:
    pytest.importorskip("torch_pruning")
    workload = tiny_workload()
    workload.valid_data, workload.target = workload.train_data, Target("accuracy", at_least=0.99)
    workload.evaluate = lambda model, batches: {"accuracy": 0.5}

    class Live:
        target = 0.99

        def __init__(self) -> None:
            self.workload = workload
            self.training = Training(workload, Setup(), device="cpu", seed=0)

        def restart(self) -> Training:
            return self.training

    found = Distillation().inspect(Live())
    assert found == {"reason": "build() gives a model that is not trained: accuracy 0.5"}
    assert not Distillation().applies(sample_case("cpu", inspected={"distillation": found}))


def test_eight_bit_products_round_and_their_weights_are_trained() -> None:
    pytest.importorskip("torchao")
    torch.manual_seed(0)
    plain = nn.Sequential(OrderedDict(body=nn.Linear(16, 32), relu=nn.ReLU(), head=nn.Linear(32, 16)))
    x = torch.randn(6, 16)
    rounded = InFloat8(("body",), emulate=True)(copy.deepcopy(plain))
    assert list(rounded.state_dict()) == list(plain.state_dict())
    assert type(rounded.head) is nn.Linear
    error = (rounded(x) - plain(x)).abs().max() / plain(x).abs().max()
    assert 1e-4 < error < 0.1
    training, before = trained(
        sequences(), Fp8().apply(Setup(), {"layers": ["up", "down"], "recipe": "tensorwise", "emulate": True})
    )
    assert {"up.weight", "down.weight", "query.weight"} <= moved(training, before)


def test_fp8_layers_are_large_and_not_the_last_and_compiled_with_it() -> None:
    large = nn.Sequential(nn.Linear(512, 1024), nn.Linear(1024, 520), nn.Linear(520, 512), nn.Linear(512, 16))
    assert large_layers(large) == ["0"]
    case = sample_case("cuda:0", inspected={"fp8": {"layers": ["0"]}})
    companions = Fp8().companions(case, next(iter(Fp8().settings(case))))
    assert [change.strategy for change in companions] == ["compile"]


def test_trained_with_the_rounding_the_answers_served_in_eight_bits_are_those_of_training() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    setup = QuantizationAware().apply(Setup(), {"activations": False})
    training, _ = trained(sequences(), setup)
    x = torch.randn(6, 5, 16)
    served = Attention()
    served.load_state_dict(training.model.state_dict())  # a checkpoint of this training is one of the plain model
    exact = served(x)
    quantization.quantize_(served, quantization.Int8WeightOnlyConfig())
    torch.testing.assert_close(training.model(x), served(x), atol=1e-5, rtol=1e-5)
    assert (exact - served(x)).abs().max() > 1e-4


class Watched(nn.Module):
    """A convolution net that notes the sides of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head, self.sides = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 2), list[int]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sides.append(x.shape[-1])
        out: torch.Tensor = self.head(self.conv(x).mean((2, 3)))
        return out


def images(model: nn.Module) -> Workload:
    torch.manual_seed(0)
    x = torch.randn(64, 3, 32, 32)
    return Workload(
        model=model, train_data=TensorDataset(x, (x.mean((1, 2, 3)) > 0).long()), batch_size=16, loss=cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=1e-2), max_steps=20,
    )  # fmt: skip


def test_images_grow_over_the_steps_and_a_resumed_training_goes_on_at_its_size() -> None:
    setting = setting_of([32, 32], 0.3, 20)
    assert setting == {"own": [32, 32], "sizes": [[16, 16, 0], [24, 24, 3]], "full_from": 6}
    setup = ProgressiveResizing().apply(Setup(), setting)
    training = Training(images(Watched()), setup, device="cpu", seed=0)
    for _ in range(4):
        training.step(training.next())
    other = Training(images(Watched()), setup, device="cpu", seed=0)
    other.load_state_dict(training.state_dict())
    for _ in range(4):
        other.step(other.next())
    assert training.model.sides == [16, 16, 16, 24]
    assert other.model.sides == [24, 24, 32, 32]


def test_smaller_images_are_for_models_that_take_them() -> None:
    fixed = nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * 32 * 32, 2))
    for model, told in ((Watched(), ""), (fixed, "does not run on smaller images: RuntimeError")):
        live = SimpleNamespace(training=Training(images(model), Setup(), device="cpu", seed=0))
        found = ProgressiveResizing().inspect(live)
        assert found.get("own") == (None if told else [32, 32])
        case = sample_case("cpu", inspected={"progressive_resizing": found})
        answer = ProgressiveResizing().applies(case)
        assert bool(answer) is not bool(told)
        assert told in answer.reason
    live = SimpleNamespace(training=Training(sequences(), Setup(), device="cpu", seed=0))
    assert ProgressiveResizing().inspect(live) == {"reason": ""}


def test_fp8_is_a_line_below_the_model_of_a_script(tmp_path: Path) -> None:
    change = Change(strategy="fp8", setting={"layers": ["up", "down"], "recipe": "rowwise"})
    after, patch = patched(tmp_path, PLAIN, change)
    assert [each.how for each in patch.changes] == ["patched"], patch.changes[0].reason
    assert "+import torchao.float8" in changed_lines(patch.diff)
    line = after.split("    model = nn.Linear(8, 2)\n")[1].split("    optimizer")[0]
    float8 = pytest.importorskip("torchao.float8")
    model = Attention(512)
    exec(textwrap.dedent(line), {"model": model, "torchao": SimpleNamespace(float8=float8)})
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    assert kinds["up"] == kinds["down"] == "Float8Linear"
    assert kinds["query"] == kinds["head"] == "Linear"
