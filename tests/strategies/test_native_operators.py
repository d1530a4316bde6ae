"""Operators written out: what a module computes decides whether torch's own takes its place, and patches say how."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from autoopt.export.inline import Inliner
from autoopt_strategies.compute.native_operators import statements, transforms
from autoopt_strategies.compute.rewriting import native, survey
from autoopt_strategies.compute.rewriting.source import Refused
from workloads import operators
from workloads.operators import KNOWN, OTHER, WIDTH, Layers, RMSNorm, TextCNN

TEXT = Path(operators.__file__).read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed on this machine decides nothing here."""
    monkeypatch.setattr(native, "passes_ratio", lambda *_: 0.5)


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def rows() -> torch.Tensor:
    return torch.randn(6, 5, WIDTH, generator=torch.Generator().manual_seed(0))


def surveyed(kind: type[nn.Module]) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    model = Layers(kind)
    return model, native.survey_operators(model, loss, rows())


def rewritten(model: nn.Module, found: dict[str, Any]) -> nn.Module:
    changed = copy.deepcopy(model)
    for change in transforms(json.loads(json.dumps(found))):
        changed = change(changed)
    return changed


@pytest.mark.parametrize("kind", KNOWN, ids=lambda kind: kind.__name__)
def test_an_operator_that_is_written_out_becomes_one_call(kind: type[nn.Module]) -> None:
    model, found = surveyed(kind)
    assert [each["function"] for each in found["functions"]] == [f"{kind.__name__}.forward"], found["refused"]
    changed = rewritten(model, found)
    x, y = rows().requires_grad_(), rows().requires_grad_()
    torch.testing.assert_close(changed(y), model(x), rtol=1e-5, atol=1e-6)
    loss(model, x).backward()
    loss(changed, y).backward()
    for a, b in zip([x, *model.parameters()], [y, *changed.parameters()], strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-6)
    assert list(changed.state_dict()) == list(model.state_dict())
    (wanted,) = found["functions"]
    variant = {name: wanted[name] for name in ("native", "weight", "bias", "eps") if name in wanted}
    assert [text for _, _, text in statements(TEXT, wanted["function"], **variant) if text] == [KNOWN[kind]]


@pytest.mark.parametrize("kind", OTHER, ids=lambda kind: kind.__name__)
def test_what_computes_or_does_something_else_is_left_alone_with_a_reason(kind: type[nn.Module]) -> None:
    _, found = surveyed(kind)
    assert not found["functions"]
    assert re.search(OTHER[kind], found["refused"][kind.__name__]), found["refused"]


def test_modules_of_a_class_that_differ_keep_what_they_have() -> None:
    """One epsilon is an attribute, so it may differ; an attribute that chooses the operator may not."""

    class Chosen(nn.Module):
        def __init__(self, rate: float) -> None:
            super().__init__()
            self.rate = rate

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.sigmoid(self.rate * x)

    model = Layers(RMSNorm)
    model.operators[1].eps = 1e-3
    assert len(native.survey_operators(model, loss, rows())["functions"]) == 1
    model.operators = nn.ModuleList([Chosen(1.0), Chosen(1.5)])
    assert not native.survey_operators(model, loss, rows())["functions"]


def test_what_is_slower_on_its_input_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "passes_ratio", lambda *_: 1.25)
    _, found = surveyed(operators.NewGELU)
    assert (found["functions"], found["refused"]) == (
        [],
        {"NewGELU.forward": "gelu_tanh takes 1.25 times as long on this input"},
    )


def test_a_plan_holds_no_code() -> None:
    with pytest.raises(Refused, match="no name of an attribute"):
        statements(TEXT, "RMSNorm.forward", "rms_norm", weight="gain, print()")
    with pytest.raises(ValueError, match="could not convert"):
        statements(TEXT, "RMSNorm.forward", "rms_norm", weight="gain", eps="print()")


def test_a_convolution_over_whole_rows_is_a_product_of_windows() -> None:
    torch.manual_seed(0)
    model, x = TextCNN(), torch.randn(8, 20, 64)
    found = native.survey_operators(model, loss, x)
    line = next(number for number, text in enumerate(TEXT.splitlines(), 1) if "conv(x)" in text)
    assert found["convolutions"]["paths"] == ["convs.0", "convs.1", "convs.2"]
    assert [(each["line"], each["called"]) for each in found["convolutions"]["places"]] == [(line, "conv")]
    changed = rewritten(model, found)
    torch.testing.assert_close(changed(x), model(x), rtol=1e-4, atol=1e-5)
    assert isinstance(changed.convs[0], nn.Conv2d)  # type: ignore[index]


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(1, 4, (3, 63)),
        nn.Conv2d(1, 4, (3, 64), padding=(1, 0)),
        nn.Conv2d(1, 4, (3, 64), stride=(2, 1)),
        nn.Conv2d(1, 4, (3, 32), dilation=(1, 2)),
    ],
    ids=["narrower", "padded", "strided", "dilated"],
)
def test_another_convolution_stays(conv: nn.Module) -> None:
    model = nn.Sequential(conv)
    assert not native.survey_operators(model, loss, torch.randn(2, 1, 20, 64))["convolutions"]


