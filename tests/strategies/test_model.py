"""Strategies that change the model: what is trained, what stays, where they do not apply, and which sizes are tried."""

from __future__ import annotations

import copy
import textwrap
from collections import OrderedDict
from dataclasses import replace
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
from autoopt.benchmark.facts import workload_facts
from autoopt.benchmark.seeding import seed_everything
from autoopt.benchmark.training import Training
from autoopt.benchmark.trial_context import TrialContext
from autoopt.export.script import script
from autoopt.loading import importing, validation
from autoopt.records import Change, JsonDict, Plan
from autoopt.records.protocol import TrialSpec
from autoopt.registry import load_strategies
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_case, tiny_workload
from autoopt_model.distillation import Distillation, towards_teacher, with_teacher
from autoopt_model.fp8 import Fp8, in_float8, large_layers
from autoopt_model.freezing import Freezing, layers_of
from autoopt_model.lora import Lora, adaptable
from autoopt_model.model_size import ModelSize, integer_defaults
from autoopt_model.progressive_resizing import ProgressiveResizing, setting_of
from autoopt_model.pruning import Pruning, inputs_of, narrowed_copy
from autoopt_model.quantization_aware import QuantizationAware
from scripted import PLAIN, changed_lines, patched
from tests.strategies.stand_ins import cross_entropy, in_trial, promised, small_workload


