"""Sites of a script whose files are read with other lines in them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from autoopt.records import Place, Site, Sites

P = TypeVar("P", bound=Place)


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