def test_a_line_that_calls_other_modules_too_stays() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv2d(2, 4, (3, 64)), nn.Conv2d(2, 4, (3, 9))])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([conv(x).amax((2, 3)) for conv in self.convs])

    found = native.survey_operators(Mixed(), loss, torch.randn(2, 2, 20, 64))
    assert not found["convolutions"]
    assert found["refused"]["convs.0"] == "its line calls other modules, too"


def test_the_product_takes_several_channels() -> None:
    torch.manual_seed(0)
    conv, x = nn.Conv2d(3, 4, (3, 8), bias=False), torch.randn(2, 3, 9, 8)
    torch.testing.assert_close(native.convolved(conv, x), conv(x), rtol=1e-4, atol=1e-5)


class Tagger(nn.Module):
    """Packed sequences of several lengths, of whose last states it takes none, or one."""

    def __init__(self, rnn: nn.Module, cells: bool = False) -> None:
        super().__init__()
        self.rnn, self.cells = rnn, cells

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = torch.arange(len(x)) % 4 + 2
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, last = self.rnn(packed)
        padded, _ = pad_packed_sequence(outputs, batch_first=True)
        return padded.sum(1) + (last[1] if self.cells else last[0])[0].sum()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize(
    "how", [{}, {"bidirectional": True, "num_layers": 2, "dropout": 0.5}, {"bias": False}, {"batch_first": True}]
)
def test_packed_sequences_are_padded_and_draw_as_they_did(kind: Any, how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, x = Tagger(kind(6, 5, **how)), torch.randn(7, 5, 6)
    found = native.survey_operators(model, loss, x)
    assert found["recurrent"]["paths"] == ["rnn"], found["refused"]
    assert found["recurrent"]["places"][0]["called"] == "rnn"
    changed = copy.deepcopy(model)
    for change in transforms(found):
        changed = change(changed)
    for training in (True, False):
        results = []
        for each in (model, changed):
            torch.manual_seed(1)
            value = loss(each.train(training), x)
            results.append([value, *torch.autograd.grad(value, [*each.parameters()]), torch.rand(1)])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)
    assert torch.equal(results[0][-1], results[1][-1]), "as many numbers were drawn"


@pytest.mark.parametrize("first", [True, False])
def test_first_states_are_those_of_each_sequence(first: bool) -> None:
    torch.manual_seed(0)
    rnn, x = nn.LSTM(3, 4, bidirectional=True), torch.randn(6, 5, 3)
    packed = pack_padded_sequence(x, torch.tensor([2, 6, 1, 4, 3]), enforce_sorted=False)
    states = (torch.randn(2, 5, 4), torch.randn(2, 5, 4)) if first else None
    (expected, (hidden, _)), (outputs, (last, cells)) = rnn(packed, states), native.padded(rnn, packed, states)
    torch.testing.assert_close(outputs.data, expected.data)
    torch.testing.assert_close(last, hidden)
    assert cells is None
    assert torch.equal(native.padded(rnn, x)[0], rnn(x)[0]), "what is not packed goes as it did"


def test_last_cell_states_that_are_used_keep_the_packed_steps() -> None:
    found = native.survey_operators(Tagger(nn.LSTM(6, 6), cells=True), loss, torch.randn(7, 5, 6))
    assert not found["recurrent"]
    assert found["refused"][""]


def test_an_exported_script_holds_all_that_it_needs() -> None:
    inliner, function = Inliner(), {"module": "model", "function": "NewGELU.forward", "native": "gelu_tanh"}
    for change in transforms({"functions": [function], "convolutions": {"paths": ["convs.0"]}}):
        inliner.expression(change)
    text = "\n".join([*inliner.import_lines(), *inliner.definitions()])
    assert "autoopt" not in text
    compile(text, "optimized_train.py", "exec")


def test_the_time_of_both_is_taken_on_the_module_s_own_input() -> None:
    ratio = survey.passes_ratio(nn.GELU(), nn.GELU(), {"input": rows()})
    assert ratio > 0
