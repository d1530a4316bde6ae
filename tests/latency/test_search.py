"""Which variants are tried and taken, what they lose, and how their latency is measured."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import nn

from autoopt.errors import TrialFailed, UsageError, WorkloadError
from autoopt.latency.choice import candidates, chosen, marked, merged, within
from autoopt.latency.measuring import Servers, over_processes, tail
from autoopt.latency.options import Serve, parse_latency, parse_shares, pattern
from autoopt.latency.quality import drop, judged, paired_proportions
from autoopt.latency.search import Search
from autoopt.latency.serving.requests import Batcher, cut, cut_to, joined, measure, shortened, together
from autoopt.latency.serving.variants import Variant
from autoopt.options import Options
from autoopt.records import Environment, Estimate
from autoopt.records.latency import Judged, Latency, Served
from autoopt.records.messages import Block
from autoopt.storage.journal import table
from autoopt_reports import latency as reported
from workloads.large import accuracy


class Machine:
    """Serves on a clock of its own: processes differ by a few per cent, requests by more.

    Args:
        speeds: P95 in seconds by variant's name; what is not named cannot be made or opened.
        prepare: seconds that an artefact takes; more than is given ends in a timeout.
        luck: scatter of processes (log).
    """

    def __init__(self, speeds: dict[str, float], prepare: float = 1.0, luck: float = 0.03) -> None:
        self.speeds, self.prepare, self.luck = speeds, prepare, luck
        self.now, self.rng, self.started = 0.0, np.random.default_rng(5), list[str]()
        self.alive = 0
        self.base, self.latest_log = SimpleNamespace(seed=0), None
        self.given: list[float] = []

    def clock(self) -> float:
        return self.now

    def launch(self, plan: Any, label: str) -> Process:
        self.alive += 1
        return Process(self)

    @contextmanager
    def trial(self, plan: Any, label: str) -> Iterator[Process]:
        process = self.launch(plan, label)
        yield process
        process.close()


class Process:
    def __init__(self, machine: Machine) -> None:
        self.machine, self.speed = machine, 0.0

    def call(self, task: str, *, timeout: float | None = None, **given: Any) -> Any:
        machine, name = self.machine, task.rpartition(":")[2]
        if name == "describe":
            return {
                "device": "cpu", "linear": True, "convolutions": True, "threads": 2, "requests": 256, "mode": "max",
                "metric": "accuracy",
            }  # fmt: skip
        if name == "environment":
            return Environment(python="3.12", device="cpu").model_dump()
        if name == "make":
            machine.given.append(timeout)
            machine.now += min(machine.prepare, timeout)
            if machine.prepare > timeout:
                raise TrialFailed("timeout", f"no answer within {timeout:g} s")
            return {"seconds": machine.prepare}
        if name == "start":
            variant = Variant(**given["variant"]).name
            machine.now += 1.0
            machine.started.append(variant)
            if variant not in machine.speeds:
                raise TrialFailed("error", "it does not open")
            self.speed = machine.speeds[variant] * float(np.exp(machine.luck * machine.rng.standard_normal()))
            return {
                "load_seconds": 0.5, "first_seconds": 0.1, "model_bytes": 1000,
                "warm_up_seconds": 10 * self.speed, "warm_up_requests": 10,
            }  # fmt: skip
        if name == "judge":
            return {"metric": 0.9, "samples": 400, "each": [1.0] * 360 + [0.0] * 40}
        count = max(given["min_steps"], int(given["seconds"] / self.speed))
        spread = 0.2 * machine.rng.standard_normal(count)
        latencies = [self.speed * float(np.exp(each - 0.2 * 1.645)) for each in spread]
        machine.now += sum(latencies)
        return Block(steps=count, samples=count, seconds=sum(latencies), step_seconds=tuple(latencies)).model_dump()

    def freeze(self) -> None: ...
    def thaw(self) -> None: ...

    def close(self) -> None:
        self.machine.alive -= 1


def searched(machine: Machine, budget: float, limit: float | None = 0.02) -> tuple[Search, Latency]:
    servers = Servers(machine, Serve(limit_seconds=limit), Path("artefacts"), machine.clock)  # type: ignore[arg-type]
    search = Search(servers, Options(budget_seconds=budget), lambda text: None)
    return search, search.run("module:build")


def test_the_variant_within_the_limit_is_confirmed_in_fresh_processes() -> None:
    machine = Machine({"as it is": 0.030, "threads 1": 0.010, "bfloat16": 0.040})
    search, found = searched(machine, 300.0)
    best = found.variant("threads 1")
    assert (found.chosen, found.holds, machine.alive) == ("threads 1", "yes", 0)
    assert best.p95.n >= 3
    assert best.p95.low <= 0.010 <= best.p95.high
    assert best.ratio.low <= 3.0 <= best.ratio.high
    assert found.control.low <= 1.0 <= found.control.high
    slow = found.variant("bfloat16")
    assert slow.p95 is None or slow.fits == "no"
    assert {entry.evidence for entry in search.account} >= {"screening threads 1", "confirmation"}
    assert "threads 1" in table(search.account)
    assert found.seconds <= 1.1 * found.budget_seconds


@pytest.mark.parametrize("budget", [80.0, 110.0])
def test_what_takes_long_to_make_leaves_the_time_to_confirm_others(budget: float) -> None:
    """Half a minute of compiling must not leave the others with fewer processes than an interval needs."""
    machine = Machine({"as it is": 0.010, "threads 1": 0.004}, prepare=1000.0)
    _, found = searched(machine, budget)
    assert machine.given
    assert (found.chosen, found.holds) == ("threads 1", "yes")
    assert found.seconds <= 1.1 * budget
    assert any(variant.status == "failed" and "timeout" in variant.reason for variant in found.variants)
    assert any(variant.status == "not_tried" for variant in found.variants)


def test_a_model_that_does_not_answer_as_it_is_is_the_workloads_error() -> None:
    machine = Machine({"threads 1": 0.010})
    with pytest.raises(WorkloadError, match="as it is does not answer: error: it does not open"):
        searched(machine, 60.0)
    assert machine.alive == 0


def test_too_little_time_gives_no_interval_and_says_what_is_needed() -> None:
    _, found = searched(Machine({"as it is": 0.010, "threads 1": 0.004}), 30.0)
    assert (found.chosen, found.holds) == (None, "undecided")
    assert any("fresh processes, 3 are needed" in variant.reason for variant in found.variants)


# Which variants are tried, and which one is taken.


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


BASE = served("as it is", 0.120, 90.0, 0.0)
UNDECIDED = {"drop": Estimate(value=0.0, low=-0.02, high=0.02, confidence=0.9, n=500), "keeps": "undecided"}


@pytest.mark.parametrize(
    ("variants", "limit", "taken", "reason"),
    [
        ((BASE, served("quick", 0.030, 95.0, 0.0, fits=None)), None, ("quick", None), "the lowest P95"),
        ((BASE, served("lossy", 0.020, 10.0, 0.050)), 0.080, (None, "no"), "the nearest is"),
        ((BASE, served("quick", 0.030, 40.0, 0.0).model_copy(update=UNDECIDED)), 0.080, (None, "undecided"),
         "about 2001 validation samples would decide it, 500 are there"),
    ],
)  # fmt: skip
def test_what_is_taken_without_a_limit_and_what_is_said_where_nothing_holds(
    variants: tuple[Served, ...], limit: float | None, taken: tuple[str | None, str | None], reason: str
) -> None:
    if limit is None:
        variants = tuple(variant.model_copy(update={"fits": None}) for variant in variants)
    found = document(*variants, limit=limit)
    assert (found.chosen, found.holds) == taken
    assert reason in found.reason


def test_the_knee_is_nearest_to_the_best_of_every_axis() -> None:
    found = document(
        served("as it is", 0.100, 90.0, 0.0), served("bent", 0.030, 20.0, 0.001), served("lossy", 0.025, 18.0, 0.009)
    )
    assert [v.name for v in found.variants if v.knee] == ["bent"]


def test_what_cannot_be_is_not_applicable_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    found = dict(candidates({"device": "cpu", "linear": False, "convolutions": False, "threads": 1}, Serve()))
    assert found[Variant(threads=1)] == "one thread is what there is"
    assert found[Variant(channels_last=True)] == "the model has no 2-d convolution"
    assert found[Variant(precision="float16")]
    assert found[Variant(precision="bfloat16")] == ""
    assert found[Variant(batching=8)] == "one client at a time leaves nothing to batch"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = dict(candidates({"device": "cpu", "linear": True, "convolutions": True, "threads": 2}, Serve()))
    assert found[Variant(engine="onnxruntime")] == "onnxruntime is not installed: pip install 'torch-autoopt[serving]'"


def test_variants_go_together_or_exclude_each_other() -> None:
    onnx, threads, half = Variant(engine="onnxruntime"), Variant(threads=1), Variant(precision="bfloat16")
    assert merged(onnx, threads) == Variant(engine="onnxruntime", threads=1)
    assert merged(onnx, onnx) is None
    assert merged(onnx, half) is None
    assert merged(onnx, Variant(engine="compile")) is None
    assert merged(Variant(engine="compile"), half) == Variant(engine="compile", precision="bfloat16")
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
    assert page.count('class="rule p-target"') == 3, "the limit on both planes, and the drop that is allowed on one"


# The drop of a metric and its interval.


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
    assert lost.value == pytest.approx(0.1)
    gained = drop(one, two, "max")
    assert gained.value == pytest.approx(-0.1)
    nothing = Judged(metric=0.0, samples=4, each=(0.0,) * 4)
    assert drop(nothing, nothing, "max") is None, "there is no fraction of zero"


# Intervals of a P95: what a process is worth, and how often they hold.


def test_the_interval_holds_as_often_as_it_says_where_processes_differ() -> None:
    """Lognormal requests, bursts of the machine, and a luck of each process: an interval from requests would fail."""
    rng, held, by_requests, runs = np.random.default_rng(3), 0, 0, 400
    truth = np.quantile(np.exp(0.25 * rng.standard_normal(400_000)), 0.95)
    for _ in range(runs):
        processes, pooled = [], []
        for luck in np.exp(0.04 * rng.standard_normal(4)):
            blocks = luck * np.exp(0.25 * rng.standard_normal((6, 20)))
            processes.append(tail(blocks.tolist()))
            pooled += blocks.ravel().tolist()
        found = over_processes(processes)
        held += found.low <= truth <= found.high
        low, high = (int(binom.ppf(tail, len(pooled), 0.95)) for tail in (0.05, 0.95))
        ordered = sorted(pooled)
        by_requests += ordered[low - 1] <= truth <= ordered[high]
    assert held / runs > 0.86
    assert by_requests < held


# Clients, and requests that are answered together.


def requests(count: int, samples: int = 1) -> list[Any]:
    return [((torch.full((samples, 2), float(place)),), {}) for place in range(count)]


def double(request: Any) -> Any:
    return request[0][0] * 2


@pytest.mark.parametrize("clients", [1, 3])
def test_so_many_requests_at_least_and_each_in_its_turn(clients: int) -> None:
    seen: list[float] = []
    lock = threading.Lock()

    def ask(request: Any) -> None:
        with lock:
            seen.append(float(request[0][0][0, 0]))

    found, spent = measure(ask, requests(4), clients=clients, seconds=0.0, least=10)
    assert len(found) == len(seen) >= 10
    assert sorted(seen[:10]) == sorted([0.0, 1.0, 2.0, 3.0] * 2 + [0.0, 1.0])
    assert 0 <= max(found) <= spent


@pytest.mark.parametrize("clients", [1, 3])
def test_an_error_of_the_model_ends_the_measurement(clients: int) -> None:
    def ask(request: Any) -> None:
        raise ValueError("broken on purpose")

    with pytest.raises(ValueError, match="broken on purpose"):
        measure(ask, requests(2), clients=clients, seconds=60.0, least=5)


def test_requests_of_one_shape_are_answered_by_one_call() -> None:
    calls = []

    def ask(request: Any) -> Any:
        calls.append(len(request[0][0]))
        return double(request)

    answers = together(ask, [*requests(3), *requests(1, samples=2)])
    assert calls == [5]
    assert [len(answer) for answer in answers] == [1, 1, 1, 2]
    assert torch.equal(answers[2], torch.full((1, 2), 4.0))
    pair = [((torch.ones(1, 2),), {}), ((torch.ones(1, 3),), {})]
    assert [answer.shape[1] for answer in together(double, pair)] == [2, 3], "other shapes are answered one by one"


def test_what_waits_together_is_answered_together() -> None:
    sizes: list[int] = []
    gate = threading.Event()

    def ask(request: Any) -> Any:
        gate.wait(10.0)
        sizes.append(len(request[0][0]))
        return double(request)

    with Batcher(ask, most=4, wait=5.0) as batcher:
        found: dict[int, Any] = {}
        clients = [
            threading.Thread(target=lambda place=place: found.update({place: batcher.ask(requests(9)[place])}))
            for place in range(8)
        ]
        for client in clients:
            client.start()
        gate.set()
        for client in clients:
            client.join()
    assert sizes == [4, 4]
    assert all(torch.equal(found[place], torch.full((1, 2), 2.0 * place)) for place in range(8))


def test_an_error_reaches_the_client_that_asked() -> None:
    def ask(request: Any) -> Any:
        raise ValueError("broken on purpose")

    with Batcher(ask, most=2, wait=0.0) as batcher, pytest.raises(ValueError, match="broken on purpose"):
        batcher.ask(requests(1)[0])


def test_batches_are_cut_into_requests_of_given_sizes_and_lengths() -> None:
    batch = {"ids": torch.arange(30).reshape(5, 6), "weight": torch.ones(5, 6), "text": list("abcde"), "scale": 2}
    parts = list(cut_to([batch], iter([2, 1, 2]), iter([None, 3, None])))
    assert [len(part["ids"]) for part in parts] == [2, 1, 2]
    assert parts[1]["ids"].tolist() == [[12, 13, 14]]
    assert parts[1]["weight"].shape == (1, 6)  # only whole numbers are tokens
    assert [part["text"] for part in parts] == [["a", "b"], ["c"], ["d", "e"]]
    assert joined([parts[0], parts[2]])["ids"].shape == (4, 6)
    assert shortened(batch, 2)["ids"].shape == (5, 2)
    assert cut((torch.ones(5), torch.tensor(3.0)), 1, 3)[1].dim() == 0
