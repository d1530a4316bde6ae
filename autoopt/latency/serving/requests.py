"""Requests: calls of a workload's own evaluation to its model, cut from batches, joined, and answered from a record.

Under one client or several, each is timed from asking to the answer on the host.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import nn

Evaluate = Callable[[Any, Any], Any]


class Recorder(nn.Module):
    """Answers as a model does and keeps every call, ``(args, kwargs)``; its answers too where asked for."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.calls: list[tuple[Any, Any]] = []
        self.answers: list[Any] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        answer = self.model(*args, **kwargs)
        self.calls.append((args, kwargs))
        self.answers.append(answer)
        return answer


class Recorded(nn.Module):
    """Gives recorded answers again, in their order: an evaluation without its model."""

    def __init__(self, answers: Iterable[Any]) -> None:
        super().__init__()
        self._answers = iter(answers)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return next(self._answers)


def cut_to(batches: Iterable[Any], sizes: Iterable[int], lengths: Iterable[int | None]) -> Iterator[Any]:
    """Batches of given sizes, one after the other, shortened to given lengths (None: as they are)."""
    sizes, lengths = iter(sizes), iter(lengths)
    for batch in batches:
        whole, start = samples_of(batch), 0
        while start < whole:
            stop = min(start + next(sizes), whole)
            part, length = cut(batch, start, stop, whole), next(lengths)
            yield part if length is None else shortened(part, length)
            start = stop


def calls_of(model: Any, evaluate: Evaluate, batches: Iterable[Any]) -> list[tuple[Any, Any]]:
    """The calls that an evaluation of these batches makes of the model."""
    recorder = Recorder(model).eval()
    with torch.no_grad():
        evaluate(recorder, list(batches))
    return recorder.calls


def mapped(tree: Any, change: Callable[[torch.Tensor], Any], texts: Callable[[Any], Any] = lambda tree: tree) -> Any:
    """The same structure with each tensor and each list of text changed; what is neither stays."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        items = {key: mapped(value, change, texts) for key, value in tree.items()}
        try:
            return type(tree)(**items) if hasattr(tree, "to_tuple") else type(tree)(items)  # type: ignore[call-arg]
        except TypeError:
            return items
    if isinstance(tree, list | tuple):
        if tree and all(isinstance(item, str) for item in tree):
            return texts(tree)
        parts = [mapped(value, change, texts) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Every tensor, in a fixed order."""
    found: list[torch.Tensor] = []
    mapped(tree, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def samples_of(tree: Any) -> int:
    """Samples in a batch: the first dimension of its first tensor that has one.

    Raises:
        ValueError: it has none.
    """
    for tensor in tensors_of(tree):
        if tensor.dim():
            return int(tensor.shape[0])
    raise ValueError("a batch without tensors cannot be cut into requests")


def cut(tree: Any, start: int, stop: int, whole: int | None = None) -> Any:
    """Samples ``start`` to ``stop`` of a batch: of each tensor and each list of text that has one entry a sample."""
    count = samples_of(tree) if whole is None else whole
    return mapped(
        tree,
        lambda tensor: tensor[start:stop] if tensor.dim() and tensor.shape[0] == count else tensor,
        lambda texts: texts[start:stop] if len(texts) == count else texts,
    )


def shortened(tree: Any, length: int) -> Any:
    """Whole-number tensors (tokens, masks) cut to ``length`` along their second dimension."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        tokens = tensor.dim() >= 2 and not tensor.is_floating_point()
        return tensor[:, :length] if tokens else tensor

    return mapped(tree, change)


def joined(trees: list[Any]) -> Any:
    """Requests of one shape as one batch.

    Raises:
        ValueError: their structures or shapes differ.
    """
    columns = list(zip(*map(tensors_of, trees), strict=True))
    if any(tensor.shape[1:] != first.shape[1:] for first, *others in columns for tensor in others):
        raise ValueError("requests of different shapes make no batch")
    each = iter(columns)

    def whole(first: torch.Tensor) -> torch.Tensor:
        column = next(each)
        return torch.cat(column) if first.dim() else first

    return mapped(trees[0], whole)


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
        self._waiting: queue.Queue[tuple[Request, Future[Any]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Batcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.put(None)
        self._thread.join()

    def ask(self, request: Request) -> Any:
        answer: Future[Any] = Future()
        self._waiting.put((request, answer))
        return answer.result()

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

    def _answer(self, group: list[tuple[Request, Future[Any]]]) -> None:
        try:
            answers = together(self._ask, [request for request, _ in group])
        except BaseException as error:
            for _, waiting in group:
                waiting.set_exception(error)
            return
        for (_, waiting), answer in zip(group, answers, strict=True):
            waiting.set_result(answer)


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
        with ThreadPoolExecutor(clients) as threads:
            for _ in range(clients):
                threads.submit(client)
    if trouble:
        raise trouble[0]
    return found, time.perf_counter() - began


def quantile(values: list[float], q: float) -> float:
    """A quantile of a sample, median-unbiased (Hyndman and Fan's eighth)."""
    return float(np.quantile(values, q, method="median_unbiased"))
