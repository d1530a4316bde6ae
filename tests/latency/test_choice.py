"""Which variants are tried, and which one is taken."""

from __future__ import annotations

from typing import Any

import pytest

from autoopt.errors import UsageError
from autoopt.latency.choice import Model, candidates, chosen, combinations, marked, merged, within
from autoopt.latency.options import parse_latency, parse_shares, pattern
from autoopt.latency.serving.variants import Variant
from autoopt.records import Estimate
from autoopt.records.latency import Latency, Served
from autoopt_reports import latency as reported


def estimate(value: float, room: float = 0.1) -> Estimate:
    return Estimate(value=value, low=value * (1 - room), high=value * (1 + room), confidence=0.9, n=4)


def lost(value: float, room: float = 0.002) -> Estimate:
    return Estimate(value=value, low=value - room, high=value + room, confidence=0.9, n=500)


def served(name: str, p95: float, cost: float, drop: float, **other: Any) -> Served:
    drops, tails = lost(drop), estimate(p95)
    fields: dict[str, Any] = {"fits": within(tails, 0.080), "keeps": within(drops, 0.01), **other}
    return Served(name=name, status="measured", p95=tails, drop=drops, cost_seconds=cost, **fields)


def document(*variants: Served, limit: float | None = 0.080) -> Latency:
    return chosen(
        Latency(
            autoopt_version="0", created="", seconds=1.0, budget_seconds=2.0, workload="m:b", weights="w", seed=0,
            limit_seconds=limit, max_drop=0.01, clients=1, requests=10, metric="accuracy", mode="max",
            validation_samples=500, variants=marked(variants), batch={"1": 1.0},
        )
    )  # fmt: skip


def test_the_cheapest_of_those_that_hold_is_taken() -> None:
    found = document(
        served("as it is", 0.120, 90.0, 0.0),
        served("quick", 0.030, 40.0, 0.001),
        served("cheap", 0.060, 20.0, 0.002),
        served("lossy", 0.020, 10.0, 0.050),
        served("tight", 0.079, 15.0, 0.0),  # its interval ends beyond the limit
    )
    assert (found.chosen, found.holds) == ("cheap", "yes")
    assert "20 s of the machine instead of 90 s" in found.reason
    assert [v.name for v in found.variants if v.front] == ["quick", "cheap", "lossy", "tight"]


def test_without_a_limit_the_lowest_p95_that_keeps_the_quality() -> None:
    found = document(
        served("as it is", 0.120, 90.0, 0.0, fits=None), served("quick", 0.030, 95.0, 0.0, fits=None), limit=None
    )
    assert (found.chosen, found.holds) == ("quick", None)


def test_where_none_holds_the_nearest_is_named_and_what_it_lacks() -> None:
    found = document(served("as it is", 0.120, 90.0, 0.0), served("lossy", 0.020, 10.0, 0.050))
    assert (found.chosen, found.holds) == (None, "no")
    assert "nearest is as it is" in found.reason or "nearest is lossy" in found.reason


def test_what_is_undecided_says_how_many_samples_would_decide_it() -> None:
    drops = Estimate(value=0.0, low=-0.02, high=0.02, confidence=0.9, n=500)
    found = document(served("as it is", 0.120, 90.0, 0.0), served("quick", 0.030, 40.0, 0.0).model_copy(
        update={"drop": drops, "keeps": "undecided"}
    ))  # fmt: skip
    assert (found.chosen, found.holds) == (None, "undecided")
    assert "about 2001 validation samples would decide it, 500 are there" in found.reason


def test_the_knee_is_nearest_to_the_best_of_every_axis() -> None:
    found = document(
        served("as it is", 0.100, 90.0, 0.0), served("bent", 0.030, 20.0, 0.001), served("lossy", 0.025, 18.0, 0.009)
    )
    assert [v.name for v in found.variants if v.knee] == ["bent"]


def test_what_cannot_be_is_not_applicable_with_a_reason() -> None:
    found = dict(candidates(Model(device="cpu", linear=False, convolutions=False, threads=1)))
    assert found[Variant(threads=1)] == "one thread is what there is"
    assert found[Variant(channels_last=True)] == "the model has no 2-d convolution"
    assert found[Variant(precision="float16")]
    assert found[Variant(precision="bfloat16")] == ""
    assert found[Variant(batching=8)] == "one client at a time leaves nothing to batch"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = dict(candidates(Model(device="cpu", linear=True, convolutions=True, threads=2)))
    assert found[Variant(engine="onnxruntime")] == "onnxruntime is not installed: pip install 'torch-autoopt[serving]'"


def test_variants_go_together_or_exclude_each_other() -> None:
    onnx, threads, half = Variant(engine="onnxruntime"), Variant(threads=1), Variant(precision="bfloat16")
    assert merged(onnx, threads) == Variant(engine="onnxruntime", threads=1)
    assert merged(onnx, half) is None
    assert merged(onnx, Variant(engine="compile")) is None
    assert merged(Variant(engine="compile"), half) == Variant(engine="compile", precision="bfloat16")
    assert list(combinations(onnx, [onnx, threads, half])) == [Variant(engine="onnxruntime", threads=1)]
    assert Variant(engine="onnxruntime", precision="int8_static", threads=1).name == (
        "onnxruntime + int8_static + threads 1"
    )


@pytest.mark.parametrize(("text", "seconds"), [("80ms", 0.08), ("1.5s", 1.5), ("900us", 9e-4), (" 5 ms ", 0.005)])
def test_a_latency_with_its_unit(text: str, seconds: float) -> None:
    assert parse_latency(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["80", "ms", "-80ms", "0ms", "nan ms", "1e3ms", "2h", "", "٣ms"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_latency(text)
    assert "80ms" in caught.value.hint


def test_a_distribution_comes_round_evenly() -> None:
    assert pattern(parse_shares("8")) == (8,)
    order = pattern(parse_shares("1=80%,8=20%"))
    assert (order.count(1), order.count(8)) == (16, 4)
    assert order[:6].count(8) >= 1


@pytest.mark.parametrize("text", ["0", "1=50%", "1=50%,8=60%", "1,8", "a", "1=50%,1=50%", ""])
def test_a_bad_distribution_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_shares(text)


def test_page_and_terminal_show_what_the_document_holds_and_nothing_of_a_name_is_obeyed() -> None:
    found = document(
        served("as it is", 0.120, 90.0, 0.0), served("<script>alert(1)</script>{}", 0.030, 40.0, 0.001),
        Served(name="int8", status="failed", reason="error: {no} <b>"),
    )  # fmt: skip
    page = reported.page(found)
    assert "<script>alert" not in page
    assert "30 ms [27, 33], 4 processes" in page
    assert "int8: failed: error: {no} <b>" in "\n".join(reported.summary(found))
    lines = list(reported.summary(found))
    assert lines[0].startswith("P95 of 80 ms holds: ")
    assert "not measured" in page  # the model's bytes
