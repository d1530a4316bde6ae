"""Documents with holes, and names and units: nothing that was not measured breaks a report."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoopt import records as r
from autoopt.records import ValidationError
from autoopt_reports import html
from autoopt_reports.view import units
from autoopt_reports.view.claims import claim_of
from autoopt_reports.view.text import change_name, clip, name, say, setting_text
from benchmarks import sample

WIN = sample.win()


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
    both = change_name("workers", {"n": 2}, (r.Change(strategy="threads", setting={"compute": 1}),))
    assert change_name("batch_size", {"size": 64, "accumulation": 2}).text == "batch_size size=64, accumulation=2"
    assert change_name("amp", {}).text == "amp"
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


_PARTS = WIN.model_dump() | {
    "rounds": [{**each.model_dump(), "operators": []} for each in WIN.rounds],
    "trials": WIN.model_dump()["trials"][:4],
}
_THEIRS = {"setting", "lightning", "transformers", "accelerate", "packages"}  # a null in there is the user's own
HOLES = [path for path in nullable_paths(_PARTS, r.Result.model_validate) if not _THEIRS & set(path[:-2])]


@settings(max_examples=40)
@given(st.sets(st.sampled_from(HOLES), max_size=12))
def test_whatever_was_not_measured_the_report_is_rendered(holes: set[tuple[Any, ...]]) -> None:
    document = r.Result.model_validate(_PARTS).model_dump()
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
