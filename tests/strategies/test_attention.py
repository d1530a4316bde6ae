"""Attention by torch's operator: hand-written spellings are edited and equal, what only looks like it is left alone,
models that offer the operator are switched to it, and the fastest back end is taken."""

from __future__ import annotations

import ast
import copy
import inspect
import io
import itertools
import json
import pickle
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoopt import Setup
from autoopt.benchmark.flags import apply_flags
from autoopt.benchmark.whatif import without_graphs
from autoopt.records import Change
from autoopt.testing.strategies import sample_case
from autoopt_strategies.compute.flash_attention import switch_attention
from autoopt_strategies.compute.rewriting.attention import attends, ratios, survey_training, through
from autoopt_strategies.compute.rewriting.attention_source import statements
from autoopt_strategies.compute.rewriting.source import edited, rewrite_functions
from benchmarks.attention import models
from benchmarks.attention.models import OWN, Model, NanoGPT, Size
from scripted import PLAIN, REGISTRY, changed_lines, patched, put, sites_in
from tests.strategies.stand_ins import promised
from workloads.attention import (
    OTHER,
    WIDTH,
    Asks,
    Base,
    Capped,
    GivesBoth,
    GivesWeights,
    Padding,
    Window,
    is_fused,
    rewrite,
    same_training,
)

SIZE = Size(layers=1)
UNDERSTOOD = ("nanogpt", "mingpt", "timm_vit", "t5", "rotary", "cross")
CAUSAL = {"nanogpt", "mingpt", "rotary"}


def tokens(batch: int = SIZE.batch, length: int = SIZE.length) -> torch.Tensor:
    return torch.randint(SIZE.words, (batch, length), generator=torch.Generator().manual_seed(0))


