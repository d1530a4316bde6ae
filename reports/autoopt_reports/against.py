"""Two runs side by side: what each found, in the same rows, and in what they cannot be compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoopt.records import Change, Record, Result
from autoopt_reports.html import render_against
from autoopt_reports.view import units
from autoopt_reports.view.quality import quality_view
from autoopt_reports.view.verdict import verdict_view

MISSING = units.NOT_MEASURED
_SAME = ("device", "device_name", "torch", "python", "cuda", "cpu", "cores", "threads", "os", "git_commit")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a title, the old run's text and the new one's."""

    title: str
    rows: tuple[tuple[str, str, str], ...]


class TwoRuns(Record):
    """The document that the page carries: both results as they are."""

    old: Result
    new: Result


def page(new: Result, old: Result, *, verdict: str, names: tuple[str, str]) -> str:
    """One self-contained page.

    Args:
        verdict: what the comparison of both runs says (``autoopt verify --against``).
        names: of the old run and the new one.
    """
    return render_against(
        TwoRuns(old=old, new=new),
        title=f"{names[1]} against {names[0]}",
        headline=verdict,
        heads=("", *names),
        tables=tuple(table for table in tables(new, old) if table.rows),
        differences=tuple(differences(new, old)),
    )


def tables(new: Result, old: Result) -> Iterator[Table]:
    """Everything that describes both, in the order in which a reader asks."""
    yield Table("What each found", tuple(_zipped(_found(old), _found(new))))
    yield Table("Before and after, each run on its own", tuple(_zipped(_facts(old), _facts(new))))
    yield Table("Changes kept", tuple(_zipped(_kept(old), _kept(new), absent="not kept")))
    yield Table("Seconds of a stage in the first profile", tuple(_zipped(_stages(old), _stages(new))))


def differences(new: Result, old: Result) -> Iterator[str]:
    """Differences between two runs' conditions, for which their figures differ, too."""
    if new.workload.spec != old.workload.spec:
        yield f"workload: {old.workload.spec} → {new.workload.spec}"
    for field in _SAME:
        before, after = getattr(old.environment, field, None), getattr(new.environment, field, None)
        if before != after:
            yield f"{field.replace('_', ' ')}: {before if before is not None else MISSING} → {after}"
    for field in ("metric", "target", "tolerance"):
        before, after = getattr(old.objective, field), getattr(new.objective, field)
        if before != after:
            yield f"{field}: {before} → {after}"


def _found(result: Result) -> dict[str, str]:
    verdict = verdict_view(result)
    floor = result.noise.floor
    return {
        "verdict": str(verdict.headline),
        "how sure": "; ".join(map(str, verdict.qualifiers)) or "-",
        "quality": str(quality_view(result).short) if result.found else "nothing changed",
        "verified end to end": "yes" if result.speedup.end_to_end_verified else "no",
        "noise floor": units.percent(floor) if floor is not None else MISSING,
        "search": f"{units.duration(result.seconds)} of {units.duration(result.budget_seconds)}"
        if result.seconds is not None
        else MISSING,
        "trials": units.count(len(result.trials)),
    }


def _facts(result: Result) -> dict[str, str]:
    return {fact.label: f"{fact.before} → {fact.after}" for fact in verdict_view(result).facts}


def _kept(result: Result) -> dict[str, str]:
    gains = {_words(worth.strategy, worth.setting): worth.without for worth in result.ablation}
    found = {}
    for change in result.best.plan.changes:
        gain = gains.get(_words(change.strategy, change.setting))
        shown = f"{units.ratio(gain.value)} [{units.ratio(gain.low)} to {units.ratio(gain.high)}]" if gain else "kept"
        found[_name(change)] = shown
    return found


def _name(change: Change) -> str:
    return _words(change.strategy, change.setting)


def _words(strategy: str, setting: dict[str, object]) -> str:
    told = ", ".join(f"{key}={value}" for key, value in setting.items())
    return f"{strategy} ({told})" if told else strategy


def _stages(result: Result) -> dict[str, str]:
    stages = result.rounds[0].stages if result.rounds else ()
    return {stage.name: units.duration(stage.seconds) for stage in stages}


def _zipped(old: dict[str, str], new: dict[str, str], absent: str = MISSING) -> Iterator[tuple[str, str, str]]:
    for title in dict.fromkeys([*old, *new]):
        yield title, old.get(title, absent), new.get(title, absent)
