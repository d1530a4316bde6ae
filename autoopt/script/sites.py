"""Sites of a script: where they are once its files have other lines, and advice on them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from autoopt.records import Advice, Place, Site, Sites
from autoopt.simplify.costly import ANOMALIES, anomaly_advice, forced_advice, mistakes

P = TypeVar("P", bound=Place)
_OFTEN = 0.5
"""Times a training step from which on a wait is worth a word."""


def advice_of(sites: Sites, left_out: Sequence[str] = ()) -> tuple[Advice, ...]:
    """Calls of every step that a user may leave out, or make less often.

    Waits for a device make the host stand still until it has done all it was given. Garbage collected by force, caches
    emptied and prints have the share of a step that they were seen to take.

    Args:
        left_out: calls that the adopted plan leaves out, as its flag names them.
    """
    calls = [site for site in sites.of("forced") if f"{site.file}:{site.line} {site.call}" not in left_out]
    forced = (
        forced_advice(site.call, (site.file, site.line), site.per_step or 0.0, site.seconds_per_step or 0.0, step)
        for site in calls
        if site.call not in ANOMALIES and (site.per_step or 0.0) >= _OFTEN and (step := sites.step_seconds or 0.0)
    )
    waits = (
        Advice(
            title=f".{site.call}() waits for the device in each step",
            evidence=f"{site.per_step:.1f} times a training step, in {site.function}",
            file=site.file,
            line=site.line,
            suggestion="read it every so many steps, or keep the tensor and read all of them at once",
        )
        for site in sites.of("device_wait")
        if site.options.get("device") != "cpu" and (site.per_step or 0.0) >= _OFTEN
    )
    anomalies = (anomaly_advice((site.file, site.line)) for site in calls if site.call in ANOMALIES)
    return (*mistakes(sites), *anomalies, *waits, *(item for item in forced if item is not None))


def moved(sites: Sites, texts: Mapping[str, str]) -> Sites:
    """The same sites where their lines are in these texts.

    Args:
        sites: of the files as they are.
        texts: of some of the files in place of what they hold, by path.
    """
    lines: dict[str, Callable[[int], tuple[int, bool]]] = {}
    for path, text in texts.items():
        if os.path.exists(path):
            before = Path(path).read_bytes().decode()
            lines[os.path.relpath(path, sites.cwd)] = _lines(before.splitlines(), text.splitlines())

    def place(there: P) -> P:
        if there.file not in lines:
            return there
        (line, _), (end, same) = lines[there.file](there.line), lines[there.file](there.end_line)
        column = {"end_column": None} if isinstance(there, Site) and not same else {}
        return there.model_copy(update={"line": line, "end_line": end, **column})

    def site(there: Site) -> Site:
        used = tuple(map(place, there.used))
        callers = tuple(tuple(map(place, way)) for way in there.callers)
        return place(there).model_copy(update={"used": used, "callers": callers})

    return sites.model_copy(update={"sites": tuple(map(site, sites.sites))})


def _lines(before: list[str], after: list[str]) -> Callable[[int], tuple[int, bool]]:
    """From a line's number to its number afterwards, and whether it is the same there."""
    found: dict[int, tuple[int, bool]] = {}
    for kind, first, last, begin, end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        for index in range(first, last):
            place = min(begin + index - first, max(end - 1, begin))
            found[index + 1] = place + 1, kind == "equal"
    return lambda line: found.get(line, (line, False))
