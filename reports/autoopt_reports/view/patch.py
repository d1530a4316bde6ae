"""The patch of a run on a script: the diff, and what became of each kept change in it."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.records import PatchedChange, Result
from autoopt_reports.view import units
from autoopt_reports.view.text import Name, Number, Phrase, change_name, code, name, say

_HOW = {"patched": "in the patch", "plan only": "with the plan alone", "by hand": "by hand"}


@dataclass(frozen=True, slots=True)
class PatchRow:
    """One kept change: whether it is a hunk of the diff, and where, or why it is none."""

    label: Name
    how: str
    where: Name | None
    reason: Name | None


@dataclass(frozen=True, slots=True)
class PatchView:
    """``diff``: None where no change could be written as a line of the script.

    ``environment``: lines of ``autoopt.env``, variables to start the script with; None where there are none.
    """

    headline: Phrase
    diff: str | None
    rows: tuple[PatchRow, ...]
    environment: str | None = None


def patch_view(result: Result) -> PatchView | None:
    """None where the run was on a function that describes the workload, which has no patch."""
    if result.sites is None or result.patch is None:
        return None
    return PatchView(
        headline=_headline(result.patch.changes),
        diff=code(result.patch.diff) or None,
        rows=tuple(_row(change) for change in result.patch.changes),
        environment=code("".join(f"{name}={text}\n" for name, text in result.patch.environment.items())) or None,
    )


def _headline(changes: tuple[PatchedChange, ...]) -> Phrase:
    if not changes:
        return say("Nothing to patch: no change was kept")
    written = sum(change.how == "patched" for change in changes)
    values = (_count(written), _count(len(changes)))
    words = "{} of {} kept changes are in the patch" if len(changes) > 1 else "{} of {} kept change is in the patch"
    return say(words, *values)


def _count(number: int) -> Number:
    return Number(units.count(number), number, ("/patch/changes",), "count")


def _row(change: PatchedChange) -> PatchRow:
    where = f"{change.file}:{change.line}" if change.file and change.line else change.file
    return PatchRow(
        label=change_name(change.strategy, change.setting),
        how=_HOW[change.how],
        where=name(where, 120) if where else None,
        reason=name(change.reason, 300) if change.reason else None,
    )
