"""The whole report and the whole profile as data: a view for each section, in reading order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from urllib.parse import quote

from autoopt.records import Advice, Environment, EstimateKind, Peaks, Prediction, Profile, Profiled, Reproduce, Result
from autoopt_reports.view import units
from autoopt_reports.view.adopt import Adopt, patch_view
from autoopt_reports.view.learning import learning_view
from autoopt_reports.view.scaling import ModelScalingView, ScalingView, TuningView
from autoopt_reports.view.stages import (
    ROOFS,
    StagesView,
    Timed,
    lanes_views,
    pipeline_headline,
    roofline_view,
    with_kind,
)
from autoopt_reports.view.steps import forest_view, waterfall_view
from autoopt_reports.view.text import (
    Detail,
    Name,
    Number,
    Phrase,
    Placed,
    change_name,
    clean,
    interval,
    join,
    name,
    number,
    numbers,
    say,
    throughput,
)
from autoopt_reports.view.tradeoff import tradeoff_views
from autoopt_reports.view.trials import SearchSection, account_phrase, predictions_view, trial_groups
from autoopt_reports.view.verdict import VerdictView, trust_checks


class Page:
    """The sections that the page of a run and that of a profile share. One that has nothing to show is None.

    Args:
        measured: (when, path, configuration) of what was timed.
    """

    def __init__(self, document: Result | Profile, rounds: Sequence[Placed], measured: Timed) -> None:
        snippets = document.snippets if isinstance(document, Result) else ()
        self.title = name(document.workload.name, 80)
        self.stages = StagesView(rounds) if rounds else None
        self.lanes = lanes_views(rounds, snippets)
        self.lanes_headline = pipeline_headline(rounds) if rounds else Phrase()
        self.roofline = roofline_view(document.environment.peaks, rounds, measured)
        self.warnings = tuple(name(item, 600) for item in document.warnings)
        self.advice = tuple(map(AdviceView, document.advice))
        self.seed = number(document.reproduce.seed, units.count, "/reproduce/seed")
        self.machine = machine_lines(document.environment)
        self.peaks = peak_lines(document.environment.peaks)


class Report(Page):
    """Numbers and sentences of every section. The same document gives the same."""

    def __init__(self, result: Result) -> None:
        sides = [("before", "/baseline", result.baseline), ("after", "/best", result.best)]
        rounds = [(f"/rounds/{place}", round_) for place, round_ in enumerate(result.rounds)]
        super().__init__(result, rounds, sides if result.found else sides[:1])
        self.subtitle = _subtitle(result)
        self.verdict = VerdictView(result)
        self.trust = trust_checks(result)
        self.adopt = Adopt(result)
        self.patch = patch_view(result)
        self.waterfall = waterfall_view(result)
        self.forest = forest_view(result)
        self.scaling = ScalingView(result.scaling) if result.scaling is not None else None
        self.learning = learning_view(result)
        self.tradeoffs = tradeoff_views(result)
        sizes, tuned = result.model_scaling, result.tuning
        self.model_scaling = ModelScalingView(sizes) if sizes is not None else None
        self.tuning = TuningView(tuned) if tuned is not None else None
        self.predictions = predictions_view(result)
        self.search = SearchSection(result)
        self.groups = trial_groups(result)
        self.account = account_phrase(result)
        self.not_measured = tuple(name(item) for item in result.not_measured)
        self.notes = tuple(name(item, 600) for item in result.notes)
        self.commands = commands(result.reproduce, result.workload.spec)


def _subtitle(result: Result) -> Phrase:
    environment, parameters = result.environment, result.workload.parameters
    parts = [name(result.workload.spec, 80), name(environment.device_name or environment.device, 60)]
    found = [say("{}", part) for part in parts]
    if environment.torch:
        found.append(say("torch {}", name(environment.torch, 30)))
    if parameters is not None:
        found.append(say("{} parameters", number(parameters, units.count, "/workload/parameters")))
    return join([*found, say("{}", name(result.created[:16].replace("T", " "), 20))], " · ")


class AdviceView:
    """One piece of advice. ``costly``: it is on one of the most expensive places of the run."""

    def __init__(self, item: Advice) -> None:
        where = item.file if item.file is None or item.line is None else f"{item.file}:{item.line}"
        self.title, self.evidence = name(item.title), name(item.evidence, 600)
        self.where = name(where) if where is not None else None
        self.suggestion, self.costly = clean(item.suggestion)[:2000], item.seconds is not None


def machine_lines(environment: Environment) -> tuple[Detail, ...]:
    at = "/environment"
    lines = [
        _text("device", environment.device_name or environment.device),
        ("device memory", number(environment.device_memory_bytes, units.bytes_, f"{at}/device_memory_bytes")),
        _text("CPU", environment.cpu),
        ("cores", number(environment.cores, units.count, f"{at}/cores")),
        ("compute threads", number(environment.threads, units.count, f"{at}/threads")),
        ("RAM", number(environment.ram_bytes, units.bytes_, f"{at}/ram_bytes")),
        ("load while measuring", number(environment.load, units.plain, f"{at}/load")),
        _text("operating system", environment.os),
        _text("Python", environment.python),
        _text("torch", environment.torch),
        _text("CUDA", environment.cuda),
        _text("compiler", environment.compiler),
        _text("git commit", environment.git_commit),
    ]
    lines += [_text(name(package, 60).text, version) for package, version in sorted(environment.packages.items())[:40]]
    return tuple(lines)


_PEAKS: tuple[tuple[str, str, units.Formatter], ...] = (
    *((label, field, units.flops) for label, field in ROOFS),
    ("memory", "memory_bytes_per_second", units.bandwidth),
    ("copy to device, pageable", "copy_pageable_to_device_bytes_per_second", units.bandwidth),
    ("copy to device, pinned", "copy_pinned_to_device_bytes_per_second", units.bandwidth),
    ("copy from device, pageable", "copy_pageable_from_device_bytes_per_second", units.bandwidth),
    ("copy from device, pinned", "copy_pinned_from_device_bytes_per_second", units.bandwidth),
    ("storage", "storage_bytes_per_second", units.bandwidth),
    ("one launch", "launch_seconds", units.duration),
)


def peak_lines(peaks: Peaks) -> tuple[Detail, ...]:
    """The measured peaks; what was not measured says so."""
    return tuple(
        (label, number(getattr(peaks, field), form, f"/environment/peaks/{field}")) for label, field, form in _PEAKS
    )


def _text(label: str, value: str | None) -> Detail:
    return (label, name(value) if value else Name("not recorded"))


def commands(reproduce: Reproduce, spec: str) -> tuple[str, ...]:
    first = clean(reproduce.command) if reproduce.command else f"autoopt optimize {shlex.quote(clean(spec))}"
    run = shlex.quote(clean(reproduce.run_directory)) if reproduce.run_directory else "RUN"
    return (first, f"autoopt report {run}")


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