@cache
def pair(name: str) -> tuple[nn.Module, nn.Module, dict[str, Any]]:
    """A model of a spelling as it is, the same edited, and what was found; they are not changed by tests."""
    torch.manual_seed(0)
    plain = Model(OWN[name], SIZE)
    changed = copy.deepcopy(plain)
    return plain, changed, rewrite(changed, tokens())


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_a_spelling_of_a_public_model_is_edited_and_equal(name: str) -> None:
    plain, changed, found = pair(name)
    assert found["refused"] == {}
    assert (found["found"], found["causal"]) == (1, 1 if name in CAUSAL else 0)
    assert found["functions"][0]["file"] == "benchmarks/attention/models.py"
    json.dumps(found, allow_nan=False)
    assert is_fused(changed, tokens())
    assert not is_fused(plain, tokens())
    assert list(changed.state_dict()) == list(plain.state_dict())
    for training in (True, False):
        same_training(plain.train(training), changed.train(training), tokens())
    for batch, length in ((3, 8), (1, 16), (5, 12), (2, 4)):
        x = tokens(batch, length)
        torch.testing.assert_close(changed(x), plain(x), rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, got = plain(tokens()), changed(tokens())
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", sorted(set(OWN) - set(UNDERSTOOD)))
def test_a_spelling_that_is_not_understood_is_left_alone_with_a_reason(name: str) -> None:
    plain, changed, found = pair(name)
    assert (found["found"], list(found["refused"])) == (0, ["layers.0"])
    assert type(changed.layers[0]) is type(plain.layers[0])  # type: ignore[index]


def test_copies_pickles_and_derived_classes_are_what_their_author_wrote() -> None:
    _, changed, _ = pair("nanogpt")
    other: Any = copy.deepcopy(changed)
    with torch.no_grad():
        for parameter in other.layers[0].parameters():
            parameter.zero_()
    assert other.layers[0](torch.ones(1, 4, SIZE.width)).abs().max() == 0
    assert is_fused(other, tokens())
    loaded: Any = pickle.loads(pickle.dumps(changed))
    assert type(loaded.layers[0]) is NanoGPT
    torch.testing.assert_close(loaded.eval()(tokens()), changed.eval()(tokens()), rtol=1e-4, atol=1e-5)
    saved: Any = copy.deepcopy(changed)
    torch.save(saved, io.BytesIO())
    for layer in saved.layers:  # as sharding derives from the class that each module shows, also after it was saved
        layer.__class__ = type(f"Sharded{layer.__class__.__name__}", (layer.__class__,), {})
    assert is_fused(saved, tokens())


def test_the_plan_alone_edits_another_model_and_leaves_one_of_another_kind() -> None:
    """As a trial and the exported script do: names that went through JSON, no search, no batch."""
    plain, _, found = pair("rotary")
    functions = json.loads(json.dumps(found["functions"]))
    model = rewrite_functions(copy.deepcopy(plain), functions, statements)
    assert is_fused(model, tokens())
    same_training(plain, model, tokens())
    assert type(rewrite_functions(Model(NanoGPT, SIZE), functions, statements).layers[0]) is NanoGPT


def test_dropout_keeps_its_rate_in_training_and_goes_in_evaluation() -> None:
    """The mean over many draws is the output without dropout, and the spread that of the plain module."""
    torch.manual_seed(0)
    plain = NanoGPT(Size(width=8, heads=2, dropout=0.3))
    module, x = copy.deepcopy(plain), torch.randn(2, 5, 8)
    assert rewrite(module, x)["found"] == 1
    with torch.no_grad():
        one = torch.stack([plain(x) for _ in range(1500)])
        two = torch.stack([module(x) for _ in range(1500)])
    torch.testing.assert_close(two.mean(0), one.mean(0), rtol=0, atol=0.05)
    torch.testing.assert_close(two.std(0).mean(), one.std(0).mean(), rtol=0.05, atol=0)
    assert torch.equal(module.eval()(x), module(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["nanogpt", "t5"])
def test_it_can_be_compiled_afterwards(name: str) -> None:
    plain, changed, _ = pair(name)
    compiled = torch.compile(copy.deepcopy(changed).eval(), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens()), plain.eval()(tokens()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", OTHER, ids=lambda kind: kind.__name__)
def test_what_only_looks_like_attention_is_left_alone_with_a_reason(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = kind(), torch.randn(2, 12, WIDTH)
    found = rewrite(module, x)
    assert (found["found"], type(module)) == (0, kind)
    assert re.search(OTHER[kind], found["refused"][""]), found["refused"]


class Maskable(Base):
    """A mask that may be left out, as the annotated transformer has it."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.parts(x)
        scores = torch.matmul(q, k.transpose(-2, -1)) / 2.0
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = scores.softmax(dim=-1)
        return torch.matmul(weights, v)


class CausalAndPadded(Base):
    """A triangle beside padding, of which this batch has none."""

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        earlier = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        mask = earlier & keep[:, None, None, :]
        return (q @ k.mT / 2.0).masked_fill(~mask, float("-inf")).softmax(-1) @ v


class Scaled(Base):
    """Its scale is that of another width: it must be given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        return (q @ k.mT * 0.3).softmax(-1) @ v


class Learned(Base):
    """Its scale is a tensor, which the operator does not take: the queries carry it."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.parts(x)
        return (q @ k.mT / self.temperature).softmax(-1) @ v


class HeadsLast(Base):
    """Heads stay behind the positions, by einsums over them where they are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.transpose(1, 2) for part in self.parts(x))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / 2.0
        weights = scores.softmax(dim=-1)
        return torch.einsum("bhij,bjhd->bihd", weights, v)


class PositionsLast(Base):
    """Positions come last, as convolutions leave them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.mT for part in self.parts(x))
        scores = torch.einsum("b h d i, b h d j -> b h i j", q * 0.5, k)
        weights = scores.softmax(dim=-1)
        return torch.einsum("b h i j, b h d j -> b h d i", weights, v)


class Flat(Base):
    """Heads are among the samples, positions come last, and both operands carry the scale, as in diffusion models."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.flatten(0, 1).mT for part in self.parts(x))
        weight = torch.einsum("bct,bcs->bts", q * 0.7, k * 0.7)
        weight = torch.softmax(weight, dim=-1)
        return torch.einsum("bts,bcs->bct", weight, v).unflatten(0, (len(x), -1))


class Products(Base):
    """The same by ``bmm``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.flatten(0, 1) for part in self.parts(x))
        weights = torch.bmm(q, k.transpose(1, 2)).softmax(-1)
        return torch.bmm(weights, v).unflatten(0, (len(x), -1))


def rows(samples: int = 3, length: int = 12) -> torch.Tensor:
    return torch.randn(samples, length, WIDTH, generator=torch.Generator().manual_seed(0))


WHOLE = torch.ones(3, 12, dtype=torch.bool)
SHORT = torch.cat([WHOLE[:1], torch.arange(12)[None] < 5, WHOLE[:1]])
TRIANGLE = torch.ones(3, 1, 12, 12).tril()


@pytest.mark.parametrize(
    ("kind", "seen", "later", "scale"),
    [
        pytest.param(Window, [rows()], [[rows(2, 64)]], "default", id="a window that no batch has reached"),
        pytest.param(Padding, [rows(), SHORT], [[rows(), WHOLE]], "default", id="no padding"),
        pytest.param(Maskable, [rows()], [[rows()], [rows(), TRIANGLE]], "default", id="a mask may be left out"),
        pytest.param(Maskable, [rows(), TRIANGLE], [[rows()], [rows(), TRIANGLE]], "default", id="or be given"),
        pytest.param(CausalAndPadded, [rows(), WHOLE], [[rows(), SHORT]], "default", id="padding of another batch"),
        (HeadsLast, [rows()], [[rows(2, 64)]], "default"),
        (PositionsLast, [rows()], [[rows(2, 64)]], "default"),
        (Flat, [rows()], [[rows(2, 64)]], "given"),
        (Products, [rows()], [[rows(2, 64)]], "given"),
        (Scaled, [rows()], [[rows()]], "given"),
        (Learned, [rows()], [[rows()]], "queries"),
    ],
)
def test_batches_of_another_kind_than_that_which_was_seen_train_the_same(
    kind: type[nn.Module], seen: list[torch.Tensor], later: list[list[torch.Tensor]], scale: str
) -> None:
    torch.manual_seed(0)
    module = kind()
    plain = copy.deepcopy(module)
    found = rewrite(module, *seen)
    assert (found["found"], found["causal"], found["functions"][0]["scale"]) == (1, 0, scale)
    for batch in later:
        assert is_fused(module, *batch)
        same_training(plain, module, *batch)


def test_a_sample_of_padding_alone_computes_the_same() -> None:
    torch.manual_seed(0)
    module, batch = Padding(), (rows(), torch.cat([SHORT[:2], ~WHOLE[:1]]))
    plain = copy.deepcopy(module)
    assert rewrite(module, rows(), SHORT)["found"] == 1
    torch.testing.assert_close(module(*batch), plain(*batch), rtol=1e-4, atol=1e-5)


def test_layers_of_one_class_are_checked_once_and_others_say_why_not() -> None:
    torch.manual_seed(0)
    kinds = itertools.cycle((Capped, Scaled))

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(next(kinds)() for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x).transpose(1, 2).flatten(2)
            return x

    found = rewrite(Layers(), torch.randn(3, 12, WIDTH))
    assert (len(found["functions"]), found["found"]) == (1, 2)
    assert list(found["refused"]) == ["layers.0", "layers.2"]


def test_a_training_is_surveyed_on_copies_and_left_as_it_is() -> None:
    torch.manual_seed(0)
    model = Model(NanoGPT, Size(layers=2))
    before = copy.deepcopy(model.state_dict())

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    found = survey_training(model, loss, tokens(), switch_attention)
    assert (len(found["functions"]), found["found"], found["switch"]) == (1, 2, False)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert type(model.layers[0]) is NanoGPT


@pytest.mark.parametrize("kind", [GivesWeights, GivesBoth])
def test_probabilities_that_nobody_computes_with_are_not_computed(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, WIDTH)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch)  # type: ignore[no-any-return]

    plain = Asks(kind())
    changed = copy.deepcopy(plain)
    assert rewrite(changed, x)["found"] == 1
    assert is_fused(changed, x)
    assert changed.seen is None
    same_training(plain, changed, x)
    without_graphs(plain)  # it keeps its probabilities, whose graph no copy can have
    assert survey_training(plain, loss, x, lambda model: 0)["refused"] == {}
    refused = survey_training(Asks(kind(), uses=True), loss, x, lambda model: 0)
    assert refused["functions"] == []
    text = Path(inspect.getfile(kind)).read_text(encoding="utf-8")
    name = f"{kind.__name__}.forward"
    after = edited(text, statements(text, name, "given", "added" if kind is GivesWeights else ""))
    ast.parse(after)
    assert after.count(", None\n") == text.count(", None\n") + 1


def test_the_edited_source_is_what_a_person_would_write() -> None:
    text = Path(models.__file__).read_text(encoding="utf-8")
    found = pair("mingpt")[2]["functions"][0]
    after = edited(text, statements(text, found["function"], found["scale"], found["mask"]))
    before_lines, after_lines = text.splitlines(), after.splitlines()
    assert [line.strip() for line in before_lines if line not in after_lines] == [
        "att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))",
        "att = att.masked_fill(self.mask[:, :, :T, :T] == 0, -1e10)",
        "att = self.attn_drop(F.softmax(att, dim=-1))",
        "y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)",
    ]
    ast.parse(after)


SCRIPT = """\
import math

import torch
from torch import nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(6, 6)))

    def forward(self, x):
        T = x.shape[1]
        q, k, v = self.qkv(x).split(8, dim=2)
        # scores of all pairs
        scores = q @ k.transpose(-2, -1) / math.sqrt(8)  # scaled
        scores = scores.masked_fill(self.mask[:T, :T] == 0, float("-inf"))
        weights = self.drop(F.softmax(scores, dim=-1))
        return weights @ v


loader = torch.utils.data.DataLoader([])
model = Attention()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(None).sum()
loss.backward()
optimizer.step()
"""


def test_a_patch_edits_the_statements_of_the_function(tmp_path: Path) -> None:
    sites = sites_in(tmp_path, SCRIPT, model="Attention()")
    function = {"file": "train.py", "module": "__main__", "function": "Attention.forward"}
    setting = {"functions": [{**function, "scale": "default", "mask": "causal"}]}
    found = put(sites, Change(strategy="flash_attention", setting=setting))
    assert [change.how for change in found.changes] == ["patched"]
    assert changed_lines(found.patch.diff) == [
        "-        T = x.shape[1]",
        "-        # scores of all pairs",
        "-        scores = q @ k.transpose(-2, -1) / math.sqrt(8)  # scaled",
        '-        scores = scores.masked_fill(self.mask[:T, :T] == 0, float("-inf"))',
        "-        weights = self.drop(F.softmax(scores, dim=-1))",
        "-        return weights @ v",
        "+        return F.scaled_dot_product_attention(",
        "+            q, k, v, dropout_p=self.drop.p if self.training else 0.0, is_causal=True",
        "+        )",
    ]
    stale = {"functions": [{**function, "function": "Other.forward", "scale": "default", "mask": "causal"}]}
    found = put(sites, Change(strategy="flash_attention", setting=stale))
    assert (found.changes[0].how, found.texts) == ("plan only", {})


# Models that offer the operator, and its back ends.


def fused(model: nn.Module, **inputs: Any) -> bool:
    return attends(lambda: model(**inputs))


def of_transformers(kind: str, **options: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 2}
    config = getattr(transformers, f"{kind.partition('For')[0]}Config")(vocab_size=50, **size, **options)
    torch.manual_seed(0)
    return getattr(transformers, kind)(config).eval()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["BertForSequenceClassification", "LlamaForCausalLM"])
def test_a_transformers_model_that_computes_step_by_step_is_switched_with_its_masks(kind: str) -> None:
    model = of_transformers(kind, attn_implementation="eager")
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    words = {"input_ids": torch.arange(16).view(2, 8), "attention_mask": mask}
    assert not fused(model, **words)
    before = model(**words).logits
    assert switch_attention(model) >= 1
    assert fused(model, **words)
    real: Any = mask.bool() if "Causal" in kind else ...
    torch.testing.assert_close(model(**words).logits[real], before[real], rtol=1e-4, atol=1e-5)
    assert switch_attention(model) == 0


@pytest.mark.parametrize("options", [{}, {"attn_implementation": "eager", "output_attentions": True}])
def test_a_transformers_model_that_has_it_or_is_asked_for_probabilities_is_left_alone(options: dict[str, Any]) -> None:
    assert switch_attention(of_transformers("BertForSequenceClassification", **options)) == 0


class OfTimm(nn.Module):
    """The choice as timm's attention offers it: an attribute that its forward reads."""

    def __init__(self) -> None:
        super().__init__()
        self.fused_attn = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fused_attn:
            return nn.functional.scaled_dot_product_attention(x, x, x)
        return (x @ x.mT / x.shape[-1] ** 0.5).softmax(-1) @ x


def test_the_choice_of_timm_is_taken() -> None:
    model = nn.Sequential(OfTimm(), OfTimm())
    assert switch_attention(model) == 2
    assert fused(model, input=torch.randn(1, 2, 4, 8))
    assert switch_attention(model) == 0


STRATEGY = REGISTRY["flash_attention"]
FASTER = {"cudnn": 0.6, "flash": 1.0, "mem_efficient": 1.4}


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)


