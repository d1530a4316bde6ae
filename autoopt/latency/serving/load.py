"""Requests under one client or several, each timed from asking to the answer on the host."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from .requests import cut, joined, mapped, samples_of

Request = tuple[Any, Any]
Ask = Callable[[Request], Any]
WAIT_SECONDS = 0.002
"""How long a batching server waits for further requests, once it has one."""


def asker(model: Any, device: str = "cpu") -> Ask:
    """Asks the model: inputs to its device, the answer back to the host."""
    there = torch.device(device)

    def ask(request: Request) -> Any:
        with torch.inference_mode():
            args, kwargs = request if there.type == "cpu" else mapped(request, lambda tensor: tensor.to(there))
            answer = model(*args, **kwargs)
            return answer if there.type == "cpu" else mapped(answer, lambda tensor: tensor.cpu())

    return ask


class Batcher:
    """Answers together what waits together. Use as a context; ``ask`` from any thread.

    Args:
        ask: answers one request, or several joined.
        most: requests that are answered together at most.
    """

    def __init__(self, ask: Ask, most: int, wait: float = WAIT_SECONDS) -> None:
        self._ask, self._most, self._wait = ask, most, wait
        self._waiting: queue.Queue[tuple[Request, list[Any], threading.Event] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Batcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.put(None)
        self._thread.join()

    def ask(self, request: Request) -> Any:
        answered: list[Any] = []
        event = threading.Event()
        self._waiting.put((request, answered, event))
        event.wait()
        if isinstance(answered[0], BaseException):
            raise answered[0]
        return answered[0]

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            group, until, over = [first], time.perf_counter() + self._wait, False
            while len(group) < self._most:
                try:
                    more = self._waiting.get(timeout=max(until - time.perf_counter(), 0.0))
                except queue.Empty:
                    break
                if more is None:
                    over = True
                    break
                group.append(more)
            self._answer(group)
            if over:
                return

    def _answer(self, group: list[tuple[Request, list[Any], threading.Event]]) -> None:
        try:
            answers = together(self._ask, [request for request, _, _ in group])
        except BaseException as error:
            answers = [error] * len(group)
        for answer, (_, answered, event) in zip(answers, group, strict=True):
            answered.append(answer)
            event.set()


def together(ask: Ask, requests: list[Request]) -> list[Any]:
    """Answers of several requests by one call where their shapes allow it, else one by one."""
    if len(requests) == 1:
        return [ask(requests[0])]
    try:
        batch = joined(requests)
    except ValueError:
        return [ask(request) for request in requests]
    answer, answers, start = ask(batch), [], 0
    for request in requests:
        stop = start + samples_of(request)
        answers.append(cut(answer, start, stop))
        start = stop
    return answers


def measure(
    ask: Ask, requests: list[Request], *, clients: int, seconds: float, least: int, first: int = 0
) -> tuple[list[float], float]:
    """Latencies of requests, each client asking again as soon as it has its answer.

    Args:
        seconds: until no further request is begun.
        least: requests that are asked in any case.
        first: which request comes first; they come round and round.

    Returns:
        Seconds of each request, in the order in which they ended; seconds from the first question to the last answer.
    """
    found: list[float] = []
    taken = iter(range(first, first + 10**9))
    lock = threading.Lock()
    trouble: list[BaseException] = []
    began = time.perf_counter()

    def client() -> None:
        while not trouble:
            with lock:
                place = next(taken)
                if place - first >= least and time.perf_counter() - began >= seconds:
                    return
            request = requests[place % len(requests)]
            asked = time.perf_counter()
            try:
                ask(request)
            except BaseException as error:
                trouble.append(error)
                return
            found.append(time.perf_counter() - asked)

    if clients == 1:
        client()
    else:
        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if trouble:
        raise trouble[0]
    return found, time.perf_counter() - began


def quantile(values: list[float], q: float) -> float:
    """A quantile of a sample, median-unbiased (Hyndman and Fan's eighth)."""
    ordered = sorted(values)
    place = (len(ordered) + 1 / 3) * q + 1 / 3 - 1
    low = min(max(int(place // 1), 0), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * min(max(place - low, 0.0), 1.0)
