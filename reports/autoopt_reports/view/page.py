"""The whole report and the whole profile as data: a view for each section, in reading order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from urllib.parse import quote

from autoopt.records import (
    Advice,
    Configuration,
    Environment,
    EstimateKind,
    Peaks,
    Prediction,
    Profile,
    Profiled,
    Result,
    Round,
)
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
    place_name,
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
        asked, directory = result.reproduce.command, result.reproduce.run_directory
        first = clean(asked) if asked else f"autoopt optimize {shlex.quote(clean(result.workload.spec))}"
        self.commands = (first, f"autoopt report {shlex.quote(clean(directory)) if directory else 'RUN'}")


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
        self.title, self.evidence = name(item.title), name(item.evidence, 600)
        self.where = place_name(item.file, item.line, 240)
        self.suggestion, self.costly = clean(item.suggestion)[:2000], item.seconds is not None


def machine_lines(environment: Environment) -> tuple[Detail, ...]:
    def text(label: str, value: str | None) -> Detail:
        return label, name(value) if value else Name("not recorded")

    at = "/environment"
    lines = [
        text("device", environment.device_name or environment.device),
        ("device memory", number(environment.device_memory_bytes, units.bytes_, f"{at}/device_memory_bytes")),
        text("CPU", environment.cpu),
        ("cores", number(environment.cores, units.count, f"{at}/cores")),
        ("compute threads", number(environment.threads, units.count, f"{at}/threads")),
        ("RAM", number(environment.ram_bytes, units.bytes_, f"{at}/ram_bytes")),
        ("load while measuring", number(environment.load, units.plain, f"{at}/load")),
        text("operating system", environment.os),
        text("Python", environment.python),
        text("torch", environment.torch),
        text("CUDA", environment.cuda),
        text("compiler", environment.compiler),
        text("git commit", environment.git_commit),
    ]
    lines += [text(name(package, 60).text, version) for package, version in sorted(environment.packages.items())[:40]]
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


_PROFILE = "autoopt profile "


class Expectation:
    """Expectation of a strategy for a setting; ``reason`` where it does not apply.

    ``predicts``: something is expected of it; a bound says what the ceilings leave, and not what comes.
    """

    def __init__(self, place: int, p: Prediction) -> None:
        self.label, self.applies = change_name(p.strategy, p.setting), p.applies
        self.predicted = interval(p.predicted, f"/predictions/{place}/predicted")
        self.predicts = p.predicted is not None and p.predicted.kind is not EstimateKind.BOUND
        self.reason = name(p.reason) if p.reason else None


Tool = tuple[Name, Name | None, str | None, str]
"""Findings of a profiler: its name, its file, where that lies next to the page, and a summary."""


class ProfileView(Page):
    """Numbers and sentences of the profile's page. The same document gives the same."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile, [("/round", profile.round)], [("before", "/baseline", profile.baseline)])
        spec, device = profile.workload.spec, profile.environment.device_name or profile.environment.device
        watched = [] if profile.drift is None else [Profiled(tool="watch", lines=profile.drift.summary())]
        self.subtitle = say("{} · {}", name(spec, 80), name(device, 60))
        self.headline, self.support = _speed(profile.round)
        self.facts = _facts(profile.baseline)
        expectations = (Expectation(place, each) for place, each in enumerate(profile.predictions))
        self.expectations = tuple(sorted(expectations, key=_rank))
        best = next((row for row in self.expectations if row.applies), None)
        if best is None:
            self.expectations_headline = say("No strategy applies")
        elif best.predicted is None or not best.predicts:
            self.expectations_headline = say("No strategy that applies could predict its gain")
        else:
            self.expectations_headline = say("The most is expected of {}: {}", best.label, best.predicted.phrase)
        self.tools = tuple(map(_tool, (*profile.profilers, *watched)))
        command, named = profile.reproduce.command, shlex.quote(spec)
        self.commands = (clean(command) if command else f"{_PROFILE}{named}",)
        # the command that measures what the profile expects, with a script's own words where this one has them
        self.next_command = f"autoopt optimize {named}"
        if command.startswith(_PROFILE):
            target, dashes, own = command.removeprefix(_PROFILE).partition("-- ")
            asked = re.split(" --(?:with|watch)", target)[0].strip()
            self.next_command = clean(f"autoopt optimize {asked} {dashes}{own}".replace("  ", " ")).strip()


def _rank(row: Expectation) -> tuple[bool, bool, float]:
    speedup = row.predicted.value.value if row.predicted else None
    return not row.applies, not row.predicts, -(speedup or 0.0)


def _tool(found: Profiled) -> Tool:
    file = found.file
    inside = file is not None and not file.startswith("/") and ".." not in file.split("/")
    return (
        name(found.tool, 40),
        name(file) if file else None,
        quote(f"./{file}", errors="surrogatepass") if inside else None,
        clean("\n".join(found.lines))[:6_000],
    )


def _speed(round_: Round) -> tuple[Phrase, tuple[Phrase, ...]]:
    """The headline, and the sentences below it."""
    step, least = numbers(round_, "/round", units.duration, "step_seconds", "ceiling_step_seconds")
    headline, lines = say("A step takes {}", step), list[Phrase]()
    if round_.ceiling_step_seconds is not None:
        room = round_.step_seconds / round_.ceiling_step_seconds if round_.ceiling_step_seconds else 0.0
        shown = number(room, units.ratio, *step.paths, *least.paths, how="quotient")
        headline = say("At most {} faster, if every stage reached its ceiling on this machine", shown)
        lines.append(say("A step takes {}; with every stage at its ceiling it would take {}.", step, least))
    if round_.bottleneck:
        lines.append(with_kind(say("The bottleneck is {}", name(round_.bottleneck, 60)), round_) + ".")
    lines.append(say("Nothing was changed and nothing was tried: these are measurements and predictions."))
    return headline, tuple(lines)


def _facts(base: Configuration) -> tuple[tuple[str, Number], ...]:
    step, at = base.step_seconds, "/baseline/step_seconds"
    unknown = number(None, units.duration, at)
    median, slowest = numbers(step, at, units.duration, "p50", "p99") if step else (unknown, unknown)
    return (
        ("step, median", median),
        ("step, slowest hundredth", slowest),
        ("throughput", throughput(base, "/baseline")),
        ("peak memory", number(base.peak_memory_bytes, units.bytes_, "/baseline/peak_memory_bytes")),
        ("device busy", number(base.device_utilization, units.percent, "/baseline/device_utilization")),
        ("CPU busy", number(base.cpu_utilization, units.percent, "/baseline/cpu_utilization")),
    )