class Attention(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        return self.head((x + self.down(F.gelu(self.up(x)))).mean(1))


def sequences() -> Workload:
    torch.manual_seed(0)
    x = torch.randn(64, 5, 16)
    data = TensorDataset(x, (x.mean((1, 2)) > 0).long())
    return small_workload(Attention(), data, optimizer=partial(torch.optim.AdamW, lr=1e-2), max_steps=8)


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
            return self.two(self.one(x).view(-1, 16))

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
    loss = towards_teacher(cross_entropy, weight=0.5, temperature=2.0)
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
    found = Distillation().inspect(in_trial(workload))
    assert found == {"reason": "build() gives a model that is not trained: accuracy 0.5"}
    assert not Distillation().applies(sample_case("cpu", inspected={"distillation": found}))


def test_eight_bit_products_round_and_their_weights_are_trained() -> None:
    pytest.importorskip("torchao")
    torch.manual_seed(0)
    plain = nn.Sequential(OrderedDict(body=nn.Linear(16, 32), relu=nn.ReLU(), head=nn.Linear(32, 16)))
    x = torch.randn(6, 16)
    rounded = in_float8(copy.deepcopy(plain), ("body",), emulate=True)
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
        return self.head(self.conv(x).mean((2, 3)))


def images(model: nn.Module) -> Workload:
    torch.manual_seed(0)
    x = torch.randn(64, 3, 32, 32)
    data = TensorDataset(x, (x.mean((1, 2, 3)) > 0).long())
    return small_workload(model, data, optimizer=partial(torch.optim.SGD, lr=1e-2), max_steps=20)


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


# Sizes of a model that its build() has parameters for.

REGISTRY = load_strategies()
STRATEGY = ModelSize()
WORKLOADS = Path(__file__).parents[1] / "workloads" / "sized.py"
HALF = {"build": f"{WORKLOADS}:build", "arguments": {"width": 16}}


def inspected(attribute: str = "build", plan: Plan | None = None) -> JsonDict:
    spec = TrialSpec(workload=f"{WORKLOADS}:{attribute}", device="cpu", plan=plan or Plan())
    live = TrialContext(spec, REGISTRY)
    try:
        return STRATEGY.inspect(live)
    finally:
        live.close()


def training(setting: JsonDict | None = None, attribute: str = "build") -> Training:
    seed_everything(0)
    workload = validation.build(importing.load(f"{WORKLOADS}:{attribute}"))
    setup = Setup() if setting is None else STRATEGY.apply(workload.setup, setting)
    return Training(workload, setup, device="cpu", seed=0)


def parameters(run: Training) -> int:
    return sum(p.numel() for p in run.model.parameters())


def test_sizes_are_those_that_leave_inputs_and_answers_as_they_are() -> None:
    found = inspected()
    names = [size["name"] for size in found["sizes"]]
    assert names == ["width", "depth"], "what saves most floating-point work goes first"
    width, depth = found["sizes"]
    assert {share: value for share, (value, _, _) in width["values"].items()} == {"0.5": 16, "0.25": 8, "0.75": 24}
    assert {share: value for share, (value, _, _) in depth["values"].items()} == {"0.5": 1}
    assert width["values"]["0.5"][1] < found["parameters"]
    assert 0.2 < width["values"]["0.5"][2] < 0.35, "products are a quarter, scores of attention a half"
    assert depth["values"]["0.5"][2] == pytest.approx(0.5, abs=0.02)
    refused = found["refused"]
    assert "as many parameters" in refused["heads"]
    assert "as many parameters" in refused["samples"]
    assert "the embedding embedding would not have a row" in refused["tokens=12"]
    assert "answers with" in refused["classes=1"]


def test_values_that_the_build_refuses_are_left_out_with_its_words() -> None:
    found = inspected("build", None)
    assert found["sizes"]
    told = inspected("fixed")["reason"]
    assert "width=16: it cannot be built: ValueError: no such width: 16" in told
    heads = integer_defaults(importing.load(f"{WORKLOADS}:build"))
    assert heads == {"width": 32, "depth": 2, "heads": 4, "tokens": 24, "classes": 2, "samples": 1024}


@pytest.mark.parametrize(
    ("attribute", "told"),
    [
        ("without_sizes", "no whole-number parameter with a default"),
        ("of_samples", "samples: the model has as many parameters with less of it"),
        ("own_optimizer", "the optimizer takes parameters of the model that build() made"),
        ("ready", "a workload, not a function"),
    ],
)
def test_a_build_without_sizes_says_why(attribute: str, told: str) -> None:
    found = inspected(attribute)
    answer = STRATEGY.applies(sample_case("cpu", inspected={"model_size": found}))
    assert not answer
    assert told in answer.reason


def test_trainers_objects_and_scripts_are_not_inspected() -> None:
    live: Any = SimpleNamespace(spec=SimpleNamespace(workload="x:y"), workload=SimpleNamespace(adapter="lightning"))
    assert "bound to the model" in STRATEGY.inspect(live)["reason"]
    live.spec.script = object()
    assert "no build()" in STRATEGY.inspect(live)["reason"]


def walked(sizes: list[JsonDict], verdicts: list[str], plan: Plan | None = None) -> list[dict[str, int]]:
    """Arguments that are asked for, in their order, where the trials end so."""
    case = sample_case("cpu", inspected={"model_size": {"build": "m:build", "sizes": sizes, "parameters": 1000}})
    talk = STRATEGY.settings(replace(case, plan=plan or Plan()))
    found: list[dict[str, int]] = []
    try:
        setting = next(talk)
        while True:
            found.append(setting["arguments"])
            verdict = verdicts[len(found) - 1] if len(found) <= len(verdicts) else "no_gain"
            setting = talk.send(SimpleNamespace(verdict=verdict))
    except StopIteration:
        return found


WIDTH = {"name": "width", "whole": 32, "values": {"0.5": [16, 500, 0.3], "0.25": [8, 200, 0.1], "0.75": [24, 700, 0.6]}}
DEPTH = {"name": "depth", "whole": 2, "values": {"0.5": [1, 600, 0.5]}}


def test_smaller_while_it_is_kept_and_larger_where_the_target_is_missed() -> None:
    assert walked([WIDTH, DEPTH], ["kept", "kept"]) == [{"width": 16}, {"width": 8}, {"width": 8, "depth": 1}]
    assert walked([WIDTH, DEPTH], ["kept", "quality_lost"])[2] == {"width": 16, "depth": 1}
    assert walked([WIDTH], ["quality_lost"]) == [{"width": 16}, {"width": 24}]
    assert walked([WIDTH, DEPTH], ["no_gain"]) == [{"width": 16}, {"depth": 1}]
    values = {share: value for share, value in WIDTH["values"].items() if share != "0.5"}  # type: ignore[attr-defined]
    assert walked([{**WIDTH, "values": values}], []) == [{"width": 24}]


def test_a_later_round_goes_on_from_what_was_kept() -> None:
    kept = Plan(changes=(Change(strategy="model_size", setting=HALF),))
    assert walked([WIDTH, DEPTH], [], kept) == [{"width": 8}, {"width": 16, "depth": 1}]


def test_the_prediction_is_the_work_that_is_left_at_the_very_best() -> None:
    case = sample_case("cpu", inspected={"model_size": {"build": "m:build", "sizes": [WIDTH, DEPTH]}})
    half = promised(STRATEGY, case, {"build": "m:build", "arguments": {"width": 16}})
    both = promised(STRATEGY, case, {"build": "m:build", "arguments": {"width": 16, "depth": 1}})
    assert 1.0 < half.value < both.value
    assert STRATEGY.predict(case, {"build": "m:build", "arguments": {"width": 5}}) is None


def test_the_smaller_model_is_trained_and_stands_before_other_changes_of_it() -> None:
    whole, half = training(), training(HALF)
    assert parameters(half) == inspected()["sizes"][0]["values"]["0.5"][1]
    assert parameters(half) < parameters(whole)
    before = {name: p.detach().clone() for name, p in half.model.named_parameters()}
    for _ in range(3):
        half.step(half.next())
    assert all(not torch.equal(p, before[name]) for name, p in half.model.named_parameters())
    setup = STRATEGY.apply(Setup().with_model(str), HALF)
    assert [getattr(change, "name", change) for change in setup.model] == ["autoopt_model.model_size:sized", str]
    whole.close()
    half.close()


def test_the_exported_script_builds_with_the_argument_and_trains_alike(tmp_path: Path) -> None:
    run = training(HALF)
    facts = workload_facts(run, HALF["build"])
    plan = Plan(changes=(Change(strategy="model_size", setting=HALF),))
    made = script(HALF["build"], plan, REGISTRY, facts=facts)
    assert "Not in this script" not in made
    assert 'partial(sized, build=build, arguments={"width": 16})' in made
    assert "import autoopt" not in made
    assert "class UserBuild" not in made
    other = script("elsewhere:build", plan, REGISTRY, facts=facts)
    assert "which this script does not have" in other.replace("\n# ", " ")
    run.close()
