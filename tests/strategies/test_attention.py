"""Hand-written attention: public models' spellings are rewritten and equal, what only looks like it is left alone."""

from __future__ import annotations

import copy
import json
import pickle
import re
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoopt_strategies.compute.attention.forward import RewriteAttention
from autoopt_strategies.compute.attention.survey import rewrite, survey_training
from autoopt_strategies.compute.flash_attention import switch_attention
from benchmarks.attention.models import OWN, Model, NanoGPT, Size
from workloads.attention import OTHER, WIDTH, Padding, TwoMembers, Window, is_fused, same_training

SIZE = Size(layers=1)
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name == "swin")) for name in OWN]
CAUSAL = {"nanogpt", "mingpt", "rotary", "grouped_query"}


def tokens(batch: int = SIZE.batch, length: int = SIZE.length) -> torch.Tensor:
    return torch.randint(SIZE.words, (batch, length), generator=torch.Generator().manual_seed(0))


@cache
def pair(name: str) -> tuple[nn.Module, nn.Module, dict[str, Any]]:
    """A model of a spelling as it is, the same rewritten, and what was found; they are not changed by tests."""
    torch.manual_seed(0)
    plain = Model(OWN[name], SIZE)
    rewritten = copy.deepcopy(plain)
    return plain, rewritten, rewrite(rewritten, tokens())


@pytest.mark.parametrize("name", NAMES)
def test_a_spelling_of_a_public_model_is_rewritten_and_equal(name: str) -> None:
    plain, rewritten, found = pair(name)
    assert found["refused"] == {}
    assert found["modules"] == ["layers.*"]
    assert found["causal"] == (1 if name in CAUSAL else 0)
    json.dumps(found, allow_nan=False)
    assert is_fused(rewritten, tokens())
    assert not is_fused(plain, tokens())
    assert list(rewritten.state_dict()) == list(plain.state_dict())
    for training in (True, False):
        same_training(plain.train(training), rewritten.train(training), tokens())


@pytest.mark.parametrize("name", NAMES)
def test_other_lengths_and_batches_than_the_captured_ones_compute_the_same(name: str) -> None:
    plain, rewritten, _ = pair(name)
    for batch, length in ((3, 8), (1, 16), (5, 12), (2, 4)):
        x = tokens(batch, length)
        if name == "swin" and length != SIZE.length:
            continue  # its mask for shifted windows is made for one length
        torch.testing.assert_close(rewritten.eval()(x), plain.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(set(OWN) - {"swin"}))
def test_shorter_sequences_and_other_batches_are_fused_too(name: str) -> None:
    _, rewritten, _ = pair(name)
    assert is_fused(rewritten, tokens(2, 9))


@pytest.mark.parametrize("name", NAMES)
def test_it_computes_the_same_under_autocast(name: str) -> None:
    plain, rewritten, _ = pair(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, got = plain.eval()(tokens()), rewritten.eval()(tokens())
        assert is_fused(rewritten, tokens())
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)


def test_an_autocast_that_was_not_tried_runs_the_forward_as_it_was_written() -> None:
    _, rewritten, _ = pair("nanogpt")
    with torch.autocast("cpu", dtype=torch.float16):
        assert not is_fused(rewritten, tokens())


def test_a_flag_that_changes_later_runs_the_forward_as_it_was_written() -> None:
    _, rewritten, _ = pair("nanogpt")
    changed = copy.deepcopy(rewritten).eval()
    changed.layers[0].n_head = 2
    plain = copy.deepcopy(pair("nanogpt")[0]).eval()
    plain.layers[0].n_head = 2
    assert not is_fused(changed, tokens())
    torch.testing.assert_close(changed(tokens()), plain(tokens()))


def test_a_copy_has_weights_of_its_own_and_a_pickle_is_the_module_that_its_author_wrote() -> None:
    _, rewritten, _ = pair("nanogpt")
    other = copy.deepcopy(rewritten)
    with torch.no_grad():
        for parameter in other.layers[0].parameters():
            parameter.zero_()
    assert other.layers[0](torch.ones(1, 4, SIZE.width)).abs().max() == 0
    assert rewritten.layers[0](torch.ones(1, 4, SIZE.width)).abs().max() > 0
    assert is_fused(other, tokens())
    loaded = pickle.loads(pickle.dumps(rewritten))
    assert type(loaded.layers[0]) is NanoGPT
    torch.testing.assert_close(loaded.eval()(tokens()), rewritten.eval()(tokens()), rtol=1e-4, atol=1e-5)


def test_the_plan_alone_rewrites_another_model() -> None:
    """As a trial and the exported script do: data that went through JSON, no capture, no batch."""
    plain, _, found = pair("rotary")
    data = json.loads(json.dumps({"modules": found["modules"], "forwards": found["forwards"]}))
    model = RewriteAttention(tuple(data["modules"]), tuple(data["forwards"]))(copy.deepcopy(plain))
    assert is_fused(model, tokens())
    same_training(plain, model, tokens())


