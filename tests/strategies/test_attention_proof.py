"""The work of a search for attention: layers that are alike are captured once, and proofs take few samples."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoopt_strategies.compute.attention import proven
from autoopt_strategies.compute.attention.prove import few, sample_places
from autoopt_strategies.compute.attention.survey import rewrite, survey_training

WIDTH = 16


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The modules that are captured, in their order."""
    seen: list[nn.Module] = []

    def noted(module: nn.Module, given: dict[str, Any]) -> Any:
        seen.append(module)
        return capture(module, given)

    capture = proven.capture
    monkeypatch.setattr(proven, "capture", noted)
    return seen


class Plain(nn.Module):
    """Attention of one head over the places of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        return self.q(x) @ self.k(x).mT / 4.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(x).softmax(-1) @ self.v(x)


class Causal(Plain):
    """Each place reads those before it; or, turned round, those after it."""

    def __init__(self, later: bool = False) -> None:
        super().__init__()
        self.later = later

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        allowed = allowed.triu() if self.later else allowed.tril()
        return self.scores(x).masked_fill(~allowed, float("-inf")).softmax(-1) @ self.v(x)


class LengthFirst(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x.transpose(0, 1)).transpose(0, 1)


class Together(Plain):
    """Samples that touch each other: each reads the mean of the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(0))


class Capped(Plain):
    """No attention that can be rewritten."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(x).tanh().softmax(-1) @ self.v(x)


class Doubling(Plain):
    """Its scale changes with the mode, which its forward does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def train(self, mode: bool = True) -> Any:
        self.scale = 1.0 if mode else 2.0
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scores(x) * self.scale).softmax(-1) @ self.v(x)


class Dropping(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.scores(x).softmax(-1), 0.1, self.training) @ self.v(x)


class GivesProbabilities(Plain):
    """As the library's own do, of which it passes for one."""

    __module__ = "transformers.models.made_up"

    def forward(self, x: torch.Tensor) -> Any:
        probabilities = self.scores(x).softmax(-1)
        return probabilities @ self.v(x), probabilities


class Padded(Plain):
    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return self.scores(x).masked_fill(~keep[:, None, :], float("-inf")).softmax(-1) @ self.v(x)


def stack(make: Callable[[], nn.Module], layers: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(make() for _ in range(layers)))


def samples(count: int = 5, length: int = 12) -> torch.Tensor:
    return torch.randn(count, length, WIDTH, generator=torch.Generator().manual_seed(0))


def test_layers_that_are_alike_are_captured_once(captures: list[nn.Module]) -> None:
    found = rewrite(stack(Plain), samples())
    assert (found["modules"], len(captures)) == (["*"], 1)  # nothing in it reads the mode


def test_layers_that_are_alike_are_refused_once_each_with_the_reason(captures: list[nn.Module]) -> None:
    found = rewrite(stack(Capped, layers=1), samples())
    alone = len(captures)
    several = rewrite(stack(Capped), samples())
    assert (several["found"], sorted(several["refused"])) == (0, ["0", "1", "2", "3"])
    assert set(several["refused"].values()) == {found["refused"]["0"]}
    assert len(captures) == 2 * alone


def test_a_refused_layer_says_nothing_of_another_kind_of_layer() -> None:
    kinds = itertools.cycle((Capped, Plain))
    found = rewrite(stack(lambda: next(kinds)()), samples())
    assert (found["modules"], sorted(found["refused"])) == (["1", "3"], ["0", "2"])


def test_what_reads_the_mode_or_changes_with_it_is_captured_in_both() -> None:
    def decides(module: nn.Module) -> bool:
        return proven.decides_by_mode(module, proven.capture(module, {"x": samples()}))

    assert not decides(Plain())
    assert decides(Doubling())
    assert decides(Dropping())


def test_probabilities_are_left_out_in_training_alone_where_the_mode_is_not_read() -> None:
    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = GivesProbabilities()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x)[0]

    torch.manual_seed(0)
    model = Caller()
    assert rewrite(model, samples())["found"] == 1
    assert model.attention(samples())[1] is None
    assert model.eval().attention(samples())[1] is not None


@pytest.mark.parametrize("later", [False, True])
def test_the_batch_is_told_from_the_length(later: bool) -> None:
    torch.manual_seed(0)
    module = Causal(later)
    assert sample_places(module, {"x": samples()}) == [(0, 0)]
    assert sample_places(LengthFirst(module), {"x": samples()}) == [(0, 1)]
    assert sample_places(module, {"x": samples(12, 12)}) == [(0, 0)]


def test_samples_that_touch_each_other_are_all_computed() -> None:
    torch.manual_seed(0)
    assert not sample_places(Together(), {"x": samples()})
    assert not sample_places(LengthFirst(Together()), {"x": samples()})


def test_the_first_and_the_last_sample_are_taken_and_what_has_no_samples_stays() -> None:
    x, table = samples(), torch.zeros(12, 12)
    given = {"x": x, "flag": True, "table": table}
    taken = few(given, [(0, 0)])
    assert torch.equal(taken["x"], x[[0, 4]])
    assert (taken["flag"], taken["table"] is table) == (True, True)
    assert few({"x": x[:2]}, [(0, 0)])["x"].shape == (2, 12, WIDTH)


def test_a_sample_in_the_middle_that_comes_out_otherwise_is_refused() -> None:
    """All its keys are padding: the softmax gives no numbers there, the operator may."""
    torch.manual_seed(0)
    keep = torch.ones(5, 12, dtype=torch.bool)
    keep[2] = False
    kept = Padded()
    assert sample_places(kept, {"x": samples(), "keep": keep})

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.mse_loss(model(*batch), batch[0])

    found = survey_training(copy.deepcopy(kept), loss, (samples(), keep), lambda _: 0)
    assert found["found"] == 0
    assert found["refused"]
