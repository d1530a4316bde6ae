"""The profile as data: where the time goes, how far the ceilings are, and what each strategy expects."""

from __future__ import annotations

import re
import shlex
from urllib.parse import quote

from autoopt.records import EstimateKind, Prediction, Profile, Profiled
from autoopt_reports.view import units
from autoopt_reports.view.closing import commands
from autoopt_reports.view.page import Page
from autoopt_reports.view.pipeline import with_kind
from autoopt_reports.view.text import (
    Name,
    Number,
    Phrase,
    change_name,
    clean,
    interval,
    name,
    number,
    numbers,
    say,
    throughput,
)

_PROFILE = "autoopt profile "


class Expectation:
    """Expectation of a strategy for a setting; ``reason`` where it does not apply."""

    def __init__(self, place: int, p: Prediction) -> None:
        self.label, self.applies = change_name(p.strategy, p.setting), p.applies
        self.predicted = interval(p.predicted, f"/predictions/{place}/predicted")
        self.reason = name(p.reason) if p.reason else None


Tool = tuple[Name, Name | None, str | None, str]
"""Findings of a profiler: its name, its file, where that lies next to the page, and a summary."""


class ProfileView(Page):
    """Numbers and sentences of the profile's page. The same document gives the same."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile, [("/round", profile.round)], [("before", "/baseline", profile.baseline)])
        spec, device = profile.workload.spec, profile.environment.device_name or profile.environment.device
        first, _ = commands(profile.reproduce, spec)
        watched = [] if profile.drift is None else [Profiled(tool="watch", lines=profile.drift.summary())]
        self.subtitle = say("{} · {}", name(spec, 80), name(device, 60))
        self.headline = _headline(profile)
        self.support = _support(profile)
        self.facts = _facts(profile)
        expectations = (Expectation(place, each) for place, each in enumerate(profile.predictions))
        self.expectations = tuple(sorted(expectations, key=_rank))
        self.expectations_headline = _expected(self.expectations)
        self.tools = tuple(map(_tool, (*profile.profilers, *watched)))
        self.next_command = _next(profile)
        self.commands = (first,) if profile.reproduce.command else (f"autoopt profile {_spec(profile)}",)


def _tool(found: Profiled) -> Tool:
    file = found.file
    inside = file is not None and not file.startswith("/") and ".." not in file.split("/")
    return (
        name(found.tool, 40),
        name(file) if file else None,
        quote(f"./{file}", errors="surrogatepass") if inside else None,
        clean("\n".join(found.lines))[:6_000],
    )


def _next(profile: Profile) -> str:
    """The command that measures what the profile expects, with a script's own words where its command line has them."""
    command = profile.reproduce.command
    if not command.startswith(_PROFILE):
        return f"autoopt optimize {_spec(profile)}"
    target, dashes, own = command.removeprefix(_PROFILE).partition("-- ")
    return clean(
        f"autoopt optimize {re.split(' --(?:with|watch)', target)[0].strip()} {dashes}{own}".replace("  ", " ")
    ).strip()


def _spec(profile: Profile) -> str:
    return shlex.quote(profile.workload.spec)


def _headline(profile: Profile) -> Phrase:
    round_ = profile.round
    if round_.ceiling_step_seconds is None:
        return say("A step takes {}", number(round_.step_seconds, units.duration, "/round/step_seconds"))
    room = round_.step_seconds / round_.ceiling_step_seconds if round_.ceiling_step_seconds else 0.0
    shown = number(room, units.ratio, "/round/step_seconds", "/round/ceiling_step_seconds", how="quotient")
    return say("At most {} faster, if every stage reached its ceiling on this machine", shown)


def _support(profile: Profile) -> tuple[Phrase, ...]:
    round_ = profile.round
    lines = []
    if round_.ceiling_step_seconds is not None:
        seconds = numbers(round_, "/round", units.duration, "step_seconds", "ceiling_step_seconds")
        lines.append(say("A step takes {}; with every stage at its ceiling it would take {}.", *seconds))
    if round_.bottleneck:
        lines.append(with_kind(say("The bottleneck is {}", name(round_.bottleneck, 60)), round_) + ".")
    lines.append(say("Nothing was changed and nothing was tried: these are measurements and predictions."))
    return tuple(lines)


def _facts(profile: Profile) -> tuple[tuple[str, Number], ...]:
    base, step = profile.baseline, profile.baseline.step_seconds

    def quantile(field: str) -> Number:
        value = None if step is None else getattr(step, field)
        return number(value, units.duration, "/baseline/step_seconds" + (f"/{field}" if step else ""))

    return (
        ("step, median", quantile("p50")),
        ("step, slowest hundredth", quantile("p99")),
        ("throughput", throughput(base, "/baseline")),
        ("peak memory", number(base.peak_memory_bytes, units.bytes_, "/baseline/peak_memory_bytes")),
        ("device busy", number(base.device_utilization, units.percent, "/baseline/device_utilization")),
        ("CPU busy", number(base.cpu_utilization, units.percent, "/baseline/cpu_utilization")),
    )


def _rank(row: Expectation) -> tuple[bool, bool, float]:
    speedup = row.predicted.value.value if row.predicted else None
    return not row.applies, not _predicts(row), -(speedup or 0.0)


def _predicts(row: Expectation) -> bool:
    """Whether something is expected of it: a bound says what the ceilings leave, and not what comes."""
    return row.predicted is not None and row.predicted.kind is not EstimateKind.BOUND


def _expected(rows: tuple[Expectation, ...]) -> Phrase:
    open_ = [row for row in rows if row.applies]
    if not open_:
        return say("No strategy applies")
    best = open_[0]
    if best.predicted is None or not _predicts(best):
        return say("No strategy that applies could predict its gain")
    return say("The most is expected of {}: {}", best.label, best.predicted.phrase)
