"""Text of a report: words of ours, numbers with their source, and the user's own names.

A :class:`Number` keeps where in the document it stands and how it was derived, so that a test
(and a doubting reader, in the page's source) can follow each one back. A :class:`Name` is text
that came from the user or from an error and may hold anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, overload

from autoopt.records import Change, Configuration, Estimate, EstimateKind, Round
from autoopt_reports.view import units

Placed = tuple[str, Round]
"""A profile, and its pointer before it."""
LONGEST_SENTENCES = 900
"""Of what autoopt says itself: its sentences with their figures are not cut in the middle."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number as shown. ``paths``: JSON pointers into the document; ``how``: "" where it stands there as it is."""

    text: str
    value: float | None
    paths: tuple[str, ...]
    how: str = ""

    def __str__(self) -> str:
        return self.text

    @property
    def missing(self) -> bool:
        return self.value is None


@dataclass(frozen=True, slots=True)
class Name:
    """Text that is not ours: shown as it is, cleaned of control characters, shortened where it is huge."""

    text: str

    def __str__(self) -> str:
        return self.text


Part = str | Number | Name
Detail = tuple[str, Number | Name]
"""A labelled line."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """A sentence, or a piece of one."""

    parts: tuple[Part, ...] = ()

    def __str__(self) -> str:
        return "".join(str(part) for part in self.parts)

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __add__(self, other: Phrase | Part) -> Phrase:
        return Phrase((*self.parts, *(other.parts if isinstance(other, Phrase) else (other,))))


def say(template: str, *values: Part | Phrase) -> Phrase:
    """``template`` with each ``{}`` filled by a number, a name or a phrase."""
    pieces = template.split("{}")
    if len(pieces) != len(values) + 1:
        raise ValueError(f"{template!r} has {len(pieces) - 1} places for {len(values)} values")
    parts: list[Part] = [pieces[0]] if pieces[0] else []
    for value, words in zip(values, pieces[1:], strict=True):
        parts.extend(value.parts if isinstance(value, Phrase) else (value,))
        if words:
            parts.append(words)
    return Phrase(tuple(parts))


def join(phrases: list[Phrase] | tuple[Phrase, ...], between: str = ", ", last: str = "") -> Phrase:
    """The phrases in a row: ``a, b and c``."""
    parts: list[Part] = []
    for index, phrase in enumerate(phrases):
        if index:
            parts.append(last if last and index == len(phrases) - 1 else between)
        parts.extend(phrase.parts)
    return Phrase(tuple(parts))


def number(value: float | None, form: units.Formatter, path: str, *more: str, how: str = "") -> Number:
    """A number at ``path``; None reads "not measured"."""
    return Number(units.NOT_MEASURED if value is None else form(value), value, (path, *more), how)


def numbers(held: object, path: str, *same: Any, **forms: units.Formatter) -> tuple[Number, ...]:
    """Fields of what stands at ``path``, each with its form; ``same``: one form, and the fields that have it."""
    forms = dict.fromkeys(same[1:], same[0]) | forms if same else forms
    return tuple(number(getattr(held, field), form, f"{path}/{field}") for field, form in forms.items())


def intervals(held: object, path: str, *fields: str) -> tuple[Interval | None, ...]:
    """Speedups that stand at ``path``."""
    return tuple(interval(getattr(held, field), f"{path}/{field}") for field in fields)


def throughput(configuration: Configuration, path: str) -> Number:
    """Samples per second; steps, where samples cannot be counted and the steps were timed."""
    step = configuration.step_seconds
    if configuration.samples_per_second is None and step is not None:
        return number(1.0 / step.p50, units.step_rate, f"{path}/step_seconds/p50", how="per_second")
    return number(configuration.samples_per_second, units.rate, f"{path}/samples_per_second")


_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""Control characters, lone surrogates and bidirectional overrides."""


def clean(text: str) -> str:
    """``text`` without characters that a terminal would obey, or that would reorder what stands around it."""
    return _OBEYED.sub("\ufffd", text)


def clip(text: str, longest: int = 240) -> str:
    """At most ``longest`` characters: the beginning and the end, with an ellipsis."""
    if len(text) <= longest:
        return text
    tail = longest // 4
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def name(text: str, longest: int = 240) -> Name:
    return Name(clip(re.sub(r"\s+", " ", clean(text)).strip(), longest))


def place_name(file: str | None, line: int | None, longest: int = 120) -> Name | None:
    """``train.py:9``; None where no file is known."""
    return name(file if line is None else f"{file}:{line}", longest) if file else None


