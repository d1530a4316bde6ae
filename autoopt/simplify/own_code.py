"""Python of the user's own in a step, outside of model, backward, optimizer and loader: where a thread is, sampled."""

from __future__ import annotations

import ast
import linecache
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Self

from autoopt.benchmark.libraries import TORCH, is_users
from autoopt.benchmark.live import LiveTraining

EVERY = 0.004
"""Seconds between two samples: some hundred a second tell a share of a step within some percent."""
OTHERS = ("nn/modules/module.py", "utils/data/", "optim/", "autograd/")
"""Parts of torch whose callees belong to another stage than the user's own line: model, loader, optimizer, backward."""
AROUND = OTHERS[:2]
"""Of these, those that call the user's functions: what is within a model or a dataset is theirs."""

COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Functions to Python alone: to a reader, what they do belongs to the function around them."""


@dataclass
class Samples:
    """Samples of one thread.

    Attributes:
        total: all of them.
        own: those in the user's own Python, by its code and line.
        loops: codes and lines that begin a backward pass, or step an optimizer: the training loop's.
    """

    total: int = 0
    own: Counter[tuple[CodeType, int]] = field(default_factory=Counter)
    loops: set[tuple[CodeType, int]] = field(default_factory=set)

    def see(self, frame: FrameType | None) -> None:
        """One sample: the innermost frame of the thread."""
        self.total += 1
        inner: str | None = None
        while frame is not None and not is_users(frame.f_code.co_filename):
            inner = inner or _part(frame.f_code.co_filename)
            frame = frame.f_back
        if frame is None:
            return
        line = frame.f_lineno
        while frame.f_code.co_name in COMPREHENSIONS and frame.f_back is not None:
            frame = frame.f_back
        place = frame.f_code, line
        if inner is not None:
            if inner not in AROUND:
                self.loops.add(place)
            return
        while (frame := frame.f_back) is not None:
            if _part(frame.f_code.co_filename) in AROUND:
                return
        self.own[place] += 1

    def functions(self) -> Iterator[tuple[str, str, int, float]]:
        """Name, file, hottest line and share of a step of the user's functions, the largest share first.

        Of the function that holds the training loop only loops within it count: its other lines are single operations.
        """
        training: dict[CodeType, set[int]] = {}
        for code, line in self.loops:
            training.setdefault(code, set()).add(line)
        inner = {code: _loops_without(code, lines) for code, lines in training.items()}
        found: dict[CodeType, Counter[int]] = {}
        for (code, line), count in self.own.items():
            if code not in inner or any(line in loop for loop in inner[code]):
                found.setdefault(code, Counter())[line] += count
        for code, lines in sorted(found.items(), key=lambda item: -item[1].total()):
            name = f"a loop in {code.co_name}" if code in training else code.co_name
            yield name, code.co_filename, lines.most_common(1)[0][0], lines.total() / max(self.total, 1)


def _part(file: str) -> str | None:
    """The part of torch that a file belongs to; None of another one."""
    at = next((len(folder) for folder in TORCH if file.startswith(folder)), None)
    return None if at is None else next((part for part in OTHERS if file.startswith(part, at)), None)


def _loops_without(code: CodeType, trained: set[int]) -> list[range]:
    """Lines of the loops of a function's file that hold none of the training loop's own lines."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except SyntaxError:  # the file was changed since
        return []
    loops = (node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While)))
    spans = (range(node.body[0].lineno, (node.end_lineno or 0) + 1) for node in loops)
    return [span for span in spans if not any(line in span for line in trained)]


class Sampler:
    """Samples the thread that trains from another one, as long as it is open.

    Args:
        training: whose thread it is; it is not sampled while it evaluates.
    """

    def __init__(self, training: LiveTraining) -> None:
        self.samples = Samples()
        self._training, self._over = training, threading.Event()
        self._number = training.do(threading.get_ident)
        self._thread = threading.Thread(target=self._sample, name="samples", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(EVERY):
            if not self._training.evaluates:
                self.samples.see(sys._current_frames().get(self._number))
