"""The metric of a script, read from what it prints or tells its trackers."""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

from autoopt.script.imported import when_imported
from autoopt.workload import Target

_NUMBER = r"\s*[:=]?\s*([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)"
_SMALLER = re.compile(r"loss|err|perplexity|ppl|bpc|mse|mae|rmse|nll|wer|cer|fid|distance", re.I)
_SPECIAL = re.compile(r"\(.*|[\\^$.|?*+\[\]{}]+")
_TRACKERS = (
    ("torch.utils.tensorboard", "SummaryWriter", "add_scalar"),
    ("wandb", None, "log"),
    ("mlflow", None, "log_metric"),
    ("mlflow", None, "log_metrics"),
)


_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


def name_of(metric: str) -> str:
    """The name of the metric: the words of a pattern before its number, or the key itself."""
    words = _SPECIAL.sub(" ", metric) if re.compile(metric).groups else metric
    return " ".join(words.split()).strip(" :='\"") or metric


def direction_of(metric: str) -> Literal["max", "min"]:
    """Whether less of it is better, by its name."""
    return "min" if _SMALLER.search(metric) else "max"


def target_of(metric: str, value: float | None) -> Target:
    """A metric as the target of a run; the value is open where None."""
    direction = direction_of(metric)
    bound = {"at_most" if direction == "min" else "at_least": value}
    return Target(name_of(metric), mode=direction, **bound)


class MetricReader:
    """Reads a metric wherever the script tells it.

    Trackers are a SummaryWriter, W&B, MLflow, and what a LightningModule logs in its evaluations.

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
        overhear(self.line, self._tracked)

    def line(self, text: str) -> None:
        """One line of the output."""
        found = self._pattern.search(text)
        if found is not None:
            self._found(found[1])

    def _tracked(self, key: str, value: Any) -> None:
        if key == self._key:
            self._found(value)
        elif self._key is None and (number := _finite(value)) is not None:
            self.line(spoken(key, number))

    def _found(self, value: Any) -> None:
        number = _finite(value)
        if number is not None:
            self._tell(number)


def overhear(line: Callable[[str], None], tracked: Callable[[str, Any], None] | None = None) -> None:
    """Has everything that the script says from now on heard by somebody else, too.

    Args:
        line: called with every line of the output.
        tracked: called with every key and value that a tracker is given, or Lightning has evaluated; where None, each
            counts as a line that says ``key: value``.
    """
    sys.stdout = _Overheard(sys.stdout, line)
    sys.stderr = _Overheard(sys.stderr, line)

    def told(key: str, value: Any) -> None:
        number = _finite(value)
        if number is not None:
            line(spoken(key, number))

    tell = tracked or told
    for module in dict.fromkeys((*(module for module, _, _ in _TRACKERS), *_LIGHTNING)):
        listen = _listen_to_lightning if module in _LIGHTNING else _listen_to_tracker
        if module in sys.modules:
            listen(module, tell)
        else:
            when_imported(module, functools.partial(listen, module, tell))


def spoken(key: str, value: float) -> str:
    """A value that was told to a tracker, as a line of output."""
    return f"{key}: {value}"


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) else None


def _listen_to_tracker(module: str, tell: Callable[[str, Any], None]) -> None:
    for name, owner, method in _TRACKERS:
        target: Any = sys.modules[module] if name == module else None
        target = getattr(target, owner, None) if owner else target
        plain = getattr(target, method, None)
        if plain is not None:
            setattr(target, method, _listening(plain, tell))


def _listening(plain: Callable[..., Any], tell: Callable[[str, Any], None]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def told(*args: Any, **kwargs: Any) -> Any:
        values = [*args, *kwargs.values()]
        for value, following in zip(values, [*values[1:], None], strict=True):
            if isinstance(value, Mapping):
                for key, held in value.items():
                    tell(str(key), held)
            elif isinstance(value, str):
                tell(value, following)
        return plain(*args, **kwargs)

    return told


def _listen_to_lightning(module: str, tell: Callable[[str, Any], None]) -> None:
    """Reads metrics that a LightningModule logs as it is evaluated, by a callback of each Trainer."""
    trainer, base = sys.modules[module].Trainer, sys.modules[module].Callback
    plain = trainer.__init__

    def on_validation_end(self: Any, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            for key, value in trainer.callback_metrics.items():
                tell(key, value)

    reader = type("MetricReader", (base,), {"on_validation_end": on_validation_end})

    @functools.wraps(plain)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        self.callbacks.append(reader())

    trainer.__init__ = made


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