def setting_text(setting: Mapping[str, Any]) -> str:
    """``{"num_workers": 8, "pin": True}`` as ``num_workers=8, pin=true``."""
    if not all(isinstance(key, str) for key in setting):
        return json.dumps(setting, ensure_ascii=False, default=str)
    return ", ".join(f"{key}={_value_text(value)}" for key, value in setting.items())


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    places = value if isinstance(value, list | tuple) else [value]
    first = ""
    if places and all(isinstance(one, Mapping) and {"file", "line"} <= one.keys() for one in places):
        first = f"{places[0]['file']}:{places[0]['line']}"  # a place in the user's source
    elif places and all(isinstance(one, Mapping) and "function" in one for one in places):
        first = str(places[0]["function"])
    if first:
        return first if len(places) == 1 else f"{first} and {len(places) - 1} more"
    whole = json.dumps(value, ensure_ascii=False, default=str)
    # a longer list or mapping is counted: the report's trial has it whole
    if isinstance(value, Mapping) and value and not any(isinstance(each, Mapping | list) for each in value.values()):
        whole = f"({setting_text(value)})"
    if len(whole) <= 40 or not isinstance(value, Mapping | list | tuple):
        return whole
    if isinstance(value, Mapping):
        return _value_text(next(iter(value.values()))) if len(value) == 1 else f"{len(value)} values"
    return f"{len(value)} item{'' if len(value) == 1 else 's'}"


def change_name(
    strategy: str, setting: Mapping[str, Any], companions: tuple[Change, ...] = (), longest: int = 160
) -> Name:
    """A change with its companions: ``batch_size size=64, accumulation=2 + threads=1``; a single key is not named."""
    texts = []
    for each, values in [(strategy, setting), *((change.strategy, change.setting) for change in companions)]:
        text = setting_text(values)
        # one value needs no name, unless it does not say what it is: a place, or a switch of another name
        unsaid = (
            isinstance(value, Mapping) or (isinstance(value, bool) and key != each) for key, value in values.items()
        )
        if len(values) == 1 and not any(unsaid):
            texts.append(each + re.sub("^[^=]*", "", text))
        else:
            texts.append(f"{each} {text}".strip())
    return name(" + ".join(texts), longest)


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate as shown: bounds are rounded outwards, so the text never claims more than was measured.

    A prediction names its kind; one that is only declared, or that is a bound, shows no interval.
    """

    value: Number
    low: Number
    high: Number
    confidence: Number | None
    n: Number
    kind: EstimateKind = EstimateKind.MEASURED

    @property
    def text(self) -> str:
        return str(self.phrase)

    @property
    def phrase(self) -> Phrase:
        between = " to " if (self.low.value or 0.0) < 0 else "–"
        if self.kind is EstimateKind.DECLARED:
            return say("{} declared", self.value)
        if self.kind is EstimateKind.BOUND:
            return say("at most {}", self.value)
        kind = {EstimateKind.SIMULATED: " simulated", EstimateKind.TRIED: " tried"}.get(self.kind, "")
        return say("{} [{}" + between + "{}]" + kind, self.value, self.low, self.high)


@overload
def interval(estimate: Estimate, path: str, form: units.Formatter | None = None, *, unit: str = "×") -> Interval: ...
@overload
def interval(
    estimate: Estimate | None, path: str, form: units.Formatter | None = None, *, unit: str = "×"
) -> Interval | None: ...
def interval(
    estimate: Estimate | None, path: str, form: units.Formatter | None = None, *, unit: str = "×"
) -> Interval | None:
    """An estimate at ``path``: a speedup, or (with ``form``) seconds, bytes; ``unit``: after it where there is none."""
    if estimate is None:
        return None
    sure = estimate.confidence
    decimals = units.interval_decimals(estimate.low, estimate.high)

    def shown(value: float, bound: str) -> str:
        if form is not None:
            return form(value)
        rounded = {"low": units.floor_to, "high": units.ceil_to}.get(bound, round)(value, decimals)
        return f"{rounded:,.{decimals}f}{unit if bound == 'value' else ''}"

    def part(field: str) -> Number:
        value = float(getattr(estimate, field))
        return Number(shown(value, field), value, (f"{path}/{field}",))

    return Interval(
        part("value"),
        part("low"),
        part("high"),
        None if sure is None else Number(f"{sure * 100:g} %", sure, (f"{path}/confidence",)),
        number(estimate.n, units.count, f"{path}/n"),
        estimate.kind,
    )