def test_a_plan_for_another_model_leaves_it_as_it_is() -> None:
    _, _, found = pair("nanogpt")
    model = Model(OWN["rotary"], SIZE)
    with pytest.warns(UserWarning, match=r"layers\.0: attention is left as it is"):
        RewriteAttention(tuple(found["modules"]), tuple(found["forwards"]))(model)
    assert type(model.layers[0]) is OWN["rotary"]


def test_children_are_called_so_that_hooks_and_replaced_layers_stay_in_force() -> None:
    _, rewritten, _ = pair("nanogpt")
    model, calls = copy.deepcopy(rewritten), []
    model.layers[0].c_attn.register_forward_hook(lambda *_: calls.append("hook"))
    model.layers[0].c_proj = nn.Identity()
    assert is_fused(model, tokens())
    assert calls


def test_dropout_keeps_its_rate_in_training_and_goes_in_evaluation() -> None:
    """The mean over many draws is the output without dropout, and the spread that of the plain module."""
    torch.manual_seed(0)
    plain = NanoGPT(Size(width=8, heads=2, dropout=0.3))
    module, x = copy.deepcopy(plain), torch.randn(2, 5, 8)
    rewrite(module, x)
    with torch.no_grad():
        one = torch.stack([plain(x) for _ in range(1500)])
        two = torch.stack([module(x) for _ in range(1500)])
    torch.testing.assert_close(two.mean(0), one.mean(0), rtol=0, atol=0.05)
    torch.testing.assert_close(two.std(0).mean(), one.std(0).mean(), rtol=0.05, atol=0)
    assert torch.equal(module.eval()(x), module(x))
    module.train().attn_dropout.p = 0.9
    assert not is_fused(module, x)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["nanogpt", "alibi", "t5"])
def test_it_can_be_compiled_afterwards(name: str) -> None:
    plain, rewritten, _ = pair(name)
    compiled = torch.compile(copy.deepcopy(rewritten).eval(), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens()), plain.eval()(tokens()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", OTHER, ids=lambda kind: kind.__name__)
def test_what_only_looks_like_attention_is_left_alone_with_a_reason(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = kind(), torch.randn(2, 12, WIDTH)
    found = rewrite(module, x)
    assert (found["found"], type(module)) == (0, kind)
    assert len(found["refused"]) == 1
    assert re.search(OTHER[kind], found["refused"][""]), found["refused"]


def test_a_window_that_no_batch_has_reached_is_not_taken_for_causal() -> None:
    torch.manual_seed(0)
    module = Window()
    plain = copy.deepcopy(module)
    found = rewrite(module, torch.randn(2, 12, WIDTH))
    assert (found["found"], found["causal"]) == (1, 0)
    x = torch.randn(2, 64, WIDTH)
    torch.testing.assert_close(module(x), plain(x), rtol=1e-4, atol=1e-5)


def test_a_length_that_is_equal_to_the_width_is_free_all_the_same() -> None:
    torch.manual_seed(0)
    size = Size(width=16, length=16)
    module = NanoGPT(size)
    found = rewrite(module, torch.randn(3, 16, 16))
    assert (found["found"], found["causal"]) == (1, 1)
    assert is_fused(module, torch.randn(3, 16, 16))
    assert is_fused(module, torch.randn(2, 9, 16))


def test_a_sample_of_padding_alone_computes_the_same() -> None:
    torch.manual_seed(0)
    module, x, keep = Padding(), torch.randn(3, 12, WIDTH), torch.ones(3, 12, dtype=torch.bool)
    keep[1, 5:] = False
    plain = copy.deepcopy(module)
    assert rewrite(module, x, keep)["found"] == 1
    keep = keep.clone()
    keep[2] = False
    torch.testing.assert_close(module(x, keep), plain(x, keep), rtol=1e-4, atol=1e-5)
    assert is_fused(module, x, keep=keep)


def test_probabilities_that_the_caller_drops_are_found_in_the_caller() -> None:
    torch.manual_seed(0)
    module, x = TwoMembers(), torch.randn(2, 12, WIDTH)
    plain = copy.deepcopy(module)
    found = rewrite(module, x)
    assert (found["modules"], found["refused"]) == ([""], {})
    assert is_fused(module, x)
    same_training(plain, module, x)


def test_a_training_is_surveyed_on_copies_and_left_as_it_is() -> None:
    torch.manual_seed(0)
    model = Model(NanoGPT, Size(layers=2))
    before = copy.deepcopy(model.state_dict())

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    found = survey_training(model, loss, tokens(), switch_attention)
    assert (found["modules"], found["found"], found["switch"]) == (["layers.*"], 2, False)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert type(model.layers[0]) is NanoGPT


def test_a_layer_that_differs_from_the_others_is_captured_by_itself() -> None:
    torch.manual_seed(0)
    model = Model(NanoGPT, Size(layers=2))
    model.layers[1].n_head = 2
    plain = copy.deepcopy(model)
    found = rewrite(model, tokens())
    assert found["modules"] == ["layers.0", "layers.1"]
    same_training(plain, model, tokens())
