"""Clients, and requests that are answered together."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from autoopt.latency.serving.calls import cut_to
from autoopt.latency.serving.load import Batcher, measure, together
from autoopt.latency.serving.trees import cut, joined, shortened


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


def test_requests_of_different_shapes_are_answered_one_by_one() -> None:
    pair = [((torch.ones(1, 2),), {}), ((torch.ones(1, 3),), {})]
    assert [answer.shape[1] for answer in together(double, pair)] == [2, 3]


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
