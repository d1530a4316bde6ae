"""Two runs side by side: what each found, in the same rows, and in what they cannot be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autoopt.records import Record, Result
from autoopt_reports.html import Table, tables_page
from autoopt_reports.terminal import ratio_text
from autoopt_reports.view import units
from autoopt_reports.view.quality import quality_view
from autoopt_reports.view.text import change_name
from autoopt_reports.view.verdict import VerdictView

MISSING = units.NOT_MEASURED
_SAME = ("device", "device_name", "torch", "python", "cuda", "cpu", "cores", "threads", "os", "git_commit")


class TwoRuns(Record):
    """The document that the page carries: both results as they are."""

    old: Result
    new: Result


def page(new: Result, old: Result, *, verdict: str, names: tuple[str, str]) -> str:
    """One self-contained page; ``verdict``: what ``autoopt verify --against`` says; the old run's name is first."""
    return tables_page(
        TwoRuns(old=old, new=new),
        brand="autoopt report --against",
        title=f"{names[1]} against {names[0]}",
        headline=verdict,
        lead=f"{names[1]} next to {names[0]}. Each run was measured in its own time: only figures that a run paired "
        "itself are ratios.",
        differences=tuple(differences(new, old)),
        tables=tuple(tables(new, old, names)),
    )


def tables(new: Result, old: Result, names: tuple[str, str] = ("old", "new")) -> Iterator[Table]:
    """Everything that describes both, in the order in which a reader asks."""

    def table(id: str, title: str, describe: Callable[[Result], dict[str, str]], absent: str = MISSING) -> Table:
        one, two = describe(old), describe(new)
        rows = tuple((key, one.get(key, absent), two.get(key, absent)) for key in dict.fromkeys([*one, *two]))
        return Table(id, title, ("", *names), rows)

    yield table("found", "What each found", _found)
    yield table(
        "facts",
        "Before and after, each run on its own",
        lambda run: {fact.label: f"{fact.before} → {fact.after}" for fact in VerdictView(run).facts},
    )
    yield table("kept", "Changes kept", _kept, absent="not kept")
    yield table(
        "stages",
        "Seconds of a stage in the first profile",
        lambda run: {stage.name: units.duration(stage.seconds) for round_ in run.rounds[:1] for stage in round_.stages},
    )


def differences(new: Result, old: Result) -> Iterator[str]:
    """Differences between two runs' conditions, for which their figures differ, too."""
    if new.workload.spec != old.workload.spec:
        yield f"workload: {old.workload.spec} → {new.workload.spec}"
    for field in _SAME:
        before, after = getattr(old.environment, field), getattr(new.environment, field)
        if before != after:
            yield f"{field.replace('_', ' ')}: {before if before is not None else MISSING} → {after}"
    for field in ("metric", "target", "tolerance"):
        before, after = getattr(old.objective, field), getattr(new.objective, field)
        if before != after:
            yield f"{field}: {before} → {after}"


def _found(result: Result) -> dict[str, str]:
    verdict = VerdictView(result)
    floor = result.noise.floor
    return {
        "verdict": str(verdict.headline),
        "how sure": "; ".join(map(str, verdict.qualifiers)) or "-",
        "quality": str(quality_view(result).short) if result.found else "nothing changed",
        "verified end to end": "yes" if result.speedup.end_to_end_verified else "no",
        "noise floor": units.percent(floor) if floor is not None else MISSING,
        "search": f"{units.duration(result.seconds)} of {units.duration(result.budget_seconds)}",
        "trials": units.count(len(result.trials)),
    }


def _kept(result: Result) -> dict[str, str]:
    gains = {change_name(worth.strategy, worth.setting): worth.without for worth in result.ablation}
    names = [change_name(change.strategy, change.setting) for change in result.best.plan.changes]
    return {each.text: ratio_text(gains.get(each)) or "kept" for each in names}
