"""The drop of a metric and its interval."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autoopt.latency.quality import drop, judged, paired_proportions
from autoopt.records.latency import Judged


def accuracy(model: Any, batches: Any) -> dict[str, float]:
    hits = total = 0
    for x, y in batches:
        hits += int((model(x).argmax(1) == y).sum())
        total += len(y)
    return {"accuracy": hits / total}


def f1(model: Any, batches: Any) -> dict[str, float]:
    said, true = [], []
    for x, y in batches:
        said.append(model(x).argmax(1))
        true.append(y)
    one, two = torch.cat(said), torch.cat(true)
    both = int(((one == 1) & (two == 1)).sum())
    return {"f1": 2 * both / (int((one == 1).sum()) + int((two == 1).sum()))}


def data(n: int = 90) -> tuple[nn.Module, list[Any]]:
    torch.manual_seed(0)
    x = torch.randn(n, 4)
    y = (x[:, 0] + 0.4 * torch.randn(n) > 0).long()
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
        model.weight[1, 0] = 1.0
    return model, [(x[i : i + 32], y[i : i + 32]) for i in range(0, n, 32)]


def test_a_mean_over_samples_is_taken_apart() -> None:
    model, batches = data()
    found = judged(model, accuracy, batches, "accuracy", 0)
    assert (found.samples, len(found.each)) == (90, 90)
    assert found.metric == pytest.approx(np.mean(found.each))
    assert not found.resampled


def test_any_other_metric_is_resampled_alike_for_every_variant() -> None:
    model, batches = data()
    one, two = (judged(model, f1, batches, "f1", 7) for _ in range(2))
    assert not one.each
    assert len(one.resampled) >= 60
    assert one.resampled == two.resampled
    lost = drop(one, two, "max")
    assert lost is not None
    assert lost.value == 0.0
    assert lost.low < 0.0 < lost.high  # what differs nowhere here may differ elsewhere


def test_an_evaluation_that_asks_twice_has_no_interval_and_says_why() -> None:
    def twice(model: Any, batches: Any) -> dict[str, float]:
        accuracy(model, batches)
        return accuracy(model, batches)

    model, batches = data()
    found = judged(model, twice, batches, "accuracy", 0)
    assert "6 times for 3 batches" in found.note
    assert drop(found, found, "max") is None


def test_the_score_interval_where_nothing_differs_and_where_both_differ() -> None:
    low, high = paired_proportions(0, 0, 100, confidence=0.95)
    assert high == pytest.approx(3.8415 / 103.8415, rel=1e-3)
    assert low == pytest.approx(-high)
    low, high = paired_proportions(12, 2, 50, confidence=0.95)  # asymmetric, around 0.2
    assert 0.05 < low < 0.2 < high < 0.35


def test_the_score_interval_holds_as_often_as_it_says() -> None:
    rng, held = np.random.default_rng(1), 0
    for _ in range(400):
        lost, won, _ = rng.multinomial(200, [0.03, 0.01, 0.96])
        low, high = paired_proportions(int(lost), int(won), 200)
        held += low <= 0.02 <= high
    assert held / 400 > 0.86


def test_a_loss_that_rises_is_a_drop() -> None:
    one = Judged(metric=0.5, samples=4, each=(0.4, 0.5, 0.6, 0.5))
    two = Judged(metric=0.55, samples=4, each=(0.45, 0.55, 0.65, 0.55))
    lost = drop(one, two, "min")
    assert lost is not None
    assert lost.value == pytest.approx(0.1)
    gained = drop(one, two, "max")
    assert gained is not None
    assert gained.value == pytest.approx(-0.1)


def test_a_drop_of_a_metric_of_zero_has_no_fraction() -> None:
    nothing = Judged(metric=0.0, samples=4, each=(0.0,) * 4)
    assert drop(nothing, nothing, "max") is None
