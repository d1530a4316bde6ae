"""Every number that a page shows stands in its document, or follows from it by the formula that the page names.

The formulas and units are written down here a second time, so that the report is checked and not repeated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from html.parser import HTMLParser
from itertools import chain
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sample
from autoopt import records as r
from autoopt.records import Record, Result, ValidationError
from autoopt_reports import html
from autoopt_reports.charts import planes
from autoopt_reports.view import Report, units
from autoopt_reports.view.claims import claim_of
from autoopt_reports.view.page import ProfileView
from autoopt_reports.view.text import Number, change_name, clip, name, say, setting_text

Golden = Callable[[str], Result]
NAMES = ["win", "no_gain", "out_of_memory", "interrupted", "hostile", "thousand", "sizes"]
UNITS = {
    "": 1.0, "×": 1, "%": 0.01, "µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400,
    "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "samples/s": 1, "FLOP/B": 1,
}  # fmt: skip
for _prefix, _factor in {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}.items():
    UNITS |= {f"{_prefix}FLOP/s": _factor, f"{_prefix}B/s": _factor}
NUMBER = re.compile(r"([−+-]?)([\d,]*\.?\d+)\s*(\D*)")


def resolve(document: Any, pointer: str) -> Any:
    for key in pointer.split("/")[1:]:
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document


def quotient(values: list[float]) -> float:
    return values[0] / math.prod(values[1:])


def derived(document: Any, how: str, paths: list[str]) -> Any:
    """The value that a page must show for a formula and its pointers."""
    if how == "quotients":
        cut = paths.index("-")
        parts = [quotient([resolve(document, p) for p in part]) for part in (paths[:cut], paths[cut + 1 :])]
        return parts[0] - parts[1]
    values = [resolve(document, p) for p in paths]
    simple: dict[str, Callable[[], Any]] = {
        "": lambda: values[0],
        "unmeasured": lambda: None,
        "count": lambda: len(values[0]),
        "quotient": lambda: quotient(values),
        "product": lambda: math.prod(values),
        "less_all": lambda: values[0] - sum(values[1:]),
        "share_less_all": lambda: 1 - sum(values[1:]) / values[0],
        "share_all": lambda: sum(values[1:]) / values[0],
        "per_thousand": lambda: 1000 / values[0],
        "per_second": lambda: 1 / values[0],
        "miss": lambda: max(values) / min(values) - 1,
    }
    if how in simple:
        return simple[how]()
    trials = values[0]
    if how == "count_decided":
        return sum(row["verdict"] is not None for row in values[0])
    if how in {"count_predicted", "count_held", "median_miss"}:
        pairs = [(t["predicted"], t["throughput"]) for t in trials if t["predicted"] and t["throughput"]]
        misses = [max(p["value"], r["value"]) / min(p["value"], r["value"]) - 1 for p, r in pairs]
        shown = [(p["value"],) * 2 if p["kind"] == "declared" else (p["low"], p["high"]) for p, _ in pairs]
        touching = sum(low <= r["high"] and r["low"] <= high for (low, high), (_, r) in zip(shown, pairs, strict=True))
        return {"count_predicted": len(pairs), "count_held": touching, "median_miss": median(misses)}[how]
    if how == "count_failed_with_memory":
        return sum(t["verdict"] == "failed" and t["peak_memory_bytes"] is not None for t in trials)
    return sum(t["verdict"] == how.removeprefix("count_") for t in trials)


def assert_shows(text: str, value: float, slack: float) -> None:
    """``text`` is ``value`` in its unit, rounded to the digits shown; ``slack`` in units of the last digit."""
    match = NUMBER.fullmatch(text.strip())
    assert match, text
    sign, digits, unit = match[1], match[2].replace(",", ""), match[3].strip()
    shown = float(digits) * (-1 if sign in {"−", "-"} else 1) * UNITS[unit]
    last = 10.0 ** -len(digits.partition(".")[2]) * UNITS[unit]
    assert abs(shown - value) <= slack * last * (1 + 1e-6) + 1e-12, (text, value)


def check(document: Any, text: str, how: str, paths: list[str]) -> None:
    if how == "interval":
        estimate = resolve(document, paths[0])
        shown = re.findall(r"-?[\d.,]+", text)
        if estimate["kind"] == "declared":
            assert len(shown) == 1, text
            assert_shows(shown[0], estimate["value"], 1.0)
            return
        assert len(shown) == 3, text
        for part, key in zip(shown, ("value", "low", "high"), strict=True):
            assert_shows(part.rstrip(","), estimate[key], 1.0)
        assert float(shown[1].replace(",", "")) <= estimate["low"]
        assert float(shown[2].replace(",", "")) >= estimate["high"]
        return
    value = derived(document, how, paths)
    if value is None:
        assert text == "not measured"
        return
    loose = how == "quotients" or "".join(paths[-1:]).endswith(("/low", "/high"))
    assert_shows(text, value, 1.0 if loose else 0.5)


def numbers_in(view: object) -> Iterator[Number]:
    """All numbers anywhere in a view: sentences, tips and tables alike."""
    if isinstance(view, Number):
        yield view
    elif is_dataclass(view) and not isinstance(view, type):
        yield from chain.from_iterable(numbers_in(getattr(view, f.name)) for f in fields(view))
    elif type(view).__module__.startswith("autoopt_reports."):
        yield from numbers_in([*vars(view).values()])
    elif isinstance(view, tuple | list):
        yield from chain.from_iterable(map(numbers_in, view))


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_the_view_follows_from_the_document(name: str, golden: Golden) -> None:
    result = golden(name)
    view, document = Report(result), json.loads(result.model_dump_json())
    charts = [planes.search_chart(view.search), *(planes.tradeoff_chart(t) for t in view.tradeoffs)]
    charts += [planes.predictions_chart(view.predictions)] if view.predictions else []
    count = 0
    for number in numbers_in((view, *charts)):
        check(document, number.text, number.how, list(number.paths))
        count += 1
    assert count > 50


def test_every_number_of_the_profile_follows_from_its_document(golden_profile: Any) -> None:
    document = json.loads(golden_profile.model_dump_json())
    numbers = list(numbers_in(ProfileView(golden_profile)))
    for number in numbers:
        check(document, number.text, number.how, list(number.paths))
    assert len(numbers) > 50


VOID = {"meta", "link", "br", "input", "img", "hr"}
TYPES = re.compile(r"\b(bf16|fp16|fp32|TF32)\b")
NOT_OURS = {"bdi", "pre", "code"}


class Page(HTMLParser):
    """Walks a page and checks each piece of text as it closes."""

    def __init__(self, document: Any) -> None:
        super().__init__(convert_charrefs=True)
        self.document = document
        # Escaped as well: code shows a name as Python writes it.
        self.known = set(re.findall(r"\d+", json.dumps(document, ensure_ascii=False) + json.dumps(document)))
        self.known |= set(re.findall(r"\d+", repr(document)))
        self.stack: list[tuple[str, dict[str, str | None]]] = []
        self.numbers = self.names = 0
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if attributes.get("id"):
            assert attributes["id"] not in self.ids, attributes["id"]
            self.ids.add(attributes["id"] or "")
        if tag not in VOID:
            self.stack.append((tag, attributes))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        return

    def handle_endtag(self, tag: str) -> None:
        assert self.stack[-1][0] == tag, (tag, self.stack[-1])
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self.stack]
        if not re.search(r"\d", TYPES.sub("", data)) or {"head", "script", "style", "title", "desc"} & set(tags):
            return
        element, attributes = self.stack[-1]
        if "data-p" in attributes:
            self.numbers += 1
            check(self.document, data, attributes.get("data-h") or "", self.pointers(attributes["data-p"] or ""))
        elif self.is_user_text():
            self.names += 1
            whole = re.sub(r"\d*…\d*", " ", data)  # a name that was shortened may have lost half a number
            assert set(re.findall(r"\d+", whole)) <= self.known, data
        elif element == "a":
            assert attributes["href"] == f"#t{data}"
        else:
            assert "tick" in (attributes.get("class") or ""), f"a number without a source: {data!r} in {tags}"

    def pointers(self, text: str) -> list[str]:
        base = next((a["data-at"] for _, a in reversed(self.stack) if "data-at" in a), "")
        return [p if p.startswith(("/", "-")) else f"{base}/{p}" for p in text.split()]

    def is_user_text(self) -> bool:
        return any(tag in NOT_OURS or "u" in (a.get("class") or "").split() for tag, a in self.stack)


def read(page: str, document: Record) -> Page:
    reader = Page(json.loads(document.model_dump_json()))
    reader.feed(page)
    reader.close()
    assert not reader.stack, "an element was left open"
    return reader


@pytest.mark.parametrize("name", NAMES)
def test_every_number_on_the_page_has_a_source_and_agrees_with_it(name: str, golden: Golden) -> None:
    result = golden(name)
    reader = read(html.render(result), result)
    assert reader.numbers > 40
    assert reader.names > 5


def test_the_profile_page_too(golden_profile: Any) -> None:
    assert read(html.render(golden_profile), golden_profile).numbers > 60


def test_a_wrong_number_is_caught(golden: Golden) -> None:
    """The check itself can fail: a digit changed by hand, and a number without a source."""
    result = golden("win")
    page = html.render(result)
    with pytest.raises(AssertionError):
        read(page.replace(">9.10 h<", ">9.20 h<"), result)
    with pytest.raises(AssertionError, match="without a source"):
        read(page.replace("Do next", "Do 3 things next"), result)


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (units.duration, 0.0123, "12.3 ms"),
        (units.duration, 3e-6, "3.00 µs"),
        (units.duration, 90, "90.0 s"),
        (units.duration, 3540, "59.0 min"),
        (units.duration, 32760, "9.10 h"),
        (units.bytes_, 31.2 * 2**30, "31.2 GiB"),
        (units.bytes_, 12, "12 B"),
        (units.flops, 7.2e14, "720 TFLOP/s"),
        (units.percent, 0.0, "0 %"),
        (units.percent, 0.012, "1.2 %"),
        (units.ratio, 2.31, "2.31×"),
        (units.plain, 0.93, "0.93"),
        (units.plain, 120.0, "120"),
        (units.count, 25557032, "25,557,032"),
    ],
)
def test_units(form: Callable[[float], str], value: float, text: str) -> None:
    assert form(value) == text


def test_names_are_cleaned_and_shortened() -> None:
    assert name("a\x1b[31mb\u202ec").text == "a\ufffd[31mb\ufffdc"
    assert len(name("x" * 10_000).text) == 240
    assert clip("abcdefgh", 5) == "abc…h"
    assert setting_text({"a": True, "b": "x", "c": [1, None]}) == "a=true, b=x, c=[1, null]"
    paths = {"convolutions": {"paths": ["features.convolution.0", "features.convolution.1"]}, "rows": 3}
    assert setting_text(paths) == "convolutions=2 items, rows=3"
    lines = [{"file": "train.py", "line": line, "name": "open"} for line in (60, 71)]
    assert setting_text({"calls": lines[:1]}) == "calls=train.py:60"
    assert setting_text({"calls": lines}) == "calls=train.py:60 and 1 more"
    assert setting_text({"samples": {"where": "memory", "workers": 0}}) == "samples=(where=memory, workers=0)"
    assert setting_text({"functions": [{"module": "train", "function": "filters"}]}) == "functions=filters"
    place = {"no_grad": {"file": "main.py", "function": "evaluate", "line": 159}}
    assert change_name("validation_loader", place).text == "validation_loader no_grad=main.py:159"
    both = change_name("workers", {"n": 2}, (r.Change(strategy="threads", setting={"compute": 1}),))
    assert change_name("batch_size", {"size": 64, "accumulation": 2}).text == "batch_size size=64, accumulation=2"
    assert change_name("amp", {}).text == "amp"
    assert change_name("native_operators", {"dropout": True}).text == "native_operators dropout=true"
    assert change_name("pin_memory", {"pin_memory": True}).text == "pin_memory=true"
    assert both.text == "workers=2 + threads=1"
    with pytest.raises(ValueError, match="2 places for 1"):
        say("{} {}", "a")


def nullable_paths(document: Any, validate: Callable[[Any], object]) -> list[tuple[Any, ...]]:
    """Places of a document that may be null, or empty where they hold a list."""
    found: list[tuple[Any, ...]] = []

    def walk(part: Any, path: tuple[Any, ...]) -> None:
        items = part.items() if isinstance(part, dict) else enumerate(part[:2]) if isinstance(part, list) else ()
        for key, value in list(items):
            holes: tuple[Any, ...] = (None, [])
            for hole in holes:
                part[key] = hole
                try:
                    validate(document)
                    found.append((*path, key, hole is None))
                except ValidationError:
                    continue
                finally:
                    part[key] = value
            walk(value, (*path, key))

    walk(document, ())
    return found


_THEIRS = {"setting", "lightning", "transformers", "accelerate", "packages"}  # a null in there is the user's own


@cache
def parts() -> dict[str, Any]:
    """The sample of a win with a few of its trials."""
    win = sample.win()
    rounds = [{**each.model_dump(), "operators": []} for each in win.rounds]
    return win.model_dump() | {"rounds": rounds, "trials": win.model_dump()["trials"][:4]}


def holes_of_it() -> st.SearchStrategy[set[tuple[Any, ...]]]:
    found = nullable_paths(parts(), r.Result.model_validate)
    return st.sets(st.sampled_from([path for path in found if not _THEIRS & set(path[:-2])]), max_size=12)


@settings(max_examples=40)
@given(st.deferred(holes_of_it))
def test_whatever_was_not_measured_the_report_is_rendered(holes: set[tuple[Any, ...]]) -> None:
    document = r.Result.model_validate(parts()).model_dump()
    for *path, key, null in sorted(holes, key=len, reverse=True):
        part: Any = document
        for step in path:
            part = part[step] if part is not None and len(part) else None
            if part is None:
                break
        if part:
            part[key] = None if null else []
    result = r.Result.model_validate(document)
    page = html.render(result)
    assert not re.search(r"\bNone\b(?!\.<)", page), "only an empty list says None."
    assert ">nan" not in page
    assert ("faster to target" in page.split("</h1>")[0]) == (
        claim_of(result).status == "faster"
        and result.speedup.headline is not None
        and result.speedup.headline.kind == "to_target"
        and result.objective.metric is not None
        and result.objective.target is not None
    )
