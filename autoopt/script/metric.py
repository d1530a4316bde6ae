"""The metric of a script: read from what it prints or reports to its trackers, or found in what it prints."""

from __future__ import annotations

import functools
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from autoopt.benchmark.live import Printed
from autoopt.script.hook.seeds import in_place_of, when_imported
from autoopt.workload import Target

_WRITTEN = r"([-+]?[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?)"
_NUMBER = r"\s*[:=]?\s*" + _WRITTEN
_SMALLER = re.compile(
    r"loss|err|perplexity|ppl|bpc|mse|mae|mape|nll|cross.?entropy|distance|divergence|mismatch"
    r"|(?<![a-z])(wer|cer|eer|fid|kid|fd|ade|fde|crps|brier|chamfer|mean rank)(?![a-z])",
    re.I,
)
_LARGER = re.compile(
    r"acc|top-?[15]|auc|bleu|rouge|iou|precision|recall|psnr|ssim|score|ndcg|match|correct|correlation|similarity|solved"
    r"|(?<![a-z])(f1|r2|hits?|hr|mrr|m?ap|dice|mcc|kappa|pearson|spearman|reward|return|success)(?![a-z])",
    re.I,
)
_SPECIAL = re.compile(r"\\[a-zA-Z]|\.[*+?]+|[\^$|?*+\[\]{}]+")
_TRACKERS = (
    ("torch.utils.tensorboard", "SummaryWriter.add_scalar"),
    ("wandb", "log"),
    ("mlflow", "log_metric"),
    ("mlflow", "log_metrics"),
)
"""Functions that are given a metric, with their modules."""
_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
LEAST_EVALUATIONS = 2
"""Evaluations that must have printed the same line: in one alone, a counter looks like anything else, unless its words
name held-out data."""
ROUNDED = 5e-3
"""Relative difference up to which two numbers are one, of which somebody prints fewer digits."""
_FIGURE = re.compile(r"(?<![\w.@])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_HELD_OUT = re.compile(r"(?:\b|_)(val|valid|validation|test|testing|eval|evaluation|dev|held)", re.I)
_TRAINED = re.compile(r"\btrain", re.I)
_LOSS = re.compile(r"loss|perplexity|ppl|bpc|nll|entropy", re.I)
_BEST_SO_FAR = re.compile(r"\b(best|max|highest|lowest)", re.I)
_PROGRESS = re.compile(r"it/s|s/it|\d%\|")
_COUNTED = re.compile(r"\b(the|of|on|all|in|over|for|after)\s*$", re.I)
_UNIT = re.compile(r"\s*(?:[a-z]?s|sec|seconds|min|h|/)(?![a-z])", re.I)


def name_of(metric: str) -> str:
    """The name of the metric: the words of a pattern before its number, or the key itself."""
    words = metric
    if re.compile(metric).groups:
        before = re.split(r"(?<!\\)\(", metric)[0]
        words = re.sub(r"\\(\W)", r"\1", _SPECIAL.sub(" ", re.sub(r"\\([()])", " ", before)))
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
    """Reads a metric wherever the script reports it.

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
        number = _finite(found[1]) if found is not None else None
        if number is not None:
            self._tell(number)

    def _tracked(self, key: str, number: float) -> bool:
        if key == self._key:
            self._tell(number)
        return self._key is not None


def overhear(line: Callable[[str], None], tracked: Callable[[str, float], bool] | None = None) -> None:
    """Has everything that the script says from now on heard by somebody else, too.

    Args:
        line: called with every line of the output.
        tracked: called with every key and number that a tracker is given, or Lightning has evaluated; unless it takes
            them, they count as a line that says ``key: value``.
    """
    sys.stdout = _Overheard(sys.stdout, line)
    sys.stderr = _Overheard(sys.stderr, line)

    def tell(key: str, value: Any) -> None:
        number = _finite(value)
        if number is not None and not (tracked is not None and tracked(key, number)):
            line(f"{key}: {number}")

    for module, path in _TRACKERS:
        when_imported(module, functools.partial(_listen_to_tracker, module, path, tell))
    for module in _LIGHTNING:
        when_imported(module, functools.partial(_listen_to_lightning, module, tell))


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) else None


def _listen_to_tracker(module: str, path: str, tell: Callable[[str, Any], None]) -> None:
    owner, _, name = path.rpartition(".")
    target = getattr(sys.modules[module], owner, None) if owner else sys.modules[module]
    plain: Any = getattr(target, name, None)
    if plain is None:
        return

    @in_place_of(target, name)
    def listening(*args: Any, **kwargs: Any) -> Any:
        values = [*args, *kwargs.values()]
        for value, following in zip(values, [*values[1:], None], strict=True):
            if isinstance(value, Mapping):
                for key, held in value.items():
                    tell(str(key), held)
            elif isinstance(value, str):
                tell(value, following)
        return plain(*args, **kwargs)


def _listen_to_lightning(module: str, tell: Callable[[str, Any], None]) -> None:
    """Reads metrics that a LightningModule logs as it is evaluated, by a callback of each Trainer."""
    trainer, base = sys.modules[module].Trainer, sys.modules[module].Callback
    plain = trainer.__init__

    def on_validation_end(self: Any, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            for key, value in trainer.callback_metrics.items():
                tell(key, value)

    reader = type("MetricReader", (base,), {"on_validation_end": on_validation_end})

    @in_place_of(trainer, "__init__")
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        self.callbacks.append(reader())


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


def candidates(printed: Sequence[Printed], least: int = LEAST_EVALUATIONS) -> tuple[str, ...]:
    """Patterns of what may be the metric, as ``--metric`` takes them, in the order of the script; see :func:`chosen`.

    A candidate stands in a line that no evaluation printed twice, its words name a measure of quality, and it is
    neither the training's own loss, nor a time, nor one part of a fraction. Those whose words name held-out data come
    before all others, which each evaluation must have printed: a script may also sample from its model now and then.

    A pattern that also finds a number in what was printed between evaluations begins with the first word of its line,
    or is all of that line from there up to its number.

    Args:
        printed: what was printed.
        least: evaluations that must have printed it, unless its words name held-out data; below two, whoever asks shows
            the name that was found.
    """
    between = [line.text for line in printed if line.evaluation is None]
    printed = [line for line in printed if line.evaluation is not None]
    evaluations = len({line.evaluation for line in printed})
    found: dict[str, bool] = {}
    for line in _lines_of_each(printed):
        for words, short in _numbers(line[0].text):
            pattern = _told_apart(short, line[0].text, between)
            if pattern is None:
                continue
            own = bool(_HELD_OUT.search(words) or _HELD_OUT.match(line[0].text.strip()))
            if (own or len(line) == evaluations) and all(_value(pattern, other.text) is not None for other in line):
                found[pattern] = own
    held = [pattern for pattern, own in found.items() if own]
    enough = evaluations >= least
    return tuple(held or (found if enough else ()))


def in_output(lines: Sequence[str]) -> tuple[str, ...]:
    """The same of the whole output of a run that nothing listened to.

    Its evaluations are not known: each line that is like an earlier one is of a further one, and only words that name
    held-out data show a metric.
    """
    alike, printed = Counter[str](), list[Printed]()
    for text in lines:
        form = form_of(text)
        alike[form] += 1
        held_out = _HELD_OUT.search(text) is not None
        printed.append(Printed(step=0, seconds=0.0, evaluation=alike[form] if held_out else None, text=text))
    return candidates(printed, least=len(printed) + 1)


def chosen(patterns: Sequence[str]) -> str | None:
    """The one that is taken for the metric; None where there is none.

    A measure of the task (accuracy, F1, an error rate) before a loss: the held-out loss of a model that overfits rises
    while it still learns, and tolerances are stated in the measure. Of several the first that is printed; what names
    the best so far, which cannot fall, is the last choice.
    """
    return min(patterns, key=_rank, default=None)


def why_chosen(patterns: Sequence[str]) -> str:
    """The rule by which :func:`chosen` took one of these, as a clause after its name."""
    taken = chosen(patterns)
    alike = [pattern for pattern in patterns if taken is not None and _rank(pattern) == _rank(taken)]
    if len(patterns) < 2:
        return "the one measure of quality that the script prints at each evaluation"
    first = "the first" if len(alike) > 1 else "the one"
    kind = " that is no loss" if not all(_LOSS.search(p) for p in patterns) and not _LOSS.search(taken or "") else ""
    return f"{first}{kind} of the {len(patterns)} measures of quality that the script prints at each evaluation"


def _rank(pattern: str) -> tuple[bool, bool]:
    return bool(_BEST_SO_FAR.search(pattern)), bool(_LOSS.search(pattern))


def values(pattern: str, printed: Sequence[Printed]) -> list[tuple[int, float, float]]:
    """Step, seconds and value of each line that a pattern finds a number in."""
    found: list[tuple[int, float, float]] = []
    for line in printed:
        value = _value(pattern, line.text) if line.evaluation is not None else None
        if value is not None and not repeated(line.step, value, found):
            found.append((line.step, line.seconds, value))
    return found


def repeated(step: int, value: float, earlier: Sequence[tuple[int, float, float]]) -> bool:
    """Whether a value was reported at its step before, but for rounding: printed and logged, or given to two trackers.

    It is no second evaluation, and confirms none.
    """
    return bool(earlier) and earlier[-1][0] == step and math.isclose(earlier[-1][2], value, rel_tol=ROUNDED)


def _lines_of_each(printed: Sequence[Printed]) -> list[list[Printed]]:
    """The lines that are alike but for their numbers, at most one of each evaluation."""
    alike: dict[str, list[Printed]] = {}
    for line in printed:
        if _PROGRESS.search(line.text):
            continue
        same = alike.setdefault(form_of(line.text), [])
        if same and same[-1].evaluation == line.evaluation:  # the same numbers once more, but for rounding
            both = (map(float, _FIGURE.findall(each.text)) for each in (same[-1], line))
            if all(math.isclose(one, other, rel_tol=ROUNDED) for one, other in zip(*both, strict=True)):
                continue
        same.append(line)
    return [lines for lines in alike.values() if len({line.evaluation for line in lines}) == len(lines)]


def _numbers(text: str) -> Iterator[tuple[str, str]]:
    """The numbers of a line that may be a measure of quality: the words before each, and a pattern that finds it."""
    end = 0
    for found in _FIGURE.finditer(text):
        between = text[end : found.start()]
        if _COUNTED.search(between):  # a part of the name: "accuracy on the 10000 test images: 97 %"
            continue
        end = found.end()
        own = re.search(r"([A-Za-z][\w @/-]*?(?:@[\d.:]+)?)(['\"]?[\s:=]*['\"]?)$", between)
        if own is None or text[found.end() : found.end() + 1] == "/" or between.endswith("/"):
            continue
        words = own[1].strip()
        quality = _SMALLER.search(words) or _LARGER.search(words)
        if not quality or _TRAINED.search(words) or _UNIT.match(text[found.end() :]):
            continue
        pattern = _escaped(words + own[2]) + _WRITTEN
        if _value(pattern, text) == float(found[0]):  # the same words may stand before another number of the line
            yield words, pattern


def _told_apart(pattern: str, text: str, between: Sequence[str]) -> str | None:
    """A pattern that finds its number in an evaluation's line, and in no other; None where there is no such one."""
    if not any(re.search(pattern, other) for other in between):
        return pattern
    first, wanted = re.search(r"[A-Za-z]+", text), re.search(pattern, text)
    if first is None or wanted is None:
        return None
    whole = r"\S+".join(map(_escaped, _FIGURE.split(text[first.start() : wanted.start(1)]))) + _WRITTEN
    for longer in (f"{first[0]}.*?{pattern}", whole):
        if _value(longer, text) == float(wanted[1]) and not any(re.search(longer, other) for other in between):
            return longer
    return None


def _escaped(words: str) -> str:
    return re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", words)


def form_of(text: str) -> str:
    """A line without its numbers: such lines say the same at different times."""
    return _FIGURE.sub("#", text)


def _value(pattern: str, text: str) -> float | None:
    found = re.search(pattern, text)
    return float(found[1]) if found is not None else None
