"""Forward and backward replayed, on the CPU: a stand-in for torch's recording, which writes gradients to one place."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from autoopt_strategies.compute import cuda_graphs


class Recorded(torch.autograd.Function):
    """As ``make_graphed_callables`` replays a backward pass: each gradient at the place of the one before it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.place = place
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight = ctx.saved_tensors
        ctx.place.copy_(grads[0].t() @ x)
        return grads[0] @ weight, ctx.place.detach(), None


def recording(model: Any, samples: tuple[torch.Tensor, ...]) -> Any:
    model(*samples)  # a pass before recording
    place = torch.zeros_like(model.weight)
    model.forward = lambda x: Recorded.apply(x, model.weight, place)
    return model


class Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3, bias=False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", recording)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    torch.manual_seed(0)
    return cuda_graphs.graphed(Counting())


def test_gradients_of_micro_batches_add_up(model: nn.Module) -> None:
    plain = nn.Linear(4, 3, bias=False)
    plain.load_state_dict({"weight": model.weight.detach().clone()})
    for _ in range(3):
        x = torch.randn(5, 4)
        for each in (model, plain):
            each(x).square().sum().backward()
    torch.testing.assert_close(model.weight.grad, plain.weight.grad)


def test_passes_before_the_recording_leave_no_trace(model: nn.Module) -> None:
    model(torch.randn(5, 4))
    assert model.calls == 0


def test_other_shapes_and_evaluation_run_as_before(model: nn.Module) -> None:
    model(torch.randn(5, 4))
    model(torch.randn(2, 4))
    model.eval()
    model(torch.randn(5, 4))
    with torch.no_grad():
        model.train()(torch.randn(5, 4))
    assert model.calls == 3


def test_a_loader_s_thread_may_pin_memory_while_torch_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the global mode, torch's default, an allocation of any thread ends the recording."""
    modes: list[str] = []

    def graph(kept: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "global") -> Any:
        modes.append(capture_error_mode)
        return nullcontext()

    def as_torch_does(model: Any, samples: Any) -> Any:
        for _ in range(2):  # forward, backward
            with torch.cuda.graph(None, pool=None):
                pass
        return recording(model, samples)

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", as_torch_does)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    cuda_graphs.graphed(Counting())(torch.randn(5, 4))
    assert modes == ["thread_local", "thread_local"]
    assert torch.cuda.graph is graph
