"""The metric of a script, read from what it prints or tells its trackers."""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

from autoopt.script.imported import when_imported

_NUMBER = r"\s*[:=]?\s*([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)"
_SMALLER = re.compile(r"loss|err|perplexity|ppl|bpc|mse|mae|rmse|nll|wer|cer|fid|distance", re.I)
_SPECIAL = re.compile(r"\(.*|[\\^$.|?*+\[\]{}]+")
_TRACKERS = (
    ("torch.utils.tensorboard", "SummaryWriter", "add_scalar"),
    ("wandb", None, "log"),
    ("mlflow", None, "log_metric"),
    ("mlflow", None, "log_metrics"),
)


def name_of(metric: str) -> str:
    """The name of the metric: the words of a pattern before its number, or the key itself."""
    words = _SPECIAL.sub(" ", metric) if re.compile(metric).groups else metric
    return " ".join(words.split()).strip(" :='\"") or metric


def direction_of(metric: str) -> Literal["max", "min"]:
    """Whether less of it is better, by its name."""
    return "min" if _SMALLER.search(metric) else "max"


class MetricReader:
    """Reads a metric wherever the script tells it.

    Args:
        metric: a pattern with one group for the number; without a group it is a key of a tracker, or the words that
            stand before the number in the output.
        tell: called with each value.
    """

    def __init__(self, metric: str, tell: Callable[[float], None]) -> None:
        grouped = re.compile(metric).groups == 1
        self._pattern = re.compile(metric if grouped else re.escape(metric) + _NUMBER)
        self._key = None if grouped else metric
        self._tell = tell

    def install(self) -> None:
        """Before the script's first line."""
        overhear(self.line)
        if self._key is not None:
            for module in dict.fromkeys(module for module, _, _ in _TRACKERS):
                if module in sys.modules:
                    self._tracker(module)
                else:
                    when_imported(module, functools.partial(self._tracker, module))

    def line(self, text: str) -> None:
        """One line of the output."""
        found = self._pattern.search(text)
        if found is not None:
            self._found(found[1])

    def _tracker(self, module: str) -> None:
        for name, owner, method in _TRACKERS:
            if name != module:
                continue
            target: Any = sys.modules[module]
            target = getattr(target, owner, None) if owner else target
            plain = getattr(target, method, None)
            if plain is not None:
                setattr(target, method, self._listening(plain))

    def _listening(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def tell(*args: Any, **kwargs: Any) -> Any:
            for value in (*args, *kwargs.values()):
                if isinstance(value, Mapping) and self._key in value:
                    self._found(value[self._key])
            values = [*args, *kwargs.values()]
            if self._key in [value for value in values if isinstance(value, str)]:
                index = next(i for i, value in enumerate(values) if isinstance(value, str) and value == self._key)
                if index + 1 < len(values):
                    self._found(values[index + 1])
            return plain(*args, **kwargs)

        return tell

    def _found(self, value: Any) -> None:
        try:
            number = float(value)
        except (TypeError, ValueError):
            return
        if math.isfinite(number):
            self._tell(number)


def overhear(line: Callable[[str], None]) -> None:
    """Has every line that the script prints from now on read by somebody else, too."""
    sys.stdout = _Overheard(sys.stdout, line)
    sys.stderr = _Overheard(sys.stderr, line)


class _Overheard:
    """A stream of the script's whose lines are also read by somebody else."""

    def __init__(self, stream: Any, line: Callable[[str], None]) -> None:
        self._stream, self._line, self._begun = stream, line, ""

    def write(self, text: str) -> int:
        written: int = self._stream.write(text)
        self._begun += text
        if "\n" in text or "\r" in text:
            *lines, self._begun = re.split(r"[\r\n]+", self._begun)
            for line in lines:
                self._line(line)
        return written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)