@pytest.fixture
def flags() -> Iterator[None]:
    yield
    for name in FASTER:
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(True)


def test_a_copy_takes_one_back_end_and_computes_the_same() -> None:
    model, x = Attending(), torch.randn(2, 4, 16, 8)
    expected = model(x)
    changed = through(model, "mem_efficient")  # a CPU has no such one: what is written out is left
    assert not attends(lambda: changed(x))
    assert torch.allclose(changed(x), expected, atol=1e-6)
    assert torch.backends.cuda.flash_sdp_enabled(), "the process goes on with all of them"


def test_each_is_tried_on_a_copy_with_what_changes_beside_it() -> None:
    tried: list[list[str]] = []

    def ratio_with(change: Any) -> float | None:
        tried.append(change([]).forward and ["changed"])
        return None if len(tried) == 3 else 0.5

    def add(model: list[str]) -> Any:
        return SimpleNamespace(forward=model)

    assert ratios(SimpleNamespace(ratio_with=ratio_with), [add]) == {"cudnn": 0.5, "flash": 0.5}
    assert tried == [["changed"]] * 3


def test_what_stands_before_the_fastest_is_turned_off() -> None:
    case = sample_case("cuda:0", inspected={"flash_attention": {"fused": True, "backends": FASTER}})
    assert STRATEGY.applies(case)
    (setting,) = STRATEGY.settings(case)
    assert setting == {"off": ["flash", "mem_efficient"]}
    told = promised(STRATEGY, case, setting)
    assert told.kind == "tried"


def test_a_rewritten_attention_is_kept_first() -> None:
    found = {"functions": [{"function": "A.forward"}], "ratio": 0.7, "backends": FASTER}
    settings: Any = STRATEGY.settings(sample_case("cuda:0", inspected={"flash_attention": found}))
    assert "off" not in next(settings)
    assert settings.send(SimpleNamespace(verdict="kept", reason=""))["off"] == ["flash", "mem_efficient"]


def test_the_process_and_the_patch_say_the_same(tmp_path: Path, flags: None) -> None:
    setting = {"off": ["flash", "mem_efficient"]}
    apply_flags(STRATEGY.apply(Setup(), setting))
    assert not torch.backends.cuda.flash_sdp_enabled()
    assert not torch.backends.cuda.mem_efficient_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()
    x = torch.randn(2, 4, 16, 8)
    assert not attends(lambda: Attending()(x)), "a CPU follows the same switches"
    _, patch = patched(tmp_path, PLAIN, Change(strategy="flash_attention", setting=setting))
    assert changed_lines(patch.diff) == [
        "+",
        "+torch.backends.cuda.enable_flash_sdp(False)",
        "+torch.backends.cuda.enable_mem_efficient_sdp(False)",
    ]
